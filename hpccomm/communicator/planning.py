"""Calls that are decided once: plans, explanations and batches."""

from collections.abc import Callable
from typing import Any

from hpccomm.communicator.device_call import DeviceCall
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.reductions import name_of
from hpccomm.runtime.engine import Operation
from hpccomm.runtime.work import Work


class Plan:
    """A collective call that was decided, checked and agreed once. Made by `Communicator.plan`.

    Calling it is collective and does what the call does, on the same arrays: it reads and writes
    their memory as it is then. It blocks, unless it was planned with ``async_op=True`` or its arrays
    are on a device: then it is put on the stream that is current at the time, or the one that was
    given.
    """

    __slots__ = ("_call", "_choice")

    def __init__(self, call: Callable[[], Any], choice: Choice) -> None:
        self._call = call
        self._choice = choice

    def __call__(self) -> Any:
        """Carry the call out, or have a batch that is open take it.

        Returns
        -------
        object
            What the call returns; the same array each time.
        """
        return self._call()

    def __repr__(self) -> str:
        return f"<hpccomm.Plan: {self._choice}>"


class Batch:
    """Calls that are issued together at the end of a ``with`` block.

    Made by `Communicator.batch`. Point-to-point calls go on at the same time, so that a send may
    stand before the receive that lets its peer go on; collectives on host arrays run in their order.
    Over NCCL all of them are one group, which is carried out at once: none may touch what another one
    writes.

    Attributes
    ----------
    work : Work or None
        After the block, if it is asynchronous.
    """

    def __init__(
        self,
        begin: Callable[["Batch"], None],
        end: Callable[[tuple[Operation | DeviceCall, ...], bool, float], Work | None],
        async_op: bool,
        timeout: float,
    ) -> None:
        self._begin = begin
        self._end = end
        self._async = async_op
        self._timeout = timeout
        self._calls: list[Operation | DeviceCall] = []
        self._entered = False
        self.work: Work | None = None

    def add(self, call: Operation | DeviceCall) -> None:
        """Take a call.

        Raises
        ------
        UsageError
            If it is on another kind of array than those before it.
        """
        if self._calls and isinstance(call, DeviceCall) != isinstance(self._calls[0], DeviceCall):
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        self._calls.append(call)

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        self._begin(self)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        calls = tuple(self._calls) if kind is None else ()
        self.work = self._end(calls, kind is None and self._async, self._timeout)


def as_one(operations: tuple[Operation, ...]) -> Operation:
    """Return polled calls as one, which carries them out together."""
    return Operation(
        "batch",
        sum(each.nbytes for each in operations),
        lambda: together(operations),
        tuple(each.keep for each in operations),
        ordered=any(each.ordered for each in operations),
    )


def together(operations: tuple[Operation, ...]) -> Steps:
    """Run operations at the same time, but the ordered ones one after the other.

    Where a message has another size than its array, the others are completed before that is raised.
    """
    mismatch: BufferMismatch | None = None
    ordered = [each.start for each in operations if each.ordered]
    under_way = [each.start() for each in operations if not each.ordered]
    if ordered:
        under_way.append(_in_turn(ordered))
    while under_way:
        left = []
        progress = False
        for steps in under_way:
            try:
                moved = next(steps, None)
            except BufferMismatch as error:
                mismatch, moved = mismatch or error, None
            progress |= moved is not False
            if moved is not None:
                left.append(steps)
        under_way = left
        if under_way:
            yield progress
    if mismatch is not None:
        raise mismatch


def _in_turn(starts: list[Callable[[], Steps]]) -> Steps:
    for start in starts:
        yield from start()


def terms(
    call: Signature, path: str, algorithm: str, deterministic: bool, async_op: bool
) -> dict[str, object]:
    """Return what must be equal on all ranks in a call, as plain data."""
    counts: tuple[int, ...] = () if call.individual else call.counts
    if call.uniform and counts:
        counts = (counts[0],)
    return {
        "collective": call.collective,
        "dtype": str(call.dtype),
        "count" if call.uniform else "counts": list(counts),
        "op": None if call.op is None else name_of(call.op),
        "factor": repr(getattr(call.op, "factor", None)),
        "root": call.root,
        "exclusive": call.exclusive,
        "path": path,
        "algorithm": algorithm,
        "deterministic": deterministic,
        "async_op": async_op,
    }


def check_planned(name: object) -> str:
    """Return `name` as that of a call that can be planned.

    Raises
    ------
    UsageError
        If it is none.
    """
    if name not in CALLS:
        raise UsageError(f"collective is {name!r}; give one of {', '.join(map(repr, CALLS))}")
    return str(name)
