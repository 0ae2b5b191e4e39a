"""What users have of calls that are decided once: plans and batches."""

from collections.abc import Callable
from typing import Any

from hpccomm.communicator.lanes import Call
from hpccomm.contracts.choice import Choice
from hpccomm.errors import UsageError
from hpccomm.runtime.work import Work


class Plan:
    """A collective call that was checked and decided once. Made by `Communicator.plan`.

    Calling it is collective and does what the call does, on the current contents of the same arrays. It
    blocks, unless it was planned with ``async_op=True`` or its arrays are on a device. Then it is put on
    the stream that is current at that time, or on the stream that was passed to `Communicator.plan`.
    """

    __slots__ = ("_call", "_choice")

    def __init__(self, call: Callable[[], Any], choice: Choice) -> None:
        self._call = call
        self._choice = choice

    def __call__(self) -> Any:
        """Carry the call out, or add it to the open batch.

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

    Made by `Communicator.batch`. Point-to-point calls run at the same time, in any order. Collectives on
    host arrays run in the order of the calls. Over NCCL, all calls are one group, which is carried out at
    once: no call may use memory that another one writes.

    Attributes
    ----------
    work : Work or None
        After the block, if it is asynchronous.
    """

    def __init__(
        self,
        begin: Callable[["Batch"], None],
        end: Callable[[tuple[Call, ...], bool, float], Work | None],
        async_op: bool,
        timeout: float,
    ) -> None:
        self._begin = begin
        self._end = end
        self._async = async_op
        self._timeout = timeout
        self._calls: list[Call] = []
        self._entered = False
        self.work: Work | None = None

    def add(self, call: Call) -> None:
        """Take a call.

        Raises
        ------
        UsageError
            If its arrays are in another kind of memory than those of earlier calls.
        """
        lane = call.recipe.lane
        if self._calls and lane is not self._calls[0].recipe.lane:
            raise UsageError(
                "a batch has calls on host arrays and on device arrays; make one for each kind"
            )
        self._calls.append(lane.admitted(call))

    def __enter__(self) -> "Batch":
        if self._entered:
            raise UsageError("this batch was used before; make another by batch()")
        self._begin(self)
        self._entered = True
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        calls = tuple(self._calls) if kind is None else ()
        self.work = self._end(calls, kind is None and self._async, self._timeout)
