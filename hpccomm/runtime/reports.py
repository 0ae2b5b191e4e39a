"""Reports of one communicator's calls: hooks, statistics, the log, and errors.

`engine`, `callpath` and `work` report each call here, and `state` gives errors their facts. `Communicator.stats` and
hooks read it.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import get_ident
from typing import TYPE_CHECKING, Generic, TypeVar

from hpccomm.errors import CommunicationError, UsageError
from hpccomm.runtime.recorder import LABEL, NUMBER, SEQUENCE, CallRecord, Origin
from hpccomm.runtime.service import after_fork
from hpccomm.spelling import Hinting

if TYPE_CHECKING:
    from hpccomm.runtime.recorder import Trace

logger = logging.getLogger("hpccomm")

Key = tuple[str, str]


@dataclass(slots=True)
class Tally:
    """Sums over the calls of one collective and size class.

    Attributes
    ----------
    calls : int
        Calls that ended, failed ones included.
    nbytes : int
        Bytes of this rank's larger array, summed over the calls.
    seconds : float
        Summed over the calls. A synchronous call counts from call to return, an asynchronous one from
        call to completion. A call on a device's stream counts the host's time to enqueue it.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


_LARGEST = (0, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
_CLASSES = ("0 B", *(f"to {size}" for size in ("1 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB")))
"""The largest size of each class, and the class's name."""


def size_class(nbytes: int) -> str:
    """Return the name of the size class of `nbytes`.

    Examples
    --------
    >>> size_class(0), size_class(8), size_class(1 << 20), size_class(1 << 40)
    ('0 B', 'to 1 KiB', 'to 1 MiB', 'above 256 MiB')
    """
    at = bisect_left(_LARGEST, nbytes)
    return _CLASSES[at] if at < len(_CLASSES) else "above 256 MiB"


@dataclass(frozen=True, slots=True)
class CallInfo:
    """One call, as hooks see it.

    Attributes
    ----------
    communicator : str
        Name of the communicator.
    rank : int
        This process's rank in it.
    sequence : int
        The call's number on this communicator, from 1.
    operation : str
        Name of the call, such as ``"all_reduce"``.
    nbytes : int
        Bytes of this rank's larger array.
    elapsed : float or None
        Seconds that the call took; None in a pre-hook.
    error : BaseException or None
        The exception that ended the call; None without one, and in a pre-hook.
    """

    communicator: str
    rank: int
    sequence: int
    operation: str
    nbytes: int
    elapsed: float | None = None
    error: BaseException | None = None


Hook = Callable[[CallInfo], object]
AbortHook = Callable[[BaseException], object]
H = TypeVar("H", bound=Callable[..., object])


class Handle(Hinting):
    """Removes a hook. `Communicator.register_pre_hook`, `register_post_hook` and `register_abort_hook` return it."""

    __slots__ = ("_close",)

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        """Remove the hook. Local; idempotent."""
        self._close()


class Hooks(Generic[H]):
    """The hooks of one kind, called in the order in which they were registered.

    Parameters
    ----------
    changed : callable, optional
        Called whenever a hook was added or removed.

    Attributes
    ----------
    registered : tuple of tuple of object and callable
        Each hook with the token that identifies it.
    """

    __slots__ = ("_changed", "registered")

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self.registered: tuple[tuple[object, H], ...] = ()

    def register(self, hook: H) -> Handle:
        """Add a hook.

        Raises
        ------
        UsageError
            If `hook` cannot be called.
        """
        if not callable(hook):
            raise UsageError(f"hook is {hook!r}; give a function of one argument")
        token = object()
        self.registered = (*self.registered, (token, hook))
        self._changed()

        def close() -> None:
            self.registered = tuple(pair for pair in self.registered if pair[0] is not token)
            self._changed()

        return Handle(close)

    def __iter__(self) -> Iterator[H]:
        """Return the hooks, in order."""
        return (hook for _, hook in self.registered)

    def __call__(self, argument: object) -> None:
        """Call every hook with `argument`."""
        for _, hook in self.registered:
            hook(argument)


traces: "dict[int, Trace]" = {}
"""The recordings of this process's program. The key 0 records all threads; if ranks are threads, each thread's
identifier records that rank."""

after_fork(traces.clear)


def trace() -> "Trace | None":
    """Return the recording of this thread's calls, or None."""
    return traces.get(get_ident()) or traces.get(0)


class Reports:
    """Describes the calls of one communicator, and counts them.

    Parameters
    ----------
    origin : Origin
        The communicator's identity.
    slow_call : float
        Seconds; a call that takes longer is logged.

    Attributes
    ----------
    origin, slow_call
        The parameters.
    pre_hooks, post_hooks : Hooks
        The user's functions that are called before and after each call.
    trace : Trace or None
        The recording of the program's calls, if there is one.
    quiet : float
        Calls of at most so many seconds are not reported. Below 0 while every call is reported: to the recording, or
        to post-hooks.
    """

    def __init__(self, origin: Origin, slow_call: float) -> None:
        self.origin = origin
        self.slow_call = slow_call
        self.pre_hooks: Hooks[Hook] = Hooks()
        self.post_hooks: Hooks[Hook] = Hooks(self._attend)
        self._tallies: dict[Key, Tally] = {}
        self.trace: Trace | None = None
        self.quiet = slow_call
        self.record(trace())

    def record(self, trace: "Trace | None") -> None:
        """Record the calls in `trace`; None ends the recording."""
        self.trace = trace
        self._attend()

    def _attend(self) -> None:
        watched = self.trace is not None or self.post_hooks.registered
        self.quiet = -1.0 if watched else self.slow_call

    def tally(self, collective: str, nbytes: int) -> Tally:
        """Return the tally that calls of this kind and size are added to."""
        return self._tallies.setdefault((collective, size_class(nbytes)), Tally())

    def snapshot(self) -> dict[Key, Tally]:
        """Return a copy of the tallies that have calls, in the order of first use."""
        return {key: replace(tally) for key, tally in list(self._tallies.items()) if tally.calls}

    def info(
        self, entry: CallRecord, elapsed: float | None = None, error: BaseException | None = None
    ) -> CallInfo:
        """Return a call as hooks see it."""
        name, nbytes, *_ = entry[LABEL]
        return CallInfo(
            self.origin.name, self.origin.rank, entry[SEQUENCE], name, nbytes, elapsed, error
        )

    def report(
        self, entry: CallRecord, elapsed: float, error: BaseException | None, held: object
    ) -> None:
        """Log the call if it was slow, record it with `held`, the objects that it kept alive, and call the hooks."""
        if self.trace is not None:
            self.trace.take(entry, held)
        if elapsed > self.slow_call:
            logger.warning("slow call: %s took %.3f s", self.described(entry), elapsed)
        if self.post_hooks.registered:
            self.post_hooks(self.info(entry, elapsed, error))

    def described(self, entry: CallRecord) -> str:
        """Return a call in words."""
        name, nbytes, *_ = entry[LABEL]
        number = f" #{entry[NUMBER]}" if entry[NUMBER] > 0 else ""
        call = f"call {entry[SEQUENCE]}" if entry[SEQUENCE] > 0 else "the making"
        return (
            f"{name}{number} ({call} of communicator {self.origin.name!r}, "
            f"rank {self.origin.rank} of {self.origin.size}, {nbytes} bytes)"
        )

    def attribute(self, error: CommunicationError, entry: CallRecord, elapsed: float) -> None:
        """Give an error the facts of its call."""
        _, error.communicator, error.rank, _ = self.origin
        error.sequence, error.elapsed = entry[SEQUENCE], elapsed
        error.operation, error.nbytes, *_ = entry[LABEL]
