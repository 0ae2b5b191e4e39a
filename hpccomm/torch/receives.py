"""Receives from any rank, and later ones of their tag, in the order in which they were begun.

`calls` begins them here.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpccomm.communicator.arrivals import Rank, receiving
from hpccomm.contracts.transport import Steps
from hpccomm.runtime.operation import Operation
from hpccomm.torch.tensors import Settle
from hpccomm.torch.work import PendingWork

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class ReceiveWork(PendingWork):
    """A receive that knows its sender at its end.

    Parameters
    ----------
    work, result, settles, progresses
        As in `PendingWork`.
    received : list
        Has the sender as its second item, then.
    """

    def __init__(
        self,
        work: Any,
        result: Sequence[Any],
        settles: Sequence[Settle],
        received: list[Any],
        *,
        progresses: bool,
    ) -> None:
        super().__init__(work, result, settles, progresses=progresses)
        self._received = received

    def source_rank(self) -> int:
        """Return who sent it, when it is there."""
        self.wait()
        source: int = self._received[1]
        return source

    _source_rank = source_rank


class OrderedReceives:
    """The open ones of a communicator, by tag.

    A message from any rank can be taken only once it has arrived. So a receive that was begun later must not
    take it before: it waits for the earlier ones of its tag.

    Parameters
    ----------
    comm : hpccomm.Communicator
        Whose messages they are.
    """

    def __init__(self, comm: "Communicator") -> None:
        self._comm = comm
        self._open: defaultdict[int, deque[Operation]] = defaultdict(deque)

    def open(self, tag: int) -> bool:
        """Return whether there are some of a tag."""
        return bool(self._open[tag])

    def begin(
        self, out: Any, src: Rank, tag: int, result: Sequence[Any], settles: Sequence[Settle]
    ) -> ReceiveWork:
        """Begin to receive an array behind the earlier ones."""
        core, queue = self._comm._core, self._open[tag]  # noqa: SLF001 (of hpccomm)
        with core.outside_batch("recv"):
            operation, received = receiving(core, out, src, tag)
            queued = Operation(
                operation.label, lambda: _behind(queue, operation), operation.keep, ordered=False
            )
            queue.append(operation)
            work = core.calls.start(queued, core.limit(None), out)
        return ReceiveWork(work, result, settles, received, progresses=self._comm.background)


def _behind(queue: deque[Operation], operation: Operation) -> Steps:
    """Carry an operation out when it is the first of a queue."""
    while queue[0] is not operation:
        yield False
    try:
        yield from operation.start()
    finally:
        queue.popleft()
