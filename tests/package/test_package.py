"""The promises of the package before its first use."""

import importlib.metadata
import importlib.resources
import json

import pytest
from alone import python

import hpccomm

HEAVY = {"mpi4py", "mpi4py.MPI", "cupy", "h5py", "torch", "vl_convert"}


def modules_after(program: str) -> set[str]:
    """Names of all modules that a fresh interpreter has loaded after a program."""
    report = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = python("-c", f"{program}\n{report}", check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "program",
    [
        "import hpccomm",
        "import hpccomm; hpccomm.ReduceOp, hpccomm.CommOptions, hpccomm.LaunchError",
        "import hpccomm.tools.main",
        "import hpccomm.testing",
        "import hpccomm.tools.slurm.slurm",
        "import hpccomm; hpccomm.gradients.GradientSync",
    ],
)
def test_import_loads_neither_mpi_nor_cuda_nor_hdf5(program: str) -> None:
    assert modules_after(program) & HEAVY == set()


def test_import_of_the_package_alone_loads_no_numpy() -> None:
    assert "numpy" not in modules_after("import hpccomm")


def test_a_communicator_loads_no_part_that_few_programs_need() -> None:
    program = "import hpccomm; comm = hpccomm.new_comm('loopback'); comm.barrier()"
    assert modules_after(program) & HEAVY <= {"mpi4py", "mpi4py.MPI"}


def test_results_load_neither_mpi_nor_cuda() -> None:
    assert modules_after("import hpccomm.results") & {"mpi4py", "cupy"} == set()


def test_public_names_are_there() -> None:
    assert set(dir(hpccomm)) >= set(hpccomm.__all__)
    for name in hpccomm.__all__:
        assert getattr(hpccomm, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hpccomm.no_such_name


def test_version_is_the_distribution_s() -> None:
    assert importlib.metadata.version("hpccomm") == hpccomm.__version__


def test_types_are_announced() -> None:
    files = importlib.resources.files("hpccomm")
    assert files.joinpath("py.typed").is_file()


def test_console_script() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="hpccomm")
    assert callable(script.load())
