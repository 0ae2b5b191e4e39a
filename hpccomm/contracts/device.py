"""The contracts of functions that carry out calls on device arrays, and of the dispatches that choose them.

The dispatches `on_device`, `staged` and `cuda_aware` of `hpccomm.calls` implement `DeviceDispatch`. The device lane
(`hpccomm.calls.lanes`) calls them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dtypes import DType

Launch = Callable[[int, int, int], None]
"""``launch(send, recv, stream)`` puts a call on a stream. It takes addresses, and never blocks."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Something that a call needs in addition to the library's first communicator.

    Attributes
    ----------
    done : callable
        Returns whether it is made. Local; the same on all ranks.
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
        """Return the span of some elements."""
        start, stop = where.start, where.stop
        return Span(self.pointer + start * self.dtype.itemsize, stop - start, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the span."""
        return self.elements * self.dtype.itemsize

    def overlaps(self, other: "Span") -> bool:
        """Return whether the two spans have memory in common."""
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
"""``start(send, recv, stream)`` returns polled steps. Once they end, the result is ordered on the stream."""


class Begun(NamedTuple):
    """A call whose first part is on the stream.

    Attributes
    ----------
    send, recv : int
        Addresses of the arrays that the next part uses, in place of the call's arrays.
    kept : object
        Must be kept alive until that part is on the stream, and the host has done its work on those arrays.
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
    """Functions that carry out the calls of one signature on device arrays. `launch` or `start` is not None.

    Attributes
    ----------
    launch : callable or None
        Puts the call on a stream; see `Launch`.
    start : callable or None
        Returns polled steps, for calls in which the host takes part; see `DeviceStart`.
    needs : Preparation or None
        The preparation that must be done before, on all ranks.
    begin : callable or None
        Puts a first part on the stream, before `launch`, and makes the arrays for `launch`; None if `launch` uses the
        call's arrays.
    groups : bool
        Whether `launch` can stand in a group with others. The same on all ranks.
    registered : callable or None
        Returns the `Launch` for arrays that `NcclBackend.register` has registered on all ranks; None if registration
        makes no difference.
    how : str
        How the library is made to use the algorithm, in words; empty if the library chooses.
    """

    launch: Launch | None = None
    start: DeviceStart | None = None
    needs: Preparation | None = None
    begin: Begin | None = None
    groups: bool = False
    registered: Callable[[], Launch] | None = None
    how: str = ""

    def alone(self) -> Launch:
        """Return the function that puts the whole call on a stream, outside a group."""
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
    """One path of device arrays between ranks: decides how each call is carried out."""

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
        """Return the decision and the functions for a user's point-to-point call; its addresses are in the pieces.

        Raises
        ------
        UsageError
            If the tag does not apply.
        """

    def close(self) -> None:
        """Free the dispatch's resources, after the end of all calls. Local; idempotent."""
