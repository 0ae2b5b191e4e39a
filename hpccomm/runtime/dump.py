"""The dump of the flight recorder: this process's last calls, as JSON for `hpccomm explain`.

It is written when a call or the process fails, and on SIGUSR1. Facts that are also in PyTorch's flight recorder
have the same names here. `hpccomm.tools.explain.dumps` reads it. `engine` adds communicators; `inquiry`, `state` and
`hpccomm.backends.bootstrap.shutdown` write it.
"""

import contextlib
import faulthandler
import json
import logging
import os
import platform
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from hpccomm import __version__
from hpccomm.runtime import recorder
from hpccomm.runtime.recorder import CallRecord
from hpccomm.runtime.service import Voice, after_fork, service

logger = logging.getLogger("hpccomm")

DIRECTORY = "hpccomm-dumps"
"""Default directory of dumps, where neither ``HPCCOMM_DUMP_DIR`` nor an argument names one."""


class Recorded(Protocol):
    """A communicator, as dumps show it."""

    def flight_facts(self) -> Mapping[str, Any]:
        """Return its ``uid``, ``name``, ``ranks``, ``now`` and ``answers``."""


@dataclass(slots=True)
class Process:
    """The process, as its dump shows it, and the directory of dumps.

    Attributes
    ----------
    rank, size : int
        This process's rank in the job, and the number of ranks.
    job : str
        Identifies the job, as far as the launcher does; the same on all ranks.
    directory : str
        Directory of dumps after a failure; if empty, no such dump is written.
    reason : str
        The first failure; others follow from it.
    raised : mapping or None
        The facts of the uncaught exception that ends the process, if any: `Mishap.facts` and ``"stack"``.
    ended : str
        The last words of a process that hpccomm ends, also at a signal.
    """

    rank: int = 0
    size: int = 1
    job: str = ""
    directory: str = ""
    reason: str = ""
    raised: Mapping[str, Any] | None = None
    ended: str = ""


process = Process()
_communicators: "weakref.WeakSet[Recorded]" = weakref.WeakSet()
_writing = threading.Lock()
_told = False


def add(communicator: Recorded) -> None:
    """Show a communicator in dumps as long as it lives."""
    _communicators.add(communicator)


def write(reason: str, *, tell: bool = True) -> None:
    """Write the dump of a failure, if `Process.directory` is set. From any thread.

    If the dump cannot be written, that is logged: it must not hide the first failure. With `tell`, one rank of
    the job logs where the dumps are, or that there are none.
    """
    process.reason = process.reason or reason
    if not process.directory:
        return
    try:
        file, why = _written(process.reason)
    except Exception as error:  # noqa: BLE001 (it must not hide the failure)
        _tell(f"the record of the last calls could not be written: {error!r}")
        return
    if tell and process.raised is None:  # else `meaning` adds the place to the exception's words
        where = file.parent
        _tell(f"the last calls are in {where}{why}: hpccomm explain {where} says what they mean")


def meaning() -> str:
    """Return the place of the dumps as a clause for the last words; empty if there are none or it was logged."""
    if not process.directory or _told:
        return ""
    return (
        f"; hpccomm explain {Path(process.directory) / process.job} says what its last calls mean"
    )


def _tell(what: str) -> None:
    """Log, once a job, where the records are."""
    global _told
    with _writing:
        told, _told = _told, True
    if not told and not Voice.before("where the last calls are"):
        logger.warning("%s", what)


def _written(reason: str) -> tuple[Path, str]:
    """Write the dump to the usual directory, or else to one for temporary files.

    Return the file, and why it is not in the usual directory, as a clause.
    """
    folder = Path(process.directory or DIRECTORY)
    try:
        return write_to(folder / process.job, reason), ""
    except OSError as error:
        import tempfile

        # The name has the user: a directory of one user is closed to others.
        other = Path(tempfile.gettempdir()) / f"{DIRECTORY}-{os.getuid()}"
        file = write_to(other / process.job, reason)
        if process.directory:
            process.directory = str(other)
        return file, f", as {folder} cannot be written to ({error.strerror or error})"


def dump(directory: str | os.PathLike[str] | None = None, *, reason: str = "on demand") -> Path:
    """Write this process's last calls to a file, and return the file. Local; from any thread.

    ``hpccomm explain`` joins the files of all ranks and says which rank is missing or differs. A failure writes
    the file without this function, and so does SIGUSR1.

    Parameters
    ----------
    directory : path, optional
        The directory of the file, ``rank_<rank>.json``; it is made. None takes the job's directory in
        ``HPCCOMM_DUMP_DIR`` or ``hpccomm-dumps``, or a directory in ``TMPDIR`` if that cannot be written to.
    reason : str
        Stored in the file.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    return _written(reason)[0] if directory is None else write_to(Path(directory), reason)


def write_to(directory: Path, reason: str) -> Path:
    """Write the dump into a directory, which is made, and return the file. Atomic.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    with _writing:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"rank_{process.rank}.json"
        part = directory / f".rank_{process.rank}.{os.getpid()}"
        try:
            part.write_text(json.dumps(contents(reason), default=repr))
            part.replace(file)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    return file


def contents(reason: str) -> dict[str, Any]:
    """Return the dump as plain data."""
    facts = [each.flight_facts() for each in list(_communicators)]
    # Where ranks are threads, the process also has communicators that this rank is not in.
    shown = [each for each in facts if process.rank in each["ranks"]]
    lately = [each["now"]["refused"] for each in shown if each["now"]["refused"]]
    return {
        "hpccomm": __version__,
        "reason": reason,
        "time": time.time(),
        "rank": process.rank,
        "world_size": process.size,
        "job": process.job,
        "host": platform.node(),
        "pid": os.getpid(),
        "pg_config": {
            each["uid"]: {"desc": each["name"], "ranks": each["ranks"]} for each in shown
        },
        "entries": [_entry(each) for each in recorder.calls()],
        "now": {each["uid"]: each["now"] for each in shown},
        "answers": {each["uid"]: each["answers"] for each in shown},
        "raised": process.raised,
        "handled": recorder.handled(),
        "ended": process.ended,
        "refused": min(lately, key=itemgetter("ago"), default=None),
        "stacks": list(recorder.stacks()),
    }


def _entry(entry: CallRecord) -> dict[str, Any]:
    origin, sequence, number, label, mode, site, begin, timeout, ended, error, *_ = entry
    if ended is None:
        state = "scheduled" if mode is recorder.DEVICE else "started"
    else:
        state = "completed" if error is None else "failed"
    site = recorder.program_site(site, begin)
    return {
        "process_group": [origin.uid, origin.name],
        "collective_seq_id": max(0, number),
        "op_id": max(0, sequence),
        "profiling_name": f"mpi:{label.name}",
        "time_created_ns": recorder.unix_ns(begin),
        "duration_ms": None if ended is None else ended * 1e3,
        "state": state,
        "is_p2p": not number,
        "timeout_ms": timeout * 1e3 if timeout < 1e12 else None,
        "frames": [] if site is None else [_frame(site)],
        "terms": {**label.values, "mode": mode},
        "nbytes": label.nbytes,
        "error": error,
    }


def _frame(site: Any) -> dict[str, object]:
    code, _ = site
    return {"name": code.co_qualname, "filename": code.co_filename, "line": recorder.line_of(site)}


# SIGUSR1 dumps the last calls, even if the main thread is stuck.
#
# Python runs signal handlers in the main thread, between two instructions: never, while that is blocked in a
# library. faulthandler's handler runs at once and needs no lock. It writes to a pipe, which the service thread reads.

QUIET_SECONDS = 0.05
"""Seconds after which faulthandler has written all of a signal's stack."""

_installed = False


def install(act: Callable[[], object] | None = None) -> None:
    """Dump the last calls at SIGUSR1, unless the program handles that signal. Idempotent.

    With `act`, do that instead. It must not block.
    """
    global _installed
    if not _installed and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        service.hear(reading, partial(_asked, reading, act))
        service.start()
        faulthandler.register(signal.SIGUSR1, file=writing, all_threads=False)
        _installed = True


def _asked(reading: int, act: Callable[[], object] | None) -> None:
    time.sleep(QUIET_SECONDS)  # the handler writes a stack in pieces: all of them are one signal
    with contextlib.suppress(BlockingIOError):
        while os.read(reading, 1 << 16):
            pass
    try:
        if act is None:
            dump(reason="SIGUSR1")
        else:
            act()
    except Exception as error:  # noqa: BLE001 (the next signal must still be heard)
        logger.warning("the last calls could not be written: %r", error)


@after_fork
def _after_fork() -> None:
    # The child has other calls, if any, and leaves the parent's file alone.
    global _communicators, _writing, _told, _installed
    process.rank, process.size, process.job, process.directory, process.reason = 0, 1, "", "", ""
    process.raised, process.ended = None, ""
    _communicators, _writing, _told = weakref.WeakSet(), threading.Lock(), False
    if _installed:  # the pipe wakes the parent's service thread
        _installed = False
        faulthandler.unregister(signal.SIGUSR1)
