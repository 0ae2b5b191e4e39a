"""The output of a verb: standard output and files. Every verb prints by it."""

import codecs
import contextlib
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import ResultsError
from hpccomm.results.files import as_utf8
from hpccomm.tools.progress import watched

if TYPE_CHECKING:
    from hpccomm.results.reader import Examined
    from hpccomm.results.recording import Recording

_PLAIN = {"\u2192": "->", "\u21e2": "~>", "\u2026": "..."}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace what the encoding of a stream lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = as_utf8(error.object[error.start : error.end])
    escaped = (
        each if each.isascii() else _PLAIN.get(each) or ascii(each)[1:-1] for each in lacking
    )
    return "".join(escaped), error.end


def take_any_text() -> None:
    """Let the standard streams take any text: characters that their encoding lacks are replaced or escaped."""
    codecs.register_error("hpccomm.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="hpccomm.plain")


def speaks() -> bool:
    """Whether this process prints for all ranks of the job."""
    place = launched()
    return place is None or place.rank == 0


def write(text: str) -> None:
    """Write to standard output, and flush it.

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


def write_found(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Write what a verb has found to standard output: the document as JSON, or the lines."""
    write((json.dumps(document, indent=1) if as_json else "\n".join(lines)) + "\n")


def warn(text: str) -> None:
    """Write to standard error; a failure is ignored, as the exit status tells it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def damaged(damage: Sequence[str], file: Path | None = None) -> int:
    """Name what of results files, or of a `file`, is damaged, and with that left out; return the exit status."""
    for what in damage:
        warn(f"hpccomm: damaged: {file}: {what}\n" if file else f"hpccomm: damaged: {what}\n")
    return 2 if damage else 0


def read_file(file: Path) -> "tuple[Examined, int]":
    """Read a results file, and name what of it is damaged; return also the exit status.

    Raises
    ------
    ResultsError
        If nothing of it can be read.
    """
    from hpccomm.results import reader

    with watched(f"reading {file.name}"):
        examined = reader.examine_all(file)
    return examined, damaged(examined.damage, file)


def read_recording(file: Path, wanted: str | None = None) -> "tuple[Recording, int]":
    """Read a recording with calls of a results file: the last one, or that of a name. Else as `read_file`.

    Raises
    ------
    ResultsError
        If it has no such recording, or that lacks the calls of a rank.
    """
    from hpccomm.results.run import choose

    examined, status = read_file(file)
    recorded = [each for each in examined.recordings if each.calls.starts[-1]]
    if not recorded:
        raise ResultsError(
            f"{file} holds no recorded calls; hpccomm record --output {file} -- PROGRAM adds them"
        )
    chosen = choose(recorded, wanted)
    if chosen.lacks:
        raise ResultsError(
            f"{chosen.name} of {file}: {chosen.lacks}; put their files beside it, {file}.rank0 and so on"
        )
    return chosen, status


def write_file(file: Path | None, content: str, *, new: bool = False) -> None:
    """Write a file of text, or to standard output without one; replace an existing file, unless it must be new.

    Raises
    ------
    ResultsError
        If it cannot be written, or an HDF5 file is there, which holds measurements.
    """
    if file is None:
        write(content)
        return
    try:
        if file.is_file() and not new:
            with file.open("rb") as stream:
                if stream.read(4) == b"\x89HDF":
                    raise ResultsError(
                        f"{file} is an HDF5 file, which is not overwritten; choose another path"
                    )
        with file.open("x" if new else "w", encoding="utf-8") as text:
            text.write(as_utf8(content))
    except FileExistsError as error:
        raise ResultsError(f"{file} exists already; remove it, or choose another path") from error
    except OSError as error:
        raise ResultsError(f"cannot write {file}: {error.strerror}; choose another path") from error
