"""Calls that are decided once: plans, explanations and batches."""

from collections.abc import Callable
from typing import Any

from hpccomm.calls import Calls, Operation
from hpccomm.communicator.core import Bound
from hpccomm.contracts.signature import COLLECTIVES, Signature
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.reductions import name_of
from hpccomm.waiting import Steps
from hpccomm.work import Work

PLANNED = (
    *COLLECTIVES,
    *(f"{name}_v" for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")),
)
"""The calls that `plan` and `explain` take."""


class Plan:
    """A collective call that was decided, checked and agreed once. Made by `Communicator.plan`.

    Calling it is collective and does what the call does, on the same arrays: it reads and writes
    their memory as it is then. It blocks, unless it was planned with ``async_op=True``.
    """

    __slots__ = ("_async", "_bound", "_calls", "_issue", "_timeout")

    def __init__(
        self,
        calls: Calls,
        issue: Callable[[Bound, bool, float], Any],
        bound: Bound,
        async_op: bool,
        timeout: float,
    ) -> None:
        self._calls = calls
        self._issue = issue
        self._bound = bound
        self._async = async_op
        self._timeout = timeout

    def __call__(self) -> Any:
        """Carry the call out, or have a batch that is open take it.

        Returns
        -------
        object
            What the call returns; the same array each time.
        """
        calls = self._calls
        calls.enter()
        try:
            return self._issue(self._bound, self._async, self._timeout)
        finally:
            calls.leave()

    def __repr__(self) -> str:
        return f"<hpccomm.Plan: {self._bound.recipe.way.choice}>"


class Batch:
    """Calls that are issued together at the end of a ``with`` block.

    Made by `Communicator.batch`. Point-to-point calls go on at the same time, so that a send may
    stand before the receive that lets its peer go on; collectives run in their order.

    Attributes
    ----------
    work : Work or None
        After the block, if it is asynchronous.
    """

    def __init__(
        self,
        begin: Callable[["Batch"], None],
        end: Callable[[Operation | None, bool, float], Work | None],
        async_op: bool,
        timeout: float,
    ) -> None:
        self._begin = begin
        self._end = end
        self._async = async_op
        self._timeout = timeout
        self._operations: list[Operation] = []
        self._entered = False
        self.work: Work | None = None

    def add(self, operation: Operation) -> None:
        """Take a call."""
        self._operations.append(operation)

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        self._begin(self)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if kind is not None or not (self._operations or self._async):
            self._end(None, False, self._timeout)
            return
        operations = tuple(self._operations)
        whole = Operation(
            "batch",
            sum(each.nbytes for each in operations),
            lambda: together(operations),
            tuple(each.keep for each in operations),
            ordered=any(each.ordered for each in operations),
        )
        self.work = self._end(whole, self._async, self._timeout)


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
    call: Signature, algorithm: str, deterministic: bool, async_op: bool
) -> dict[str, object]:
    """Return what must be equal on all ranks in a call, as plain data."""
    counts: tuple[int, ...] = () if call.collective == "all_to_all" else call.counts
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
    if name not in PLANNED:
        raise UsageError(f"collective is {name!r}; give one of {', '.join(map(repr, PLANNED))}")
    return str(name)
