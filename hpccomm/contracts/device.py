"""What carries out calls on device arrays, and who decides on that: the dispatches of `hpccomm.calls`.

The communicator's device lane goes by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dtypes import DType

Launch = Callable[[int, int, int], None]
"""``launch(send, recv, stream)``: puts a call on a stream. Takes addresses; never blocks."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The needs of a call in addition to the library's first communicator.

    Attributes
    ----------
    done : callable
        Whether it is there. Local; the same on all ranks.
    make : callable
        Makes it. Collective, in the order of calls; blocks; idempotent.
    """

    done: Callable[[], bool]
    make: Callable[[], None]


class Span(NamedTuple):
    """Elements of one dtype that lie one after the other in device memory."""

    pointer: int
    elements: int
    dtype: DType

    def part(self, where: slice) -> "Span":
        """Return the memory of some of its elements."""
        start, stop = where.start, where.stop
        return Span(self.pointer + start * self.dtype.itemsize, stop - start, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.elements * self.dtype.itemsize

    def overlaps(self, other: "Span") -> bool:
        """Tell whether the two have memory in common."""
        return (
            self.pointer < other.pointer + other.nbytes
            and other.pointer < self.pointer + self.nbytes
        )


class Piece(NamedTuple):
    """A message to or from a rank."""

    peer: int
    data: Span


Pieces = Sequence[Piece]
"""The messages of a call in one direction."""


def message_name(receives: Pieces, sends: Pieces) -> str:
    """Return the name of a point-to-point call."""
    if receives and sends:
        return "send_recv"
    return "recv" if receives else "send"


DeviceStart = Callable[[int, int, int], Steps]
"""``start(send, recv, stream)`` gives polled steps. When they end, the result is ordered on the stream."""


class Begun(NamedTuple):
    """A call whose first part is on the stream.

    Attributes
    ----------
    send, recv : int
        Addresses of the arrays for what comes next, in place of the call's own.
    kept : object
        To be held until that is on the stream, and what the host does with those arrays is done.
    end : callable
        Puts the last part on the stream.
    """

    send: int
    recv: int
    kept: object = None
    end: Callable[[], None] = lambda: None


Begin = Callable[[int, int, int], Begun]
"""``begin(send, recv, stream)`` puts the first part of a call on a stream."""


@dataclass(frozen=True, slots=True)
class DeviceImplementation:
    """Functions that carry out the calls of one signature on device arrays. One of the first two is there.

    Attributes
    ----------
    launch : callable or None
        Puts it on a stream.
    start : callable or None
        Where the host takes part: gives polled steps.
    needs : Preparation or None
        What must be there before, on all ranks.
    begin : callable or None
        What comes on the stream before `launch`, and makes the memory that this is given; None where that is the
        call's own.
    groups : bool
        Whether `launch` can stand in a group with others. The same on all ranks.
    registered : callable or None
        Returns what puts it on a stream where `hpccomm.backends.nccl.NcclBackend.register` has registered its arrays on all ranks; None
        where that makes no difference.
    how : str
        How a library is held to the algorithm; empty where it chooses itself.
    """

    launch: Launch | None = None
    start: DeviceStart | None = None
    needs: Preparation | None = None
    begin: Begin | None = None
    groups: bool = False
    registered: Callable[[], Launch] | None = None
    how: str = ""

    def alone(self) -> Launch:
        """Return what puts all of it on a stream, in no group."""
        launch, begin = self.launch, self.begin
        assert launch is not None
        if begin is None:
            return launch

        def whole(send: int, recv: int, stream: int) -> None:
            begun = begin(send, recv, stream)
            launch(begun.send, begun.recv, stream)
            begun.end()

        return whole


class DeviceDispatch(Protocol):
    """One way of device arrays between ranks: decides how each call is carried out."""

    name: str

    def decide(self, call: Signature, algorithm: Any) -> tuple[Choice, DeviceImplementation]:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        `algorithm` is a value of ``algorithm=``. If it is None, the communicator's setting applies to calls that have
        such an algorithm.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """

    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the way of a user's point-to-point call; its addresses are in the pieces.

        Raises
        ------
        UsageError
            If the tag does not apply.
        """

    def close(self) -> None:
        """Free its resources, after the end of all calls. Local; idempotent."""
