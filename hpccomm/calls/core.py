"""The core of one communicator: its state, and the path of a collective call.

The methods of `Communicator`, and the functions that they call, use it. If a batch, a plan or an explanation is open,
the core hands calls to that (`CallSink`) in place of issuing them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol

from numpy import asarray, empty, may_share_memory, ndarray

from hpccomm.backends.control import Control
from hpccomm.calls.arguments import NO_LISTS, NUMBERS, OF_NUMBERS, Lists, call_on_number, plain
from hpccomm.calls.lanes import Call, Check, Lanes
from hpccomm.calls.prepared_calls import NEW, PreparedCalls
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.signature import Signature, compared
from hpccomm.contracts.transport import Steps, Transport
from hpccomm.errors import CommunicationError, HpccommError, RankMismatch, UsageError
from hpccomm.reductions import Deterministic
from hpccomm.runtime.callpath import Kept, all_in_turn
from hpccomm.runtime.engine import FINALIZED, CallEngine, everyone
from hpccomm.runtime.recorder import Site
from hpccomm.runtime.service import keep, leaving
from hpccomm.runtime.work import dropped_communicator
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import Settings, check_bool, check_int, check_seconds


class Capture:
    """Takes the single call of a thread, for a plan or an explanation.

    Attributes
    ----------
    thread : int
        The thread whose call is taken. Calls of other threads are issued, or refused.
    call : Call or None
        The call, once the thread has made it.
    """

    __slots__ = ("call", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.call: Call | None = None


class CallSink:
    """The destination of the calls of one communicator: usually they are issued, but a batch or a plan may take them.

    Parameters
    ----------
    calls : CallEngine
        The communicator's engine.

    Attributes
    ----------
    batch : list of Call or None
        The calls that the open batch has taken; None if no batch is open.
    capture : Capture or None
        Takes the next call, for a plan or an explanation.
    diverted : bool
        Whether a batch or a capture is open. Every call reads it.
    """

    __slots__ = ("_calls", "batch", "capture", "diverted")

    def __init__(self, calls: CallEngine) -> None:
        self._calls = calls
        self.batch: list[Call] | None = None
        self.capture: Capture | None = None
        self.diverted = False

    def open_batch(self) -> None:
        """Open a batch, which takes calls from now on.

        Raises
        ------
        UsageError
            If a batch is open already.
        """
        if self.batch is not None:
            raise UsageError("batch() within a batch; end the outer one first")
        self.batch = []
        self.diverted = True

    def close_batch(self) -> tuple[Call, ...]:
        """Close the batch; return its calls."""
        taken, self.batch = tuple(self.batch or ()), None
        self.diverted = self.capture is not None
        return taken

    @contextmanager
    def capturing(self) -> Iterator[Capture]:
        """Take the call of the block, in place of issuing it.

        Raises
        ------
        UsageError
            If another thread captures a call.
        """
        if self.capture is not None:
            raise UsageError(f"communicator {self._calls.name!r} is in use by another thread")
        self.capture = capture = Capture()
        self.diverted = True
        try:
            yield capture
        finally:
            self.capture = None
            self.diverted = self.batch is not None

    def takes(self, call: Call, async_op: bool) -> bool:
        """Take a call, if a capture or a batch takes calls of this thread; return whether it was taken.

        Raises
        ------
        UsageError
            If the call does not fit into the batch.
        """
        if self.capture is not None and self.capture.thread == get_ident():
            self.capture.call = call
            return True
        if self.batch is None:  # another thread's call is captured
            return False
        if async_op:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        lane = call.prepared.lane
        if self.batch and lane is not self.batch[0].prepared.lane:
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        self.batch.append(lane.admitted(call))
        return True

    def refuse_capture(self, what: str, remedy: str) -> None:
        """Raise if a plan or an explanation of this thread waits for a call, since `what` cannot be planned.

        Raises
        ------
        UsageError
            If so. The message has the remedy.
        """
        if self.capture is not None and self.capture.thread == get_ident():
            raise UsageError(f"{what} cannot be planned or explained; {remedy}")

    def refuse_batch(self, name: str, remedy: str) -> None:
        """Raise if a batch is open, since the named call cannot be part of a batch.

        Raises
        ------
        UsageError
            If so. The message has the remedy.
        """
        if self.batch is not None:
            raise UsageError(f"{name} does not go into a batch{remedy}")


class PlanTags:
    """The tags of one communicator's plans, and the transports that carry them.

    The first plan with messages makes a transport. A plan that finds too few tags left makes another.

    Parameters
    ----------
    backend : Backend
        Makes the transports.
    calls : CallEngine
        The communicator's engine.
    """

    def __init__(self, backend: Backend, calls: CallEngine) -> None:
        self._backend = backend
        self._calls = calls
        self._transport: Transport | None = None
        self._next = 0

    def take(self, count: int) -> tuple[Transport, int]:
        """Return a transport and the first of `count` tags on it. Collective, with the same count; blocks.

        Raises
        ------
        UsageError
            If a transport has no tags left.
        """
        transport = self._transport or self._made()
        tags = transport.largest_tag + 1
        if count > tags:
            raise UsageError(
                f"the plan has {count} messages from one rank to another, and the backend has "
                f"{tags} tags; plan fewer, or make larger messages"
            )
        if self._next + count > tags:
            transport = self._made()
        first = self._next
        self._next += count
        return transport, first

    def _made(self) -> Transport:
        """Make a transport, which later plans use too, even if this plan is refused."""
        with self._calls.beside_watchdog("planning messages", ordered=True):
            transport = self._backend.planned()
        self._transport, self._next = transport, 0
        return transport


class Closable(Protocol):
    """An object that ends before its communicator, such as a window."""

    def close(self) -> None:
        """End it. Collective."""


_dropped: "list[Core]" = []
"""Communicators over MPI that this process has dropped and not finalized. They are ended when the ranks meet to make
another communicator."""
keep(_dropped)  # until the exit, since they answer other ranks


@dataclass(eq=False)
class Core:
    """The state of one communicator.

    Attributes
    ----------
    backend : Backend
        The ranks and their messages.
    calls : CallEngine
        The engine that every call passes through.
    control : Control
        The control plane.
    check : Check
        The agreements of the ranks.
    settings : Settings
        The settings.
    lanes : Lanes
        Carry out calls, by kind of memory.
    device : int or None
        CUDA device of this rank.
    windows : list of Window
        The open windows, in the order in which all ranks made them.
    groups : int
        The number of groups that all ranks have made of this communicator.
    shrunk : Counter
        Number of groups made without some ranks, by the tuple of excluded ranks; the empty tuple
        counts shrinks.
    prepared_calls : PreparedCalls
        The decisions.
    known : Kept
        Prepared calls of checked calls on host arrays, by their arguments; also calls on numbers and objects.
    use : MemoryUse
        The use that this process makes of registered memory.
    sink : CallSink
        The batch or plan that takes calls, if any.
    plan_tags : PlanTags
        Tags for the messages of plans.
    count_exchanges : dict
        The exchanges of counts for calls without counts, by name of the call.
    recorder : ProgramRecorder or None
        A recording that ends with the communicator.
    made : bool
        Whether the communicator is made and was handed out.
    site : tuple or None
        Place in the program where it was made; None for a node's communicator.
    """

    backend: Backend
    calls: CallEngine
    control: Control
    check: Check
    settings: Settings
    lanes: Lanes
    device: int | None
    made: bool = False
    site: Site | None = None

    def __post_init__(self) -> None:
        self.recorder: Any = None
        backend, calls = self.backend, self.calls
        self.windows: list[Closable] = []
        self.groups = 0
        self.shrunk: Counter[tuple[int, ...]] = Counter()
        self.prepared_calls = PreparedCalls(backend.rank, backend.size, self.lanes)
        self.known = Kept()
        self.use = self.lanes.host.use
        self.sink = CallSink(calls)
        self.plan_tags = PlanTags(backend, calls)
        self.count_exchanges: dict[str, Any] = {}

    def __del__(self) -> None:
        calls = self.calls if self.made else None
        if calls is None or calls.closed or calls.gate.error is not None or leaving():
            return
        if not self.backend.shares_process:
            _dropped.append(self)
        if self.site is not None:
            dropped_communicator(calls.name, self.site)

    def depart(self) -> None:
        """Take no more calls. The ranks end the communicator when they make another communicator. Local."""
        if self.recorder is not None:
            self.recorder.close()
        self.calls.closed = FINALIZED
        if not self.backend.shares_process:
            _dropped.append(self)

    def close(self) -> None:
        """End the communicator, but not that of its node. Collective; blocks. All ranks have agreed to end it."""
        calls = self.calls
        for window in tuple(self.windows):
            window.close()
        self.lanes.device.close()
        calls.close(FINALIZED)
        calls.failure.tell_unseen()
        with calls.beside_watchdog("finalize", ordered=True):
            self.backend.close()

    def within(
        self,
        name: str,
        x: Any,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        op: Any = None,
        deterministic: Deterministic = False,
        root: Any = None,
        lists: Lists = NO_LISTS,
        exclusive: bool = False,
    ) -> Any:
        """Carry out one collective call, and return its result, or its `Work`. The caller holds the turn.

        Parameters are those of the call of that name; `lists` are checked.
        """
        limit = self.calls.timeout if timeout is None else self.limit(timeout)
        # The shortest path, where each statement counts: a call like an earlier one, on plain host arrays or a number.
        begun = async_op is True
        short = (begun or async_op is False) and stream is None and not lists.returned
        key: object = None
        of_number: object = None
        arrays = plain_arrays(x, out) if short else None
        if arrays is not None:
            like, source, target = arrays
            key = name, like, op, algorithm
            if root is not None or lists is not NO_LISTS:
                # The class of the root, and of flags, since True is equal to 1.
                key = key, root, root.__class__, lists
            if deterministic is not False or exclusive is not False:
                key = key, deterministic, deterministic.__class__, exclusive, exclusive.__class__
            if self.use.registered and (names := self.lanes.host.registered_names(source, target)):
                key = key, names
            try:
                prepared = self.known.get(key)
            except TypeError:  # an argument cannot be hashed, such as a callable object
                prepared = key = None
            if prepared is not None and not self.sink.diverted:
                kind = prepared.kind
                into = kind.recv
                if into == "new":
                    out = empty(prepared.shape, kind.call.dtype)
                    target = out.reshape(-1)
                send = None if kind.send is None else source
                recv = None if into is None else target
                result = x if into == "x" else out if into is not None else None
                if begun:
                    call = Call(prepared, send, recv, result, (x, result))
                    return prepared.lane.start(call, limit)
                prepared.issue(prepared.arguments(send, recv), (x, out), limit)
                return result
        elif short and not begun and out is None and x.__class__ in NUMBERS:
            of_number = name, x.__class__, op, algorithm, root, root.__class__
            if deterministic is not False or exclusive is not False:
                flags = deterministic, deterministic.__class__, exclusive, exclusive.__class__
                of_number = of_number, flags
            try:
                number = self.known.get(of_number)
            except TypeError:
                number = of_number = None
            if number is not None and not self.sink.diverted:
                return number(x, limit)
        x = plain(x)
        if x.__class__ in NUMBERS and name in OF_NUMBERS and stream is None:
            into = None if out.__class__ is str and out == NEW else out
            if into is None or name != "scan":
                how = op, root, exclusive, algorithm, deterministic
                return call_on_number(self, name, x, into, async_op, limit, of_number, *how)
            x = asarray(x)
        prepared, given = self.prepared_calls.find(
            name, x, out, op, root, lists, exclusive, algorithm, deterministic
        )
        new = prepared.kind.recv == "new" and (prepared.kind.zeroed or self.use.registered)
        if key is not None and not new:
            self.known.keep(key, prepared)
        lane = prepared.lane
        call = lane.bind(prepared, given, stream)
        if lists.returned:
            call.result = (call.result, lists.arriving(prepared.shape[0]))
        return self.issue(call, async_op, limit)

    collective = all_in_turn(within)
    """`within`, for callers that do not hold the turn yet."""

    def issue(self, call: Call, async_op: bool, limit: float) -> Any:
        """Carry a call out, start it, or give it to an open batch or plan. The caller holds the turn."""
        if async_op is not False:
            check_bool("async_op", async_op)
        if self.sink.diverted and self.sink.takes(call, async_op):
            return call.result
        if async_op:
            return call.prepared.lane.start(call, limit)
        return call.prepared.lane.run(call, limit)

    def limit(self, timeout: float | None) -> float:
        """Return the seconds that a call may take.

        Raises
        ------
        UsageError
            If `timeout` is not a number of seconds, or a batch is open, which has its own timeout.
        """
        if timeout is None:
            return self.calls.timeout
        if self.sink.batch is not None:
            raise UsageError(f"timeout is {timeout!r} within batch(); give it to batch() itself")
        return check_seconds("timeout", timeout)

    def tag(self, tag: object) -> int:
        """Return the tag of a message.

        Raises
        ------
        UsageError
            If the transport has no such tag.
        """
        largest = self.backend.messages.largest_tag // 2 - 1
        number = check_int("tag", tag)
        if not 0 <= number <= largest:
            raise UsageError(f"tag is {tag!r}; give an integer from 0 to {largest}")
        return number

    @contextmanager
    def outside_batch(self, name: str) -> Iterator[None]:
        """Hold the communicator for one call that cannot be part of a batch."""
        with self.calls.one_call():
            self.sink.refuse_batch(name, "; call it before or after")
            yield

    def agree(self, what: str, mine: dict[str, object], error: HpccommError | None) -> None:
        """Raise on every rank unless all give equal values. A rank with an `error` raises that. Collective; blocks."""
        self.check.agree(compared(what, {"operation": what, **mine}), error)

    def agree_on_pairs(self, what: str, call: Signature) -> None:
        """Raise on every rank unless each peer expects the blocks that a rank sends it. Collective; blocks."""
        wrong: list[RankMismatch] = []

        def steps() -> Steps:
            try:
                yield from self.check.paired((call,))
            except RankMismatch as error:  # the communicator has not failed: all ranks raise
                wrong.append(RankMismatch(f"{what}: {error}", ranks=error.ranks))

        with self.calls.part_of(what):
            self.calls.run_steps(what, steps())
        if wrong:
            raise wrong[0]


def plain_arrays(x: Any, out: Any) -> tuple[tuple[Any, ...], Any, Any] | None:
    """Return the facts of a call's arrays that select its prepared call, and the sent and the received array as 1-D.

    None for arrays that need all checks: other than NumPy's, or not contiguous and writable. ``out="new"`` is allowed.
    """
    if x is None and out is None:
        return (), None, None  # a barrier
    if x is None:  # for example on a rank that only receives
        if out.__class__ is not ndarray or not out.flags.carray:
            return None
        return (out.dtype, out.shape), None, out if out.ndim == 1 else out.reshape(-1)
    if x.__class__ is not ndarray or not (flags := x.flags).carray:
        return None
    source = x if x.ndim == 1 else x.reshape(-1)
    if out is None or out.__class__ is str:
        return (x.dtype, x.shape, out), source, source
    if out is x:
        return (x.dtype, x.shape, True), source, source
    if out.__class__ is not ndarray or not (its := out.flags).carray:
        return None
    # Arrays that each own their memory do not overlap.
    if not (flags.owndata and its.owndata) and may_share_memory(x, out):
        return None
    return (
        (x.dtype, x.shape, out.dtype, out.shape),
        source,
        out if out.ndim == 1 else out.reshape(-1),
    )


@contextmanager
def counting() -> Iterator[None]:
    """Add the number of open communicators to a library's error in the block, which makes communicators."""
    try:
        yield
    except CommunicationError as error:
        if type(error) is CommunicationError and error.operation != "self-check":
            there = sum(
                each.backend.mpi_comm is not None and not each.closed for each in everyone()
            )
            error.args = (
                f"no communicator could be made: this process has {there} that are not finalized, with those of their "
                f"nodes, and has dropped {len(_dropped)} of them. A library has place for some hundreds, so finalize "
                f"those that are done with. {error}",
            )
        raise


def dropped(backend: Backend) -> "dict[str, Core]":
    """Return, by uid, the communicators that this process has dropped and whose ranks are all in `backend`. Local."""
    if not _dropped:
        return {}
    among = set(backend.members)
    return {
        core.backend.uid: core
        for core in tuple(_dropped)
        if among.issuperset(core.backend.members) and not core.calls.under_way
    }


def end_dropped(mine: "dict[str, Core]", everyone: Iterable[Sequence[str]]) -> None:
    """End the communicators that all of their ranks have dropped. Collective; blocks.

    A destructor cannot be collective, so this is done when the ranks meet to make another communicator:
    MPI libraries limit the number of communicators.

    Parameters
    ----------
    mine : dict
        The result of `dropped`.
    everyone : iterable of sequence of str
        The keys of that result, of every rank.
    """
    votes = Counter(uid for each in everyone for uid in each)
    ended = [core for uid, core in mine.items() if votes[uid] == core.backend.size]
    # In the same order on all ranks. Communicators of nodes come first, since they ask by the channel
    # of the whole one.
    for core in sorted(ended, key=lambda core: (core.backend.size, core.backend.uid)):
        _dropped.remove(core)
        if core.calls.gate.error is None:
            core.close()
