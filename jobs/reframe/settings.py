"""ReFrame's configuration for the tests beside this file.

    reframe -C jobs/reframe/settings.py -c jobs/reframe --system slurm-pmix:cpu -r

==================  ==================================================================
system              starts the ranks
==================  ==================================================================
``local``           on this machine, by ``mpiexec`` (the system unless one is named)
``slurm-pmix``      in a Slurm job, by ``srun --mpi=pmix``: Open MPI
``slurm-pmi2``      in a Slurm job, by ``srun --mpi=pmi2``: MPICH, Intel MPI
``slurm-mpiexec``   in a Slurm job, by the MPI library's ``mpiexec``
==================  ==================================================================

Each has a partition ``cpu``, and ``gpu`` with the feature of that name (``local``: where there are NVIDIA
GPUs). The environment is that of jobs/quickstart.sh, or of HPCCOMM_VENV; HPCCOMM_MPIEXEC names the
launcher of the site's own MPI, as in the other scripts of jobs/. A site that has its own configuration
adds an environment with the feature ``hpccomm`` to it.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).resolve().parents[2]
_GPUS = len(list(Path("/dev").glob("nvidia[0-9]*")))
_ONE_GPU_A_RANK = {"name": "_rfm_gpu", "options": ["--gpus-per-node={num_gpus_per_node}"]}

# As root, Open MPI refuses to start without two permissions; other libraries ignore these.
_AS_ROOT = [["OMPI_ALLOW_RUN_AS_ROOT", "1"], ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"]]
_MPI = _AS_ROOT if os.geteuid() == 0 else []

# A workstation may have fewer cores than ranks; a cluster's nodes should not.
_MORE_RANKS_THAN_CORES = [
    ["PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"],  # Open MPI 5
    ["OMPI_MCA_rmaps_base_oversubscribe", "1"],  # Open MPI 4
]


def _path() -> str:
    """Return the folders of hpccomm and of mpiexec, as they stand in front of PATH."""
    mpiexec = os.environ.get("HPCCOMM_MPIEXEC")
    # Not .venv: mpi4py would find an Open MPI that is installed there before the site's MPI.
    name = ".venv-site-mpi" if mpiexec else ".venv"
    venv = Path(os.environ.get("HPCCOMM_VENV") or _CHECKOUT / name).absolute()
    folders = [venv / "bin"]
    if mpiexec and (found := shutil.which(mpiexec)):
        folders.insert(0, Path(found).absolute().parent)
    return ":".join(map(str, folders))


def _scheduler() -> str:
    """Return ReFrame's scheduler for this Slurm: by sacct, or by squeue where jobs are not accounted."""
    if shutil.which("scontrol") is None:
        return "slurm"
    configuration = subprocess.run(
        ["scontrol", "show", "config"], capture_output=True, text=True, timeout=30, check=False
    )
    return "squeue" if "accounting_storage/none" in configuration.stdout else "slurm"


def _local(partition: str, **more: Any) -> dict[str, Any]:
    return {
        "name": partition,
        "scheduler": "local",
        "launcher": "mpiexec",
        "environs": ["hpccomm"],
        "env_vars": _MPI + _MORE_RANKS_THAN_CORES,
        "max_jobs": 1,  # two tests at once would measure each other
        **more,
    }


def _slurm(system: str, launcher: str, *env_vars: list[str]) -> dict[str, Any]:
    partition = {
        "scheduler": _scheduler(),
        "launcher": launcher,
        "environs": ["hpccomm"],
        "env_vars": [*_MPI, *env_vars],
        "sched_options": {"use_nodes_option": True},
    }
    return {
        "name": system,
        "hostnames": [],  # it is taken where --system names it
        "partitions": [
            {"name": "cpu", **partition},
            {"name": "gpu", **partition, "features": ["gpu"], "resources": [_ONE_GPU_A_RANK]},
        ],
    }


_gpu = _local("gpu", features=["gpu"], devices=[{"type": "gpu", "num_devices": _GPUS}])

site_configuration = {
    "systems": [
        {
            "name": "local",
            "hostnames": [".*"],
            "partitions": [_local("cpu"), *([_gpu] if _GPUS else [])],
        },
        _slurm("slurm-pmix", "srun", ["SLURM_MPI_TYPE", "pmix"]),
        _slurm("slurm-pmi2", "srun", ["SLURM_MPI_TYPE", "pmi2"]),
        _slurm("slurm-mpiexec", "mpiexec"),
    ],
    "environments": [
        {
            "name": "hpccomm",
            "features": ["hpccomm"],
            "env_vars": [["PATH", f"{_path()}:$PATH"]],
        },
    ],
}
