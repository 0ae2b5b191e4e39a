"""One call on twins in device memory: its arrays, its work, and the wait for it.

`mirrored` makes one for each call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.memory.cuda import streams
from hpccomm.runtime.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.runtime.progress import ProgressEngine
    from hpccomm.testing.mirrors import Mirror, Mirrors

PATIENCE = 60.0
"""Seconds after which a device that is not done counts as never."""


class Use:
    """The arrays of one call: on the host, and their twins.

    Parameters
    ----------
    mirrors : Mirrors
        Of the rank.
    what : str
        The call, for messages.
    """

    def __init__(self, mirrors: Mirrors, what: str) -> None:
        self._mirrors = mirrors
        self._what = what
        self._arrays: list[tuple[Any, Any, Mirror | None]] = []
        self._kept: list[object] = []
        self.over = True

    def twin(self, x: Any) -> Any:
        """Return an argument's twin on the device; anything but an array is itself."""
        if not isinstance(x, np.ndarray):
            return x
        twin = self._mirrors.twin(x)
        # The call refuses arrays that are not contiguous.
        self._arrays.append((x, twin, self._mirrors.of(x) if x.flags.c_contiguous else None))
        return twin

    def begin(self) -> None:
        """Put the arrays' contents into their twins."""
        stream = int(self._mirrors.stream.ptr)
        self.over = False
        self._kept = [mirror.send(x, stream) for x, _, mirror in self._arrays if mirror is not None]

    def end(self, result: Any, *, failed: bool = False) -> Any:
        """Return a call's result on the host, once the device is done; or note that it failed."""
        if isinstance(result, tuple):  # with the counts
            array, *counts = result
            return (self.end(array, failed=failed), *counts)
        if self.over:
            return None
        self.over = True
        results = None
        for x, twin, mirror in self._arrays:
            if result is twin:
                results = x
                if mirror is not None and not failed:
                    mirror.receive(x, self._mirrors.back)
        if result is not None and results is None and not failed:
            results = self._mirrors.fetch(result)
        for _, _, mirror in self._arrays:
            if mirror is not None:
                mirror.leave(self._mirrors.back, self._what, failed=failed)
        self._kept = []
        return results

    def named(self, result: Any) -> Any:
        """Return the host's array for a call's result before it is there; None if that is new."""
        if isinstance(result, tuple):
            array, *counts = result
            return (self.named(array), *counts)
        return next((x for x, twin, _ in self._arrays if result is twin), None)


class MirroredWork(Work):
    """A work whose result is on the host once it was waited for.

    Parameters
    ----------
    work : Work
        Of the device's call.
    issued : sequence of (Use, object)
        The arrays of its calls, and what each call returned; for a single call, its work.
    mirrors : Mirrors
        Of the rank.
    """

    __slots__ = ("_issued", "_lent", "_mirrors", "_outcome")

    def __init__(self, work: Work, issued: list[tuple[Use, Any]], mirrors: Mirrors) -> None:
        self._asked = True  # the device's is asked
        self._lent = work
        self._issued = issued
        self._mirrors = mirrors
        self._outcome: Any = None

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Wait as the device's work does, and then until the result is on the host."""
        mirrors = self._mirrors
        try:
            with mirrors.current():
                # Without arguments it orders the stream, which is then waited for.
                result = self._lent.wait(timeout, block)
                wait_for(mirrors, self._lent)
        except TimeoutError:  # it goes on
            raise
        except BaseException:
            self._end(None, failed=True)
            raise
        self._end(result)
        return self._outcome

    def done(self) -> bool:
        """Return whether it is over. Does not block."""
        return self._lent.done()

    def exception(self) -> BaseException | None:
        """Return its error, if any. Does not block."""
        return self._lent.exception()

    @property
    def progress(self) -> ProgressEngine | None:
        """What moves the device's work on."""
        return self._lent.progress

    def looked(self, *, ask: bool = True) -> bool:
        """Return whether it is over."""
        return self._lent.looked(ask=ask)

    def described(self) -> str:
        """Return the device's call in words."""
        return self._lent.described()

    def add_done_callback(self, call: Callable[[], object]) -> None:
        """Have the device's work call a function."""
        self._lent.add_done_callback(call)

    def settled(self) -> bool:
        """Return whether it is over; its result is on the host then, if it has one."""
        if not self._lent.done():
            return False
        failed = self._lent.exception() is not None
        self._end(None if failed else self._lent.wait(), failed=failed)
        return True

    def __repr__(self) -> str:
        return f"<on the device: {self._lent!r}>"

    def _end(self, result: Any, *, failed: bool = False) -> None:
        for use, returned in self._issued:
            if not use.over:
                final = use.end(result if returned is self._lent else returned, failed=failed)
                if returned is self._lent:
                    self._outcome = final


def wait_for(mirrors: Mirrors, work: Work | None = None) -> None:
    """Wait for all work on the rank's stream, or raise the failure of `work`."""
    event = streams.make_event()
    try:
        streams.record(event, mirrors.stream.ptr)
        deadline = time.monotonic() + PATIENCE
        while not streams.ready(event):
            if work is not None and work.exception() is not None:
                work.wait(block=True)
            assert time.monotonic() < deadline, f"the device was not done after {PATIENCE:g} s"
            time.sleep(0)
    finally:
        streams.drop_event(event)
