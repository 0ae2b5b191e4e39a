"""Limits of the process and of the container that it runs in."""

from collections.abc import Iterator

from hpccomm.doctor.rule import Rule

ENOUGH_FILES = 4096
"""Open MPI and NCCL keep several sockets and files open for each peer."""


def _few_files(soft: int | None) -> Iterator[str]:
    if soft is not None and soft < ENOUGH_FILES:
        yield f"{soft:,} files may be open at once, and {ENOUGH_FILES:,} are a sound minimum"


RULES = (
    Rule(
        "limits.open_files",
        "May enough files and sockets be open?",
        ("limits.open_files.soft",),
        _few_files,
        "warn",
        "raise it: ulimit -n 65536 in the job script, or LimitNOFILE= of slurmd and sshd",
    ),
)
