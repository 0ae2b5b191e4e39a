"""The dump of the flight recorder: this process's last calls, as JSON for `hpccomm explain`.

It is written when a call or the process fails, and on SIGUSR1. Facts that PyTorch's flight recorder has too
have its names. `hpccomm.tools.explain.dumps` reads it.

`Traffic` counts the messages that a rank has begun to send to each peer and to receive from each. It is
dumped, and ranks that wait exchange it, so that a message without a receive, or a receive without a
message, can be named. Pure functions of plain data draw the conclusions, for `inquiry`, `verdict` and
`hpccomm explain`.
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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hpccomm import __version__
from hpccomm.contracts.backend import Facts
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.runtime import recorder
from hpccomm.runtime.recorder import CallRecord
from hpccomm.runtime.service import Voice, after_fork, service

PLANNED, OTHERS = -1, -2
"""Channels of plans' messages, and of undistinguished ones; others are tags without
the dtype."""

CHANNELS = 1024
"""The most channels to distinguish to one peer."""

BLOCKED_SECONDS = 0.25
"""Seconds after which a message is blocked: a message sent without its receiver takes less."""

ANY_TAG = -3, -4
"""The channels, taken together, of arrays of any tag, and of objects."""

TURNS = -5
"""The channel of what `Communicator.in_turn` sends to the next rank; those below are of a window's signals."""

Counts = Sequence[tuple[int, int, int]]
"""By channel: how many messages have begun to be sent, and how many receives have begun."""


class Traffic:
    """The messages of one communicator."""

    def __init__(self) -> None:
        self._cells: dict[int, dict[int, list[int]]] = {}

    def cell(self, peer: int, channel: int) -> list[int]:
        """Return the numbers of messages to a peer that have begun to be sent, and of receives from it.

        Each call counts its messages there, in its turn.
        """
        cells = self._cells.setdefault(peer, {})
        if channel not in cells and len(cells) >= CHANNELS:
            channel = OTHERS
        return cells.setdefault(channel, [0, 0])

    def everything(self) -> dict[int, Counts]:
        """Return the result of `between` for each rank with messages."""
        return {peer: self.between(peer) for peer in sorted(self._cells)}

    def between(self, rank: int) -> Counts:
        """Return how many messages to a rank have begun, and how many receives from it, by channel.

        From any thread. A call that begins at the same time may be counted or not.
        """
        cells = self._cells.get(rank, {}).copy()
        return [(channel, each[0], each[1]) for channel, each in cells.items()]

    def waits(
        self,
        label: CallFingerprint,
        beside: Sequence[CallFingerprint] = (),
        later: Sequence[CallFingerprint] = (),
        *,
        exact: bool = True,
    ) -> list[Facts]:
        """Return the awaited messages of a call: their numbers in the channel and with the peer.

        Where that is not one channel of one rank, they are counted from what was received there.

        Parameters
        ----------
        label : CallFingerprint
            The call.
        beside : sequence of CallFingerprint
            Other calls under way.
        later : sequence of CallFingerprint
            Calls that have begun after it, also those that are over: a small message may overtake a large one.
        exact : bool
            Whether `later` has all of them.
        """
        found: list[Facts] = []
        passed = Counter(end for each in later if not each.ahead for end in each.ends)
        others = {(way, peer) for each in beside for way, peer, _ in each.ends}
        # What is carried out together does not tell how many messages of a channel it has.
        apart = exact and not any(
            each.name == "batch" or PLANNED in {end[2] for end in each.ends} for each in later
        )
        for way, peer, channel in label.ends:
            one = peer is not None and channel not in ANY_TAG
            counts: dict[int, list[int]] = {}
            if peer is not None and one:
                counts = {each: both for each, *both in self.between(peer)}
            index, ahead = (0, 0) if way == "dst" else (1, label.ahead)
            lone = (way, peer) not in others if one else not others
            wait = {
                "way": way,
                "peer": peer,
                "channel": channel,
                "number": counts.get(channel, [0, 0])[index] + ahead - passed[way, peer, channel],
                "of_all": sum(each[index] for each in counts.values()) + ahead,
                # A send may be done while the call waits for something else.
                "sure": (way != "dst" or len(label.ends) == 1)
                and apart
                and (lone or (one and channel != PLANNED)),
                "told_apart": OTHERS not in counts,
                "lone": lone,
                "open": label.ahead > 0,
            }
            found.append(wait)
        return found


def unmatched(wait: Facts, there: Counts, here: Counts = ()) -> bool:
    """Return whether a message that a rank waits for has no counterpart at its peer.

    Parameters
    ----------
    wait : mapping
        The message, and its number among those of its channel, and of all.
    there : list
        The peer's begun messages with that rank, by channel.
    here : list
        Those of the rank with the peer, which tell what a receive from anybody, or of any tag, has received.
    """
    channel = wait["channel"]
    if wait["way"] == "held":
        return True
    begun = {each: sent if wait["way"] == "src" else posted for each, sent, posted in there}
    one = wait["peer"] is not None and channel not in ANY_TAG
    had = {} if one else {each: posted for each, _, posted in here}
    apart = wait["told_apart"] and OTHERS not in {*begun, *had}
    if apart and channel in ANY_TAG:
        kind = ANY_TAG.index(channel)
        begun, had = (
            {each: n for each, n in counts.items() if each >= 0 and each % 2 == kind}
            for counts in (begun, had)
        )
    if channel in ANY_TAG or not apart:
        return bool(wait["lone"] and sum(begun.values()) < wait["of_all"] + sum(had.values()))
    return bool(begun.get(channel, 0) < wait["number"] + had.get(channel, 0))


def unreceived(waiter: Facts, sender: int, there: Counts, here: Counts) -> list[str]:
    """Return the messages to a rank that waits for another message of that sender.

    Parameters
    ----------
    waiter : mapping
        What the rank does.
    sender : int
        The other one.
    there, here : list
        What the sender and the waiting rank have begun between them, by channel.
    """
    posted = {channel: number for channel, _, number in here}
    found = []
    for wait in (waiter.get("now") or {}).get("waits", ()):
        awaited = wait["channel"]
        if (
            (wait["way"], wait["peer"]) != ("src", sender)
            or awaited < 0
            or not unmatched(wait, there)
        ):
            continue
        for channel, sent, _ in sorted(map(tuple, there)):
            left = sent - posted.get(channel, 0)
            if channel >= 0 and left > 0 and channel != awaited:
                what = f"{left} {_kind(channel)[3:]}s" if left > 1 else _kind(channel)
                found.append(
                    f"rank {sender} has sent {what} with tag {channel // 2}, which no rank receives, while "
                    f"{_kind(awaited)} with tag {awaited // 2} is awaited"
                )
    return found


def has_begun(facts: Facts, number: int) -> bool:
    """Whether a rank has begun the call of that number; a message has none, and is never begun.

    Nor is what belongs to the making of a communicator: there ranks number differently.
    """
    return number > 0 and (bool(facts.get("record")) or facts.get("collective", 0) >= number)


class LeftOver(NamedTuple):
    """Unreceived messages of one channel; the channel is `OTHERS` if unknown."""

    sender: int
    receiver: int
    channel: int
    number: int


def left_over(everyone: Mapping[int, Mapping[int, Counts]]) -> list[LeftOver]:
    """Return the unreceived messages, from the messages that ranks have begun with each other."""
    found = []
    for sender, peers in sorted(everyone.items()):
        for receiver, there in peers.items():
            here = everyone[receiver].get(sender, [])
            sent = {channel: number for channel, number, _ in there}
            taken = {channel: number for channel, _, number in here}
            if OTHERS in {*sent, *taken}:
                sent, taken = {OTHERS: sum(sent.values())}, {OTHERS: sum(taken.values())}
            found += [
                LeftOver(sender, receiver, channel, number - taken.get(channel, 0))
                for channel, number in sorted(sent.items())
                if number > taken.get(channel, 0)
            ]
    return found


def in_words(lost: Sequence[LeftOver], origin: recorder.Origin) -> str:
    """Return the first of some messages in words, and how many more there are. `origin` is its sender's."""
    sender, receiver, channel, _ = lost[0]
    what = _kind(channel) if channel >= 0 else "a message"
    for entry in reversed(recorder.calls()):
        label = entry[recorder.LABEL]
        if entry[recorder.ORIGIN] is origin and ("dst", receiver, channel) in label.ends:
            size = f" of {label.nbytes} bytes" if len(label.ends) == 1 else ""
            site = recorder.place(entry)
            what += f"{size}, sent at {site}" if site else size
            break
    more = sum(each.number for each in lost) - 1
    which = f" with tag {channel // 2}" if channel >= 0 else ""
    text = f"a message of rank {sender} to rank {receiver}{which}: {what}"
    return f"{text}; nor {more} more" if more else text


def _kind(channel: int) -> str:
    return "an object" if channel % 2 else "an array"


logger = logging.getLogger("hpccomm")

DIRECTORY = "hpccomm-dumps"
"""Where the last calls go when something fails, unless ``HPCCOMM_DUMP_DIR`` says otherwise."""


class Recorded(Protocol):
    """A communicator, as dumps show it."""

    def flight_facts(self) -> Mapping[str, Any]:
        """Return its ``uid``, ``name``, ``ranks``, ``now`` and ``answers``."""


@dataclass(slots=True)
class Process:
    """The writer of a dump, and its place.

    Attributes
    ----------
    rank, size : int
        Of the job.
    job : str
        Identifies the job, as far as the launcher does; the same on all ranks.
    directory : str
        For dumps after a failure; empty writes none.
    reason : str
        The first failure; others follow from it.
    raised : mapping or None
        The uncaught exception that ends the process, if any: `Mishap.facts`, and its ``"stack"``.
    ended : str
        The last words of a process that ends by itself, or by a signal.
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
    """Have dumps show a communicator as long as it lives."""
    _communicators.add(communicator)


def write(reason: str, *, tell: bool = True) -> None:
    """Write the dump of a failure, where one is asked for. From any thread.

    A failure to write it is logged: it must not hide the first failure. With `tell`, one rank of
    the job prints where the dumps are, or that there are none.
    """
    process.reason = process.reason or reason
    if not process.directory:
        return
    try:
        file, why = _written(process.reason)
    except Exception as error:  # noqa: BLE001 (it must not hide the failure)
        _tell(f"the record of the last calls could not be written: {error!r}")
        return
    if tell and process.raised is None:  # else it follows the exception, by `meaning`
        where = file.parent
        _tell(f"the last calls are in {where}{why}: hpccomm explain {where} says what they mean")


def meaning() -> str:
    """Return the place of the dumps, for the last words; empty if none, or already printed."""
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
    """Write the dump where dumps go, or else for temporary files; return the file, and why it is there."""
    folder = Path(process.directory or DIRECTORY)
    try:
        return write_to(folder / process.job, reason), ""
    except OSError as error:
        import tempfile

        # That of a user: another one could not write into it.
        other = Path(tempfile.gettempdir()) / f"{DIRECTORY}-{os.getuid()}"
        file = write_to(other / process.job, reason)
        if process.directory:
            process.directory = str(other)
        return file, f", as {folder} cannot be written to ({error.strerror or error})"


def dump(directory: str | os.PathLike[str] | None = None, *, reason: str = "on demand") -> Path:
    """Write this process's last calls down, and return the file. Local; from any thread.

    ``hpccomm explain`` joins the files of all ranks and says who is missing or differs. A failure writes them
    by itself, and so does SIGUSR1.

    Parameters
    ----------
    directory : path, optional
        Where ``rank_<rank>.json`` goes; it is made. None takes ``HPCCOMM_DUMP_DIR``, or ``hpccomm-dumps``, and
        in it the directory of the job; where that cannot be written to, a directory in ``TMPDIR``.
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
    shown = [each.flight_facts() for each in list(_communicators)]
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
        "error": error,
    }


def _frame(site: Any) -> dict[str, object]:
    code, _ = site
    return {"name": code.co_qualname, "filename": code.co_filename, "line": recorder.line_of(site)}


# SIGUSR1 dumps the last calls, even if the main thread is stuck.
#
# Python runs signal handlers in the main thread, between two instructions: never, while that is blocked in a
# library. faulthandler's handler runs at once and needs no lock. It writes to a pipe, which the service thread hears.

QUIET_SECONDS = 0.05
"""Nothing more comes of a signal after so long."""

_installed = False


def install() -> None:
    """Dump the last calls at SIGUSR1, unless the program has a use for it. Idempotent."""
    global _installed
    if not _installed and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        service.hear(reading, partial(_asked, reading))
        service.start()
        faulthandler.register(signal.SIGUSR1, file=writing, all_threads=False)
        _installed = True


def _asked(reading: int) -> None:
    time.sleep(QUIET_SECONDS)  # the handler writes a stack in pieces: all of them are one signal
    with contextlib.suppress(BlockingIOError):
        while os.read(reading, 1 << 16):
            pass
    try:
        dump(reason="SIGUSR1")
    except Exception as error:  # noqa: BLE001 (the next signal must still be heard)
        logger.warning("the last calls could not be written: %r", error)


@after_fork
def _after_fork() -> None:
    # The child has other calls, if any, and leaves the parent's file alone.
    global _communicators, _writing, _told, _installed
    process.rank, process.size, process.job, process.directory, process.reason = 0, 1, "", "", ""
    process.raised, process.ended = None, ""
    _communicators, _writing, _told = weakref.WeakSet(), threading.Lock(), False
    if _installed:  # what the pipe wakes is the parent's
        _installed = False
        faulthandler.unregister(signal.SIGUSR1)
