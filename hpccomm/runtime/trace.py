"""A recording of this rank's calls while the program runs: it takes their records, and makes columns of them.

`Reports` gives it each call when it has ended, and `Work` says when the program waits for one. A call costs a
quarter of a microsecond then. A thread does the rest for thousands at a time, with loops of the
interpreter's own. `hpccomm.communicator.recording` writes what it gives.
"""

import logging
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from threading import Event, Lock, get_ident
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.runtime.lifetime import start_thread
from hpccomm.runtime.recorder import (
    ASYNC,
    BEGIN,
    DEVICE,
    ENDED,
    ERROR,
    LABEL,
    MODE,
    NUMBER,
    ORIGIN,
    POLLED,
    SEQUENCE,
    SITE,
    CallRecord,
)

logger = logging.getLogger("hpccomm")

BUFFER, ASKED, WAITED, STREAM = range(10, 14)
"""Places in the record of a call that is taken, behind the ones of `hpccomm.runtime.recorder`: the identity of its
memory; when the program began to wait for it; for how many seconds it was blocked; and the stream."""

THROUGHOUT = UNASKED = -1.0
"""The program was blocked from the beginning to the end. It has not waited for the call yet."""

BLOCK = 1 << 12
"""Calls of a block."""

EVERY_SECONDS = 1.0
"""How often calls are written, at least."""

LATE_SECONDS = 2.0
"""How long a call that has ended is kept for the program to wait for it."""

SEEN_SECONDS = 0.5
"""How long the end waits until the calls on streams are seen to be over."""

MOST = 1 << 18
"""Calls in memory. Where writing takes longer than making them, the recording ends."""

KNOWN = 1 << 14
"""Signatures whose objects are kept."""

MARK = CallFingerprint("step", 0)


class Trace:
    """Takes the calls of one rank, from any thread. That of the program is the one that makes it.

    Parameters
    ----------
    number : callable
        ``number(entry)`` returns the number of a call's signature.
    add_calls : callable
        Writes calls: columns by the names of `hpccomm.results.recording.CALL_COLUMNS`, with times of this rank's clock.
    write : callable
        Brings to the file what was given.

    Attributes
    ----------
    failure : str
        Why calls are missing; empty if none are.
    """

    def __init__(
        self,
        number: Callable[[CallRecord], int],
        add_calls: Callable[[dict[str, NDArray[Any]]], object],
        write: Callable[[], object],
    ) -> None:
        self.failure = ""
        self._number, self._add_calls, self._bring = number, add_calls, write
        self._new: list[Any] = []  # one call's values, then the next one's
        self._late: list[CallRecord] = []
        self._most = MOST
        self._known: dict[int, int] = {}
        self._kept: list[object] = []  # what `_known` has the identities of
        self._beside: deque[CallRecord] = deque(maxlen=BLOCK)
        self._thread = get_ident()
        self._writing = Lock()
        self._wake = Event()
        self._ended = False
        start_thread("hpccomm-recording", self._run)

    # What calls do. It is short.

    def take(self, entry: CallRecord, held: Any) -> None:
        """Take a call that has ended, or is on a stream, with what keeps its arrays."""
        if entry[SEQUENCE] <= 0 or len(entry) > BUFFER:
            return  # a part of making a communicator; or taken already
        origin, _, number, label, mode, site, begin, _, seconds, error = entry
        stream = 0
        if mode is DEVICE and error is None:
            if held is None:
                return  # recorded into a graph: it is not under way
            held, stream = held
        while held.__class__ is tuple:
            held = (held[0] if held[0] is not None else held[1:]) if held else None
        buffer = 0
        if held is not None:
            base = getattr(held, "base", None)
            buffer = id(held if base is None else base)
        if mode is DEVICE:
            # It took so long to put it there.
            entry += (buffer, 0.0, perf_counter() - begin, stream)
            self._late.append(entry)
        elif mode is ASYNC or get_ident() != self._thread:
            entry += (buffer, UNASKED, 0.0, 0)
            self._late.append(entry)
            if mode is not ASYNC:  # such as one of gradients: the program goes on beside it
                self._beside.append(entry)
        elif error is not None:  # it may be taken again
            entry += (buffer, 0.0, THROUGHOUT, 0)
            self._late.append(entry)
        else:
            new = self._new
            new += (origin, label, site or _NOWHERE, mode, number, begin, seconds, buffer)
            if len(new) >= BLOCK_VALUES:
                self._full(new)

    def _full(self, new: list[Any]) -> None:
        if len(new) == BLOCK_VALUES:
            self._wake.set()
        elif len(new) > self._most * WIDTH:
            del new[-WIDTH:]
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
        self.take([None, 1, 0, MARK, POLLED, _NOWHERE, perf_counter(), 0.0, 0.0, None], None)

    # What becomes of them.

    def _run(self) -> None:
        due = 0.0
        while not self._ended:
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            now = perf_counter()
            self.flush(file=now > due)
            if now > due:
                due = now + EVERY_SECONDS

    def flush(self, *, file: bool = True, last: bool = False) -> None:
        """Write the calls that are over, with `file` to the file, and with `last` all of them. From any thread."""
        until = perf_counter() + SEEN_SECONDS if last else 0.0
        while perf_counter() < until and any(each[ENDED] is None for each in self._late[:]):
            sleep(0.01)
        with self._writing:
            values = self._new[:]
            del self._new[: len(values)]
            late = self._over(last)
            try:
                if (values or late) and not self._ended:
                    self._add_calls(self._columns(values, late))
                if file and not self._ended:
                    self._bring()
            except Exception as error:  # noqa: BLE001 (in any case, the program goes on)
                self._most, self._ended = 0, True
                self.failure = self.failure or str(error)
                logger.warning("the recording of the program ends: %s", error)
            self._ended = self._ended or last
            if last:
                self._wake.set()

    def _over(self, last: bool) -> list[CallRecord]:
        """Return the late calls that are over and waited for, or long over; with `last` all of them."""
        late, over, now = self._late[:], [], perf_counter()
        del self._late[: len(late)]
        for entry in late:
            if last and entry[ENDED] is None:
                entry[ENDED], entry[ERROR] = now - entry[BEGIN], "it has not ended"
            seconds, asked = entry[ENDED], entry[ASKED] != UNASKED
            if last or (
                seconds is not None and (asked or entry[BEGIN] + seconds < now - LATE_SECONDS)
            ):
                entry[SITE] = entry[SITE] or _NOWHERE
                over.append(entry)
            else:
                self._late.append(entry)
        return over

    def _columns(self, values: list[Any], late: list[CallRecord]) -> dict[str, NDArray[Any]]:
        """Return the columns of calls that blocked the program, by their values, and behind them of others."""
        before = len(values) // WIDTH
        for entry in late:
            values += _values(entry)
        count = len(values) // WIDTH

        def numbers(place: int, kind: str = "i8") -> NDArray[Any]:
            return np.fromiter(values[_PLACES.index(place) :: WIDTH], kind, count)

        began = numbers(BEGIN, "f8")
        begin, end = _nanoseconds(began), _nanoseconds(began + numbers(ENDED, "f8"))
        asked, stream, waited = np.zeros(count, "i8"), np.zeros(count, "i8"), end - begin
        failed, throughout = np.zeros(count, "u1"), np.ones(count, bool)
        for at, entry in enumerate(late, before):
            asked[at], stream[at] = max(entry[ASKED], 0.0) * 1e9, entry[STREAM]
            failed[at], throughout[at] = entry[ERROR] is not None, entry[WAITED] == THROUGHOUT
            if entry[WAITED] != THROUGHOUT:
                waited[at] = entry[WAITED] * 1e9
        return {
            "signature": self._signatures(values, throughout),
            "number": numbers(NUMBER),
            "begin": begin,
            "end": end,
            "asked": asked,
            "waited": waited,
            "buffer": numbers(BUFFER),
            "stream": stream,
            "failed": failed,
        }

    def _signatures(self, values: list[Any], throughout: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the number of the signature of each call.

        It is found by the identities of what it consists of, which is kept so that they stay its own.
        """
        count, known = len(throughout), self._known
        origins, labels, sites = (values[place::WIDTH] for place in range(3))
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
                row = values[first * WIDTH : (first + 1) * WIDTH]
                entry: CallRecord = [None] * (STREAM + 1)
                for place, value in zip(_PLACES, row, strict=True):
                    entry[place] = value
                entry[WAITED] = THROUGHOUT if throughout[first] else 0.0
                known[key] = self._number(entry)
                self._kept.append(row[:3])
            numbers.append(known[key])
        placed: NDArray[np.int32] = np.array(numbers, "i4")[which]
        return placed


_PLACES = (ORIGIN, LABEL, SITE, MODE, NUMBER, BEGIN, ENDED, BUFFER)
_values = itemgetter(*_PLACES)
WIDTH = len(_PLACES)
"""Values of a call."""
BLOCK_VALUES = BLOCK * WIDTH
_NOWHERE = Trace.step.__code__, 0
_MIXER = np.uint64(0x9E3779B97F4A7C15)


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return (seconds * 1e9).astype(np.int64)
