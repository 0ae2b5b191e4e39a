"""What a verb prints."""

import contextlib
import sys

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import ResultsError


def speaks() -> bool:
    """Whether this process is the one that speaks for all."""
    place = launched()
    return place is None or place.rank == 0


def write(text: str) -> None:
    """Write to standard output, and see it through to the system.

    Raises
    ------
    ResultsError
        If that fails: the disk behind it is full, or its reader has ended.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise ResultsError(
            f"standard output cannot be written: {error.strerror or error}; send it elsewhere"
        ) from error


def warn(text: str) -> None:
    """Write to standard error. If that fails too, only the exit status tells."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
