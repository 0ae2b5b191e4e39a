"""The output of verbs: standard output, files, warnings, and the progress of long work on rank 0's terminal.

Every verb prints by these functions. Progress shows nothing where there is no terminal.
"""

import codecs
import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.errors import ResultsError
from hpccomm.results.files import as_utf8
from hpccomm.runtime import service

if TYPE_CHECKING:
    from hpccomm.results.reader import Examined
    from hpccomm.results.recording import Recording

_PLAIN = {"\u2192": "->", "\u21e2": "~>", "\u2026": "..."}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the encoding of a stream lacks."""
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
    """Write the findings of a verb to standard output: the document as JSON, or the lines."""
    write((json.dumps(document, indent=1) if as_json else "\n".join(lines)) + "\n")


def warn(text: str) -> None:
    """Write to standard error. A failure is ignored, since the exit status reports it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def damaged(damage: Sequence[str], file: Path | None = None) -> int:
    """Warn of the damaged parts of a `file` or of results files, which were left out; return the exit status."""
    for what in damage:
        warn(f"hpccomm: damaged: {file}: {what}\n" if file else f"hpccomm: damaged: {what}\n")
    return 2 if damage else 0


def write_file(file: Path | None, content: str, *, new: bool = False) -> None:
    """Write text to a file, or to standard output for None. An existing file is replaced, unless it must be new.

    Raises
    ------
    ResultsError
        If it cannot be written, or it is an HDF5 file, which holds measurements.
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


SOON = 1.0
"""Seconds after which work takes long, so that its progress is shown."""

TICK = 0.25
"""Seconds between two looks at the clock."""

_COUNTED = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
_UNCOUNTED = "{desc} [{elapsed}]"
_COLUMNS = 80
"""The assumed width of a terminal that does not report it."""


class Progress:
    """One line on a terminal that shows the current work and its progress.

    The cursor stays at the start of the line, so that later output of a launcher replaces it.

    Parameters
    ----------
    stream : text stream or None
        The terminal; without one nothing is shown.
    total : int or None
        Amount of work, if known.
    ticking : bool
        Whether a thread keeps the line up to date, from `SOON` on. Else it changes only by `show`,
        and does not disturb a measurement.
    """

    def __init__(
        self, stream: TextIO | None, total: int | None = None, *, ticking: bool = False
    ) -> None:
        self._stream = stream
        self._total = total
        self._done = 0
        self._doing = ""
        self._shown = False
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._ticking = ticking and stream is not None
        self._lock = threading.Lock() if self._ticking else contextlib.nullcontext()
        if stream is not None:
            import tqdm  # noqa: F401 (it takes a while, which is not to be measured)
        if self._ticking:
            service.start_thread("hpccomm-terminal", self._tick)

    def show(self, doing: str) -> None:
        """Show the current work."""
        self._doing = doing
        if self._stream is not None and not self._ticking:
            self._draw()

    def advance(self, count: int = 1) -> None:
        """Add to the amount of work that is done."""
        self._done += count
        if self._total is not None:
            self._total = max(self._total, self._done)

    def remain(self, count: int) -> None:
        """Set the amount of work that is left."""
        self._total = self._done + count

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the line away while something else is printed."""
        with self._lock:
            if self._stream is not None and self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._shown = False
            yield

    def say_last(self, text: str = "") -> None:
        """Take the line away for good, and write text that stays. Any thread may call it at the end of the process."""
        if self._stream is None:
            return
        self._ended.set()
        # Not through the stream's buffer: the main thread may hold its lock.
        with contextlib.suppress(OSError):
            os.write(self._stream.fileno(), f"\r\x1b[K{text}".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Take the line away for good."""
        with self.hidden():
            self._ended.set()

    def _tick(self) -> None:
        wait = SOON
        while not self._ended.wait(wait):
            with self._lock, contextlib.suppress(OSError):
                if not self._ended.is_set():
                    self._draw()
            wait = TICK

    def _draw(self) -> None:
        from tqdm import tqdm

        assert self._stream is not None
        text = tqdm.format_meter(
            self._done,
            self._total,
            time.monotonic() - self._begun,
            ncols=_columns(self._stream),
            prefix=self._doing,
            ascii=not (self._stream.encoding or "").lower().startswith("utf"),
            bar_format=_UNCOUNTED if self._total is None else _COUNTED,
        )
        self._stream.write(f"\r{text}\x1b[K\r")
        self._stream.flush()
        self._shown = True


@contextlib.contextmanager
def watched(doing: str, total: int | None = None) -> Iterator[Progress]:
    """Return a context that shows the current work after a while. In it, nothing else may be printed.

    Parameters
    ----------
    doing : str
        A phrase, such as ``"reading runs.h5"``.
    total : int or None
        Amount of work, for `Progress.advance`.
    """
    stream = terminal()
    progress = Progress(stream, total, ticking=True)
    progress.show(doing)
    try:
        yield progress
    finally:
        progress.close()
        if stream is not None and stream is not sys.stderr:
            stream.close()


def terminal() -> TextIO | None:
    """Return the terminal from which the job was started, if it waits for the job; None on ranks other than 0.

    Standard error is checked first. Standard output does not help, since Open MPI gives every rank a
    terminal there. Below a launcher the process or its parent is of the terminal's foreground group; a
    batch job or a job in the background writes nothing to a terminal.
    """
    place = launched()
    if place is not None and place.rank > 0:
        return None
    if sys.stderr.isatty():
        return sys.stderr
    try:
        stream = open("/dev/tty", "w", errors="backslashreplace")  # noqa: PTH123, SIM115
    except OSError:
        return None
    with contextlib.suppress(OSError):
        foreground = os.tcgetpgrp(stream.fileno())
        if foreground in (os.getpgrp(), os.getpgid(os.getppid())):
            return stream
    stream.close()
    return None


def _columns(stream: TextIO) -> int:
    """Return the width of a terminal without its last column, after which some terminals begin a new line."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return (columns or _COLUMNS) - 1


def read_file(file: Path) -> "tuple[Examined, int]":
    """Read a results file, and warn of its damaged parts; return its contents and the exit status.

    Raises
    ------
    ResultsError
        If no part of it can be read.
    """
    from hpccomm.results import reader

    with watched(f"reading {file.name}"):
        examined = reader.examine_all(file)
    return examined, damaged(examined.damage, file)


def read_recording(file: Path, wanted: str | None = None) -> "tuple[Recording, int]":
    """Read a recording with calls from a results file, by name or the last one; return it and the exit status.

    Raises
    ------
    ResultsError
        If no part of the file can be read, it has no such recording, or the recording lacks the calls of a rank.
    """
    from hpccomm.results.reader import choose

    try:
        examined, status = read_file(file)
    except ResultsError as error:
        if file.exists():
            raise
        why = "hpccomm record leaves no file for a program that uses neither mpi4py nor hpccomm"
        raise ResultsError(f"{error}; {why}") from None
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
