"""Spack's recipe of hpccomm; docs/how_to/installing.rst says how it is used."""

from spack.package import default_args, depends_on, license, variant, version  # noqa: A004
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpccomm(PythonPackage):
    """Collective communication on NumPy and CuPy arrays for MPI programs, measured the way nccl-tests does."""

    pypi = "hpccomm/hpccomm-0.1.0.tar.gz"

    license("Apache-2.0")

    # Zeros until there is a release: jobs/packaging/fill_in.sh replaces them.
    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("cuda", default=False, description="Arrays on GPUs, as of ^py-cupy cuda_arch=90")
    variant("jax", default=False, description="Collectives within jit and grad of JAX")
    variant("nvml", default=False, description="Name the speed of NVIDIA's links")
    variant("plot", default=False, description="Draw charts")
    variant("report", default=False, description="Write pages of HTML")
    variant("stats", default=False, description="Compare runs")

    depends_on("py-hatchling@1.27:", type="build")
    # mpiexec starts the ranks.
    depends_on("mpi", type="run")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-mpi4py@4.1:")
        depends_on("py-numpy@2.0:")
        depends_on("py-h5py@3.11:")
        depends_on("py-ml-dtypes@0.5:")
        depends_on("py-tqdm@4.66:")

    with default_args(type="run"):
        depends_on("py-cupy@14.0.1: +cuda", when="+cuda")
        depends_on("nccl@2.24:", when="+cuda")
        depends_on("py-jax@0.10:", when="+jax")
        depends_on("py-nvidia-ml-py@12.535:", when="+nvml")
        depends_on("py-vl-convert-python@1.8:", when="+plot")
        depends_on("py-scipy@1.13:", when="+report")
        depends_on("py-jinja2@3.1:", when="+report")
        depends_on("py-vl-convert-python@1.8:", when="+report")
        depends_on("py-scipy@1.13:", when="+stats")
