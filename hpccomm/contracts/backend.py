"""The interface of a backend, which serves a communicator.

The packages in `hpccomm.backends`, and other packages, implement it. The communicator,
`hpccomm.calls` and `hpccomm.runtime` call it.

By a backend's side channel, ranks ask each other about their calls while calls wait. A thread that is stuck in a call
does not block it, since another thread of the process answers. It moves small facts, never arrays, and only when a
call waits long or has failed. `hpccomm.runtime.inquiry` asks by it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.errors import HpccommError
from hpccomm.topology import Topology

if TYPE_CHECKING:
    from hpccomm.contracts.signature import Choice


Facts = Mapping[str, Any]
"""Plain data that JSON can hold: a question, or the answer of a rank."""

ANSWERED, GONE, STOPPED, SILENT = "answered", "gone", "stopped", "silent"
"""The outcomes of a question. The rank answered; its process has ended; its process is
stopped, by SIGSTOP or a debugger; it did not answer in time, and its process runs or its state is not known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one rank.

    Attributes
    ----------
    state : str
        `ANSWERED`, `GONE`, `STOPPED` or `SILENT`.
    facts : mapping
        The answer. Without an answer only the facts that are known anyway: ``"host"`` and ``"pid"`` of
        the rank's process.
    """

    state: str
    facts: Facts = field(default_factory=dict)


class SideChannel(Protocol):
    """A channel to the other ranks of one communicator that no stuck call can block."""

    def ask(self, ranks: Sequence[int], question: Facts, seconds: float) -> dict[int, Answer]:
        """Ask ranks of the communicator, all at the same time. Local; blocks at most `seconds`. From any thread.

        Each asked rank answers with the result of ``hpccomm.runtime.answering.answer``.

        Parameters
        ----------
        ranks : sequence of int
            The ranks to ask; this rank is allowed.
        question : mapping
            The question. Its ``"comm"`` is the communicator's ``uid``. The channel adds ``"rank"``, the asked rank.
        seconds : float
            Seconds to wait for all answers together.

        Returns
        -------
        dict
            An `Answer` for each of `ranks`.
        """


def group_uid(uid: str, ranks: Sequence[int], label: object) -> str:
    """Return the uid of a group, which each member derives from the communicator's `uid`.

    `ranks` are the group's members in the communicator; `label` distinguishes groups of the same ranks.
    """
    name = f"{uid} {label} {','.join(map(str, ranks))}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


class OneSided(Protocol):
    """One-sided communication between the ranks of one window.

    Offsets and counts are in bytes. A rank reads data that another rank wrote only once the two
    have synchronised: the writer calls `order` (after `flush`, if it wrote by `put`), then sends
    a message; the reader receives the message, then calls `order`. Or the writer releases a lock, and the reader
    acquires it.

    Attributes
    ----------
    signals : Transport
        A transport that only the window uses. Its `shared` is not the communicator's either, since asynchronous calls
        of the communicator may use that meanwhile.
    """

    signals: Transport

    def attach(self, memory: NDArray[np.uint8] | None) -> None:
        """Let all ranks put to this rank's memory, get from it, and lock it. Collective; blocks.

        Parameters
        ----------
        memory : ndarray of uint8, 1-D, or None
            This rank's memory, which lives as long as the window. It may be empty. None if all ranks are on one node
            and reach each other's memory without the window: then only locks are made.
        """

    def put(self, data: NDArray[Any], dst: int, start: int) -> Request:
        """Begin to write a C-contiguous array to rank `dst`'s memory, from byte `start` on.

        The request is complete once `data` may be changed. `attach` must have got memory.
        """

    def get(self, into: NDArray[Any], src: int, start: int) -> Request:
        """Begin to read from rank `src`'s memory, from byte `start` on, into a C-contiguous array.

        `attach` must have got memory.
        """

    def flush(self, dst: int) -> None:
        """Wait until all data that this rank put to `dst` have arrived. Blocks in the library."""

    def acquire(self, dst: int) -> Request:
        """Begin to acquire the lock of rank `dst`; complete once it is acquired."""

    def release(self, dst: int) -> Request:
        """Begin to release the lock of rank `dst`."""

    def order(self) -> None:
        """Order this rank's reads and writes of memory before the call and after it. Local."""

    def free(self) -> None:
        """Free the window. Collective; blocks in the library. Not called after a failure."""


class Survival(Protocol):
    """The abilities of a library that survives lost ranks, for one communicator.

    Attributes
    ----------
    epoch : int
        The number of times that ranks were left out on the way to this communicator.
    """

    epoch: int

    def lost(self, seconds: float = 0.0) -> tuple[int, ...]:
        """Return the ranks that this process knows to be lost. Local; from any thread.

        Blocks at most `seconds`, until a lost rank is known.
        """

    def release(self) -> None:
        """End every call of the communicator, on all ranks, including calls that block in the library.

        Local; from any thread; never blocks; idempotent. Only `shrunk` and `agreed` work after it.
        """

    def shrunk(self, epoch: int, attempt: int) -> "tuple[Backend, tuple[int, ...]]":
        """Return a backend of the ranks that are left, also after a failure.

        Collective over these ranks; blocks until each has called or is lost too.

        Parameters
        ----------
        epoch : int
            The epoch of the new communicator.
        attempt : int
            The number of the attempt for that epoch; the same on all ranks.

        Returns
        -------
        Backend
            The new backend. Its ranks are in the same order.
        tuple of int
            The ranks that were left out; the same on all ranks.
        """

    def agreed(self, flags: int) -> int:
        """Return the bits that are set in the `flags` of all ranks that are left; the same on all these ranks.

        Collective over these ranks, also after a failure; blocks until each has called or is lost too.
        """


Buffer = NDArray[Any] | None
"""A flat array of the signature's dtype; None on a rank that has no such array."""

Start = Callable[[Buffer, Buffer], Steps]
"""``start(send, recv)`` returns the polled steps of a call, and may begin the call at once."""


def both(send: Buffer, recv: Buffer) -> tuple[Buffer, Buffer]:
    """Return the arrays of a call as its arguments."""
    return send, recv


class Implementation(NamedTuple):
    """Functions that carry out the calls of one signature on arrays in host memory.

    Attributes
    ----------
    start : callable
        ``start(send, recv)`` returns the polled steps. If one rank uses this form, every rank must.
    run : callable or None
        ``run(*arguments(send, recv))`` blocks in the backend's library; None if that is not faster than polling.
    arguments : callable
        ``arguments(send, recv)`` returns the arguments of ``run``; by default the two arrays. The arguments are valid
        for later calls on the same arrays too, so that a plan makes them once.
    agreed : bool
        Whether the implementation may exist on some ranks only, so that ranks must agree first.
    any_size : bool
        Whether it also serves calls that differ only in their sizes, from half to twice its bytes.
    planned : callable or None
        ``planned()`` returns the choice and the implementation that a plan uses in place of this one if all ranks have
        one and agree on it, or None.
    """

    start: Start
    run: Callable[..., object] | None = None
    arguments: Callable[[Buffer, Buffer], tuple[Any, ...]] = both
    agreed: bool = False
    any_size: bool = False
    planned: "Callable[[], tuple[Choice, Implementation] | None] | None" = None


Split = Callable[[int | None, int, int], "Backend | None"]
"""Makes the backend of a rank's group; see `Backend.split`."""


class Backend(Protocol):
    """The ranks of one communicator, and the communication between them.

    Attributes
    ----------
    name : str
        Name of the backend, as in ``comm.backends``.
    rank, size : int
        This rank in the communicator, and the number of ranks.
    topology : Topology
        The ranks of each node.
    collectives, messages : Transport
        Two transports that do not disturb each other: for hpccomm's algorithms and control, and for the
        user's point-to-point calls.
    thread_restriction : str
        Empty if any thread may use the backend at any time; else why not.
    shares_process : bool
        Whether ranks are threads of one process.
    mpi_comm : object
        The mpi4py communicator that the backend was made from, or None.
    uid : str
        Identifies this communicator: equal on all its ranks, and different from that of any other communicator.
    members : sequence of int
        The communicator's ranks, as ranks of the job.
    side : SideChannel or None
        The channel by which ranks ask each other about waiting calls; None if there is none.
    survival : Survival or None
        The means by which the remaining ranks go on when others are lost; None if they cannot.
    recovery : str
        Advice for a program that has lost a rank, for error messages. Empty if ranks cannot be lost.
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

    def native(self, signature: Signature, *, apart: bool = False) -> Implementation | None:
        """Return the backend's own form of a call, or None if it has none with the same meaning. Local.

        With `apart`, the form must not match any call that is made without `apart`: ranks compare their
        calls by it. If it depends on facts that may differ between ranks, ``Implementation.agreed`` is set.
        """

    def group(self, ranks: Sequence[int], label: int) -> "Backend":
        """Return the backend of the group of `ranks`, in that order. All of these ranks call it.

        Blocks until they have called. No other group of these ranks has the same `label`.
        """

    @property
    def split(self) -> "Split | None":
        """The library's ``split(color, key, label)``; None if the library makes only groups of known ranks.

        It returns the backend of the ranks that give the same color, ordered by key and then by rank; None
        for the color None. Collective over all ranks; blocks until all have called. Colors are from 0 to
        2^31 - 1, keys from -(2^31 - 1) to 2^31 - 1. `label` is as for `group`.
        """

    def planned(self) -> Transport:
        """Return a new transport for the messages of plans. No other messages disturb it.

        Its tags are as in `messages`. Collective, in the same order on all ranks; blocks until all
        have called. `close` frees it.
        """

    def window(self) -> OneSided | None:
        """Return one-sided communication between all ranks; None if the backend lacks it.

        Collective, in the same order on all ranks; blocks until all have called.
        """

    def translate(self, error: Exception) -> HpccommError | None:
        """Return the library's `error` as one of hpccomm's, or None if it is not the library's."""

    def end_job(self, reason: str) -> None:
        """End all processes of the job. It returns only if that is impossible."""

    def abandon(self) -> None:
        """Note that the communicator has failed: nothing may need a peer from now on.

        Local; from any thread; never blocks; idempotent.
        """

    def close(self) -> None:
        """Free what the backend owns. Collective; not called after a failure."""
