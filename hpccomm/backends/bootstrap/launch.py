"""What the launcher says about this process, read from the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """Place of the process in the job, as its launcher set it.

    Attributes
    ----------
    launcher : str
        Its name, for messages.
    rank, size : int
        This process's number and the number of processes.
    local_size : int or None
        How many of them are on this node; None if the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_size: int | None = None


# SLURM_NTASKS is no evidence: a plain script in a batch job has it too.
_LAUNCHERS = (
    (
        "Open MPI's mpiexec",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    (
        "a PMI launcher (MPICH's or Intel MPI's mpiexec)",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALNRANKS",
    ),
    ("Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""),
)


def launched(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return what the launcher says, or None if there was none.

    Reads the environment only; starts nothing.
    """
    values = os.environ if environ is None else environ
    for launcher, rank, size, local in _LAUNCHERS:
        try:
            on_node = int(values[local]) if local in values else None
            return Launch(launcher, int(values[rank]), int(values[size]), on_node)
        except (KeyError, ValueError):
            continue
    return None
