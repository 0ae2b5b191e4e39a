"""What a backend gives to a communicator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from hpccomm.contracts.side import SideChannel
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.survival import Survival
from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.contracts.window import OneSided
from hpccomm.errors import HpccommError
from hpccomm.topology import Topology

Buffer = NDArray[Any] | None
"""A flat array of the signature's dtype, or None where this rank has none."""

Start = Callable[[Buffer, Buffer], Steps]
"""``start(send, recv)`` gives the polled steps of a call, which may begin at once."""


def both(send: Buffer, recv: Buffer) -> tuple[Buffer, Buffer]:
    """Return the arrays of a call as its arguments."""
    return send, recv


@dataclass(frozen=True, slots=True)
class Blocking:
    """A call that blocks in the backend's library: ``call(*arguments(send, recv))``.

    Attributes
    ----------
    call : callable
        Carries it out.
    arguments : callable
        ``arguments(send, recv)`` gives what it is called with. They hold for later calls on the same
        arrays as well: a plan makes them once.
    """

    call: Callable[..., object]
    arguments: Callable[[Buffer, Buffer], tuple[Any, ...]] = both


@dataclass(frozen=True, slots=True)
class Native:
    """A backend's own way to do one collective.

    Attributes
    ----------
    start : callable
        ``start(send, recv)`` begins it and returns a `Request`. Every rank must come this way.
    run : Blocking or None
        Does it in one call; None where that is not faster than polling what `start` began.
    agreed : bool
        Whether another rank of the same call may have none, so that the ranks must agree on it.
    """

    start: Callable[[Buffer, Buffer], Request]
    run: Blocking | None = None
    agreed: bool = False


class Backend(Protocol):
    """The ranks of one communicator and the ways between them.

    Attributes
    ----------
    name : str
        As in ``comm.backends``.
    rank, size : int
        Of this communicator.
    topology : Topology
        Which ranks share a node.
    collectives, messages : Transport
        Two that do not disturb each other: for hpccomm's own algorithms and control, and for the
        user's point-to-point calls.
    thread_restriction : str
        Empty if any thread may use it at any time; else why not.
    shares_process : bool
        Whether ranks are threads of one process.
    mpi_comm : object
        The mpi4py communicator that it was made from, or None.
    uid : str
        Names this communicator: equal on all its ranks, and no other one has it.
    members : sequence of int
        Its ranks, as ranks of the job.
    side : SideChannel or None
        How its ranks ask each other what they do while calls wait; None where they cannot.
    survival : Survival or None
        How the ranks that are left go on when others are lost; None where they cannot.
    recovery : str
        What a program can do when a rank is lost, for messages. Empty where none ever is.
    """

    name: str
    rank: int
    size: int
    topology: Topology
    collectives: Transport
    messages: Transport
    thread_restriction: str
    shares_process: bool
    mpi_comm: object
    uid: str
    members: Sequence[int]
    side: SideChannel | None
    survival: Survival | None
    recovery: str

    def native(self, signature: Signature) -> Native | None:
        """Return the backend's own way, or None where it has none or it means something else.

        Local. What depends on something that may differ between ranks says so, by ``Native.agreed``.
        """

    def group(self, ranks: Sequence[int], label: int) -> "Backend":
        """Return the backend of the group of `ranks`, in that order. Called by all of them.

        Blocks until they have. `label` tells groups apart that are made at the same time.
        """

    def planned(self) -> Transport:
        """Return a new transport, for the messages of plans, which no other messages disturb.

        Its tags are as those of `messages`. Collective, in the same order on all ranks; blocks until all have
        called. `close` frees it.
        """

    def window(self) -> OneSided | None:
        """Return one-sided communication between all ranks; None where the backend has none.

        Collective, in the same order on all ranks; blocks until all have called.
        """

    def translate(self, error: Exception) -> HpccommError | None:
        """Return the library's `error` as one of hpccomm's, or None if it is not the library's."""

    def end_job(self, reason: str) -> None:
        """End all processes of the job; does not return where it can be done."""

    def abandon(self) -> None:
        """Note that the communicator has failed: nothing may need a peer from now on.

        Local; from any thread; never blocks; idempotent.
        """

    def close(self) -> None:
        """Free what the backend owns. Collective; not called after a failure."""
