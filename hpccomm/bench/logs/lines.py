"""The lines of a log, without what a launcher puts before each."""

import re

_TAGS = re.compile(
    r"^(?:\[[^\]]*\]<std(?:out|err)>:?\s?"  # mpirun --tag-output
    r"|\[(?:\d+,)*\d+\] ?(?=[# ])"  # mpiexec -l, -prepend-rank
    r"|\d+:\s?(?=[# ]|$))"  # srun --label
)


def untagged(text: str) -> list[str]:
    """Return the lines of a log; tags of Open MPI, MPICH and Slurm are left out."""
    return [_TAGS.sub("", line.rstrip("\r")) for line in text.split("\n")]
