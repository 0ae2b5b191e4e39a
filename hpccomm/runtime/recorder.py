"""The flight recorder: the last calls of this process, on all its communicators.

A call is recorded when it begins, as one list that is never copied: recording costs a tenth of a
microsecond. All other work is done on request. Dumps, messages and hooks read the records.

A `Trace` records all calls of this rank while the program runs: it keeps their records until they are written.
`Reports` gives it each call when it has ended, and `Work` says when the program waits for one. A call
costs a quarter of a microsecond then. A thread makes columns of thousands at a time, with loops of the
interpreter's own. `hpccomm.communicator.recording` writes the columns.
"""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from threading import Event, Lock, get_ident
from time import perf_counter, sleep
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import CallFingerprint
from hpccomm.runtime.service import after_fork, no_garbage_collection, start_thread

CAPACITY = 4096
"""Calls that are kept of each communicator."""

ENDED_CALLS = 128
"""Calls that are kept of all communicators that have ended."""

# Places in an entry. A list is made three times as fast as an object with slots.
ORIGIN, SEQUENCE, NUMBER, LABEL, MODE, SITE, BEGIN, TIMEOUT, ENDED, ERROR = range(10)

CallRecord = list[Any]
"""One call: its `Origin`; its number among all calls of the communicator; its number among those that
all ranks make in one order (0: a message); its `CallFingerprint`; how it waits (`POLLED`, ...); its `Site`; when
it began (``time.perf_counter``); its deadline in seconds; the seconds it took (None: under way); what
ended it (None: nothing). While its program is recorded, more follows: see `hpccomm.runtime.recorder`."""

POLLED, BLOCKING, ASYNC, DEVICE = "polled", "blocking", "asynchronous", "device"
"""How a call waits: in a loop that polls; in the library; in the progress thread; on a stream."""

Site = tuple[CodeType, int]
"""Where in the program: the code, and the offset of its instruction. No frame: that would keep arrays."""

PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
"""As code objects have it: as it was found, maybe by a symbolic link."""
STANDARD = f"{Path(os.__file__).parent}{os.sep}"


class Origin(NamedTuple):
    """The communicator of a call.

    Attributes
    ----------
    uid : str
        The same on all its ranks, and of no other communicator.
    name : str
        Its name.
    rank, size : int
        This rank, and the number of ranks.
    """

    uid: str
    name: str
    rank: int
    size: int


Ring = deque[CallRecord]
"""The last calls of a communicator."""

_rings: WeakValueDictionary[int, Ring] = WeakValueDictionary()  # by identity
_ended: Ring = deque(maxlen=ENDED_CALLS)


def ring(capacity: int) -> Ring:
    """Return where a communicator keeps its last calls, as long as it holds that."""
    made: Ring = deque(maxlen=capacity)
    _rings[id(made)] = made
    return made


def end(kept: Ring) -> None:
    """Keep a communicator's calls among those of all that have ended."""
    last = [*copied(_ended), *copied(kept)[-ENDED_CALLS:]]
    _ended.clear()
    _ended.extend(sorted(last, key=itemgetter(BEGIN)))


def calls() -> list[CallRecord]:
    """Return the last calls of all communicators, the oldest first. From any thread."""
    rings = [_ended, *filter(None, [each() for each in _rings.valuerefs()])]
    entries = [entry for each in rings for entry in copied(each)]
    return sorted(entries, key=itemgetter(BEGIN))[-CAPACITY:]


def copied(kept: Ring) -> list[CallRecord]:
    """Return the calls that are kept of a communicator, the oldest first. From any thread."""
    while True:
        try:
            return list(kept)
        except RuntimeError:  # a call began at the same time
            continue


def find(kept: Ring, number: int) -> CallRecord | None:
    """Return the ordered call of that number of a communicator, or None if it is not kept."""
    return next((each for each in reversed(copied(kept)) if each[NUMBER] == number), None)


@after_fork
def _after_fork() -> None:
    global _looking
    for each in (_ended, *_rings.values()):
        each.clear()
    _entrances.clear()
    _looking = threading.RLock()


caller = sys._getframe  # noqa: SLF001 (CPython's and PyPy's, and what logging uses)
"""``caller(n)`` returns the frame n levels above the function that calls it."""


_entrances: deque[tuple[float, str, Site]] = deque(maxlen=CAPACITY)


def entered(site: Site | None = None, *, file: str = "") -> Site | None:
    """Note and return where the program is, which calls what makes calls of communicators for it, now or in a thread.

    With a `site`, that is where it is. `file` is in the package that makes the calls, where it is another one.

    Calls that the package of the caller makes are said to be made there: no line of hpccomm says anything
    to users who read of them. Calls that other packages of hpccomm make are not: they may be made long after.
    """
    here = caller(1)
    if site := site or site_of(own_frame(here)):
        _entrances.append((time.perf_counter(), file or here.f_code.co_filename, site))
    return site


CALLED = ("communicator", "runtime")
"""Packages of hpccomm that make calls only for others."""


def _package_of(file: str) -> str:
    """Return the name of the package of hpccomm that a file of it is in."""
    return file[len(PACKAGE) :].partition(os.sep)[0]


def program_site(site: Site | None, moment: float | None = None) -> Site | None:
    """Return a site as that of the program; None if that is not known.

    Parameters
    ----------
    site : tuple or None
        Where a call was made.
    moment : float, optional
        When, as ``time.perf_counter`` counts; by default now.
    """
    if site is None or _outside_hpccomm(site[0].co_filename):
        return site
    if _of_standard(site[0].co_filename):
        return None
    package = _package_of(site[0].co_filename)
    for at, file, entrance in reversed(list(_entrances)):
        if (moment is None or at <= moment) and _package_of(file) == package:
            return entrance
    return None


def user_frame() -> FrameType | None:
    """Return the innermost frame of the calling thread that is the program's; else, of what is installed.

    Without one, in a thread of hpccomm's it is the frame of what calls the communicator there.
    """
    here = caller(1)
    frame = own_frame(here)
    if frame is not None or not threading.current_thread().name.startswith("hpccomm"):
        return frame
    while here.f_back is not None and _package_of(here.f_code.co_filename) in CALLED:
        here = here.f_back
    return here


def user_site() -> Site | None:
    """Return where `user_frame` is."""
    return site_of(user_frame())


def site_of(frame: FrameType | None) -> Site | None:
    """Return where a frame is."""
    return None if frame is None else (frame.f_code, frame.f_lasti)


def site_of_traceback(where: TracebackType | None) -> Site | None:
    """Return the innermost place of a traceback that is the program's; of a library if there is no such."""
    site: Site | None = None
    own: Site | None = None
    while where is not None:
        file = where.tb_frame.f_code.co_filename
        if _outside_hpccomm(file):
            site = where.tb_frame.f_code, where.tb_lasti
            own = site if of_program(file) else own
        where = where.tb_next
    return own or site


def described(site: Site | None, moment: float | None = None) -> str:
    """Return a site of the program in words, such as ``"step(), train.py line 41"``; empty if it is not known.

    Parameters are as of `program_site`.
    """
    site = program_site(site, moment)
    if site is None:
        return ""
    code, _ = site
    line = f"{Path(code.co_filename).name} line {line_of(site)}"
    return line if code.co_name == "<module>" else f"{code.co_qualname}(), {line}"


def place(entry: CallRecord) -> str:
    """Return where a call was made, in words; empty if it is not known."""
    return described(entry[SITE], entry[BEGIN])


def waited(entry: CallRecord) -> float:
    """Return the seconds since a call began."""
    begin: float = entry[BEGIN]
    return time.perf_counter() - begin


def line_of(site: Site) -> int:
    """Return the line of a site."""
    code, offset = site
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def in_use(communicator: str, site: Site | None) -> str:
    """Return in words why a call has to wait for the one under way, which was made at `site`."""
    frame = user_frame()
    while frame is not None and (frame := frame.f_back) is not None:
        if (frame.f_code, frame.f_lasti) == site:
            return (
                f"communicator {communicator!r} is in the midst of the call at {described(site)}, which has led to "
                "this one: by a signal's handler, a hook, or a method of an object; note there what is to be done, "
                "and do it when the call has returned, or use another communicator, which dup() makes beforehand"
            )
    return (
        f"communicator {communicator!r} is in use by another thread; one thread at a time may call it (dup() gives "
        "a communicator of its own to each)"
    )


def doing() -> str:
    """Return where the main thread is now in the program, in words; empty if it is not known.

    A program that waits is often in the standard library, and so is one whose signal is handled: the
    line of its own that led there says more.
    """
    return _doing(threading.main_thread())


def _doing(thread: threading.Thread) -> str:
    return described(site_of(own_frame(frames().get(thread.ident or 0))))


def handled() -> dict[str, object] | None:
    """Return the facts of the exception that the main thread is handling, as of `Mishap`, without their moment."""
    main = threading.main_thread().ident or 0
    with _looking, no_garbage_collection():
        error: Any = sys._current_exceptions().get(main)  # noqa: SLF001 (as `frames`)
    if isinstance(error, tuple):  # up to Python 3.11
        error = error[1]
    if error is None:
        return None
    return {"error": in_words(error), "site": described(site_of_traceback(error.__traceback__))}


def lingering() -> str:
    """Return in words the thread that keeps a process whose main thread has ended; empty without one."""
    main = threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    if main.is_alive() or not threads:
        return ""
    where = _doing(threads[0])
    return f"its thread {threads[0].name!r}{f' at {where}' if where else ''}"


def own_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is the program's; without one, that of what is installed."""
    installed = None
    while frame is not None:
        file = frame.f_code.co_filename
        if of_program(file):
            return frame
        if installed is None and _outside_hpccomm(file):
            installed = frame
        frame = frame.f_back
    return installed


@cache
def _outside_hpccomm(file: str) -> bool:
    """Whether a file is outside hpccomm and the standard library."""
    return not _of_standard(file) and not file.startswith(PACKAGE)


@cache
def of_program(file: str) -> bool:
    """Whether a file is the program's: outside hpccomm, Python's own library and what is installed.

    Frames in tracebacks that Cython made name its source, as ``h5py/h5f.pyx``, wherever that was compiled.
    """
    return (
        _outside_hpccomm(file) and "-packages" not in file and not file.endswith((".pyx", ".pxi"))
    )


def in_standard(frame: FrameType) -> bool:
    """Whether a frame is of Python's own library."""
    return _of_standard(frame.f_code.co_filename)


def _of_standard(file: str) -> bool:
    return file.startswith((STANDARD, "<frozen ")) and "-packages" not in file


class Mishap(NamedTuple):
    """An error of the program, in the form sent to others.

    Attributes
    ----------
    error : str
        Its class and its words.
    site : tuple or None
        Where in the program.
    moment : float
        When, as ``time.perf_counter`` counts.
    """

    error: str
    site: Site | None
    moment: float

    def facts(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "error": self.error,
            "site": described(self.site),
            "ago": round(time.perf_counter() - self.moment, 3),
        }


LONGEST_ERROR = 2000
"""Characters that are kept of an error's words."""


def in_words(error: BaseException) -> str:
    """Return an error's class and its words, which `KeyboardInterrupt` and others do not have."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 (the program's class)
        words = "its words could not be made"
    return f"{type(error).__name__}: {words}".removesuffix(": ")


def mishap(error: BaseException, site: Site | None) -> Mishap:
    """Return an error in the form sent to others."""
    return Mishap(in_words(error)[:LONGEST_ERROR], site, time.perf_counter())


_looking = threading.RLock()  # a signal's handler may look while its own thread does


def frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by its number. From any thread, and from handlers of signals.

    Up to Python 3.11 the interpreter holds a lock of its own meanwhile. A garbage collection that begins there may
    run Python code, and so let another thread run that waits for that lock and never lets this one go on:
    https://github.com/python/cpython/issues/106883. So there must be none.
    """
    with _looking, no_garbage_collection():
        return sys._current_frames()  # noqa: SLF001 (what faulthandler shows, as objects)


def unix_ns(moment: float) -> int:
    """Return a moment of ``time.perf_counter`` as nanoseconds of Unix time."""
    return time.time_ns() - int((time.perf_counter() - moment) * 1e9)


def stacks() -> Iterator[str]:
    """Return the stacks of all threads, in words."""
    import traceback  # needed once, when something is wrong

    names = {each.ident: each.name for each in threading.enumerate()}
    for ident, frame in frames().items():
        lines = "".join(traceback.format_stack(frame))
        yield f"thread {names.get(ident, '?')} ({ident}):\n{lines}"


logger = logging.getLogger("hpccomm")

BUFFER, ASKED, WAITED, STREAM = range(10, 14)
"""Fields that a trace appends to the record of a call: the identity of its memory; when the program began to wait for
it; for how many seconds it was blocked; and the stream."""

THROUGHOUT = UNASKED = -1.0
"""Values of `WAITED`: the program was blocked from the beginning to the end, or it has not waited for the call yet."""

BLOCK = 1 << 12
"""Number of calls in a block."""

EVERY_SECONDS = 1.0
"""How often calls are written, at least."""

LATE_SECONDS = 2.0
"""How long a call that has ended is kept for the program to wait for it."""

SEEN_SECONDS = 0.5
"""How long the end waits until the calls on streams are seen to be over."""

MOST = 1 << 18
"""The most calls in memory. Further ones are left out."""

KNOWN = 1 << 14
"""Signatures whose objects are kept."""

MARK = CallFingerprint("step", 0)


class Trace:
    """Takes the calls of one rank, from any thread. The thread that makes the trace is the program's.

    Parameters
    ----------
    number : callable
        ``number(origin, label, mode, site)`` returns the number of a call's signature. The origin of a mark is None.
    add_calls : callable
        Writes calls: columns by the names of `hpccomm.results.recording.CALL_COLUMNS`, with times of this rank's clock.
    write : callable
        Writes the added calls to the file.
    thread : int, optional
        The identifier of the program's thread; by default that of the one that makes the trace.

    Attributes
    ----------
    failure : str
        Why calls are missing; empty if none are.
    """

    def __init__(
        self,
        number: Callable[[Origin | None, CallFingerprint, str, str], int],
        add_calls: Callable[[dict[str, NDArray[Any]]], object],
        write: Callable[[], object],
        thread: int | None = None,
    ) -> None:
        self.failure = ""
        self._number, self._add_calls, self._write = number, add_calls, write
        self._new: list[CallRecord] = []
        self._late: list[CallRecord] = []
        self._most = MOST
        self._known: dict[int, int] = {}
        self._kept: list[object] = []  # what `_known` has the identities of
        self._beside: deque[CallRecord] = deque(maxlen=BLOCK)
        self._thread = get_ident() if thread is None else thread
        self._writing = Lock()
        self._wake = Event()
        self._ended, self._due = False, 0.0
        start_thread("hpccomm-recording", self._run)

    # The next methods run in each call, so they are short.

    def take(self, entry: CallRecord, held: Any) -> None:
        """Take a call that has ended, or is on a stream, with the object that keeps its arrays."""
        if entry[SEQUENCE] <= 0 or len(entry) > BUFFER:
            return  # a part of making a communicator; or taken already
        mode, stream = entry[MODE], 0
        on_device = mode is DEVICE and entry[ERROR] is None
        if on_device:
            if held is None:
                return  # recorded into a graph: it is not under way
            held, stream = held
        while held.__class__ is tuple:
            held = (held[0] if held[0] is not None else held[1:]) if held else None
        buffer = 0
        if held is not None:
            base = getattr(held, "base", None)
            buffer = id(held if base is None else base)
        if on_device:
            # The time to put it there blocked the program.
            entry += (buffer, 0.0, perf_counter() - entry[BEGIN], stream)
            self._late.append(entry)
        elif mode is ASYNC or get_ident() != self._thread:
            entry += (buffer, UNASKED, 0.0, 0)
            self._late.append(entry)
            if mode is not ASYNC:  # such as one of gradients: the program goes on beside it
                self._beside.append(entry)
        elif entry[ERROR] is not None:
            entry += (buffer, 0.0, THROUGHOUT, 0)
            self._late.append(entry)
        else:
            entry += (buffer, 0.0, THROUGHOUT, 0)
            new = self._new
            new.append(entry)
            if len(new) >= BLOCK:
                self._full(new)

    def _full(self, new: list[CallRecord]) -> None:
        if len(new) == BLOCK:
            self._wake.set()
        elif len(new) > self._most:
            del new[-1:]
            self.failure = self.failure or "the calls came faster than they could be written"

    def waited(self, entry: CallRecord, asked: float) -> None:
        """Note that the program began to wait for a call at a moment, and is done."""
        if len(entry) > ASKED and entry[ASKED] == UNASKED:
            entry[WAITED] += (
                perf_counter() - asked
            )  # on a device, the time to put it there has been noted
            entry[ASKED] = asked

    def rejoined(self, asked: float) -> None:
        """Note that the program has waited, from a moment until now, for the calls that other threads have made."""
        before = asked
        while self._beside:
            entry = self._beside.popleft()
            begin = entry[BEGIN]
            end = begin + entry[ENDED]
            entry[WAITED], entry[ASKED] = max(0.0, end - max(before, begin)), max(asked, begin)
            before = max(before, end)

    def apart(self, entry: CallRecord, stream: int) -> None:
        """Note that the program will wait for a call that was put on another stream than its arrays'."""
        if len(entry) > BUFFER:
            entry[STREAM], entry[ASKED] = stream, UNASKED

    def step(self) -> None:
        """Mark the end of a step of the program."""
        self.take([None, 1, 0, MARK, POLLED, None, perf_counter(), 0.0, 0.0, None], None)

    # A thread runs these.

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write the calls that are over, with `last` all of them, and to the file if that is due. From any thread."""
        until = perf_counter() + SEEN_SECONDS if last else 0.0
        while perf_counter() < until and any(each[ENDED] is None for each in self._late[:]):
            sleep(0.01)
        with self._writing:
            new = self._new[:]
            del self._new[: len(new)]
            late = self._over(last)
            try:
                if (new or late) and not self._ended:
                    self._add_calls(self._columns(new, late))
                now = perf_counter()
                if (last or now > self._due) and not self._ended:
                    self._write()
                    self._due = now + EVERY_SECONDS
            except Exception as error:  # noqa: BLE001 (in any case, the program goes on)
                self._most, self._ended = 0, True
                self.failure = self.failure or str(error)
                logger.warning("the recording of the program ends: %s", error)
            self._ended = self._ended or last
            if last:
                self._wake.set()

    def _over(self, last: bool) -> list[CallRecord]:
        """Take out and return the late calls that are over and waited for, or long over; with `last`, all.

        The first ones go too when there are too many: those of a program that waits for none of them.
        """
        late, over, now = self._late[:], [], perf_counter()
        del self._late[: len(late)]
        for at, entry in enumerate(late):
            goes = last or at < len(late) - self._most
            if goes and entry[ENDED] is None:
                entry[ENDED], entry[ERROR] = now - entry[BEGIN], "it has not ended"
            seconds, asked = entry[ENDED], entry[ASKED] != UNASKED
            if goes or (
                seconds is not None and (asked or entry[BEGIN] + seconds < now - LATE_SECONDS)
            ):
                over.append(entry)
            else:
                self._late.append(entry)
        return over

    def _columns(self, new: list[CallRecord], late: list[CallRecord]) -> dict[str, NDArray[Any]]:
        """Return the columns of calls: first those that blocked the program, then the others."""
        entries = new + late
        count = len(entries)

        def numbers(place: int, kind: str = "i8") -> NDArray[Any]:
            return np.fromiter(map(itemgetter(place), entries), kind, count)

        began = numbers(BEGIN, "f8")
        begin, end = _nanoseconds(began), _nanoseconds(began + numbers(ENDED, "f8"))
        asked, stream, waited = np.zeros(count, "i8"), np.zeros(count, "i8"), end - begin
        failed, throughout = np.zeros(count, "u1"), np.ones(count, bool)
        for at, entry in enumerate(late, len(new)):
            asked[at], stream[at] = max(entry[ASKED], 0.0) * 1e9, entry[STREAM]
            failed[at], throughout[at] = entry[ERROR] is not None, entry[WAITED] == THROUGHOUT
            if entry[WAITED] != THROUGHOUT:
                waited[at] = entry[WAITED] * 1e9
        return {
            "signature": self._signatures(entries, throughout),
            "number": numbers(NUMBER),
            "begin": begin,
            "end": end,
            "asked": asked,
            "waited": waited,
            "buffer": numbers(BUFFER),
            "stream": stream,
            "failed": failed,
        }

    def _signatures(
        self, entries: list[CallRecord], throughout: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """Return the number of the signature of each call.

        It is looked up by the identities of its parts. These are kept, so that no other object gets their identities.
        """
        count, known = len(entries), self._known
        labels, origins = (map(itemgetter(place), entries) for place in (LABEL, ORIGIN))
        sites = [entry[SITE] or _NOWHERE for entry in entries]
        mixed = np.fromiter(map(itemgetter(1), sites), "u8", count) * _MIXER + throughout
        for parts in (labels, origins, map(itemgetter(0), sites)):
            mixed *= _MIXER
            mixed += np.fromiter(map(id, parts), "u8", count)
        keys, firsts, which = np.unique(mixed, return_index=True, return_inverse=True)
        if len(known) > KNOWN:
            known.clear()
            self._kept.clear()
        numbers = []
        for key, first in zip(keys.tolist(), firsts.tolist(), strict=True):
            if key not in known:
                entry, mode = entries[first], entries[first][MODE]
                if entry[WAITED] != THROUGHOUT and mode != DEVICE:
                    mode = ASYNC  # also a call that blocked another thread than its caller's
                known[key] = self._number(entry[ORIGIN], entry[LABEL], mode, place(entry))
                self._kept.append(entry)
            numbers.append(known[key])
        placed: NDArray[np.int32] = np.array(numbers, "i4")[which]
        return placed


_NOWHERE = None, 0
_MIXER = np.uint64(0x9E3779B97F4A7C15)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return (seconds * 1e9).astype(np.int64)
