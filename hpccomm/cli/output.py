"""What a verb prints."""

import contextlib
import sys
from pathlib import Path

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import ResultsError


def speaks() -> bool:
    """Whether this process is the one that speaks for all ranks of the job."""
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


def write_file(file: Path, content: str) -> None:
    """Write a file of text, in place of one that is there.

    Raises
    ------
    ResultsError
        If it cannot be written, or an HDF5 file is there, which holds measurements.
    """
    try:
        if file.is_file():
            with file.open("rb") as there:
                if there.read(4) == b"\x89HDF":
                    raise ResultsError(
                        f"{file} is an HDF5 file, which is not overwritten; choose another path"
                    )
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"cannot write {file}: {error.strerror}; choose another path") from error
