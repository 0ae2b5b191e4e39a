"""The interface of a backend: what it gives to a communicator.

The packages in `hpccomm.backends`, and other packages, implement it. The communicator and
`hpccomm.calls` call it.

By its side channel, ranks ask each other about their calls, while calls wait. It works without a thread that is stuck in a
call: another thread of the process answers. It moves small facts, never arrays, and only when a call waits long or has
failed. `hpccomm.runtime.inquiry` asks.
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
"""Plain data that JSON can hold: a question, or what a rank answers to one."""

ANSWERED, GONE, STOPPED, SILENT = "answered", "gone", "stopped", "silent"
"""What became of a question. The rank answered; its process is not there any more; its process is
stopped, by SIGSTOP or a debugger; it is there, or may be, and did not answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one rank.

    Attributes
    ----------
    state : str
        `ANSWERED`, `GONE`, `STOPPED` or `SILENT`.
    facts : mapping
        The answer. For a silent rank only the facts known without it: ``"host"`` and ``"pid"`` of
        its process.
    """

    state: str
    facts: Facts = field(default_factory=dict)


class SideChannel(Protocol):
    """The way to the other ranks of one communicator that no stuck call can block."""

    def ask(self, ranks: Sequence[int], question: Facts, seconds: float) -> dict[int, Answer]:
        """Ask ranks of the communicator, all at the same time. Local; blocks at most `seconds`.

        From any thread. Each answers with the result of ``hpccomm.runtime.answering.answer`` there.

        Parameters
        ----------
        ranks : sequence of int
            Whom to ask; this rank itself is allowed.
        question : mapping
            ``"comm"`` names the communicator by its ``uid``. The channel adds ``"rank"``: who is asked.
        seconds : float
            How long to wait for all answers together.

        Returns
        -------
        dict
            An `Answer` for each of `ranks`.
        """


def group_uid(uid: str, ranks: Sequence[int], label: object) -> str:
    """Return the uid of a group, which each member derives from that of the communicator.

    `ranks` are its members there; `label` distinguishes groups of the same ranks.
    """
    name = f"{uid} {label} {','.join(map(str, ranks))}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


class OneSided(Protocol):
    """One-sided communication between the ranks of one window.

    Offsets and counts are in bytes. What one rank wrote, another one reads rightly only once the two
    have synchronised: the writer calls `order` (after `flush`, if it wrote by `put`), then sends
    something; the reader receives that, then calls `order`. Or the writer releases a lock, and the reader
    acquires it.

    Attributes
    ----------
    signals : Transport
        Messages between these ranks that meet no others. Its `shared` is the window's own too: calls
        of the communicator that go on by themselves use theirs meanwhile.
    """

    signals: Transport

    def attach(self, memory: NDArray[np.uint8] | None) -> None:
        """Let all ranks put to this rank's memory, get from it, and lock it. Collective; blocks.

        Parameters
        ----------
        memory : ndarray of uint8, 1-D, or None
            It may be empty. It lives as long as the window. None where the ranks reach each other's memory
            without it: they are of one node, and lock alone.
        """

    def put(self, data: NDArray[Any], dst: int, start: int) -> Request:
        """Begin to write a C-contiguous array to rank `dst`'s memory, from byte `start` on.

        Complete once `data` may be changed. Only after `attach` of memory.
        """

    def get(self, into: NDArray[Any], src: int, start: int) -> Request:
        """Begin to read from rank `src`'s memory, from byte `start` on, into a C-contiguous array.

        Only after `attach` of memory.
        """

    def flush(self, dst: int) -> None:
        """Wait until all that this rank put to `dst` is there. It blocks in the library."""

    def acquire(self, dst: int) -> Request:
        """Begin to take the one lock of rank `dst`; complete once it is taken."""

    def release(self, dst: int) -> Request:
        """Begin to give the lock of rank `dst` back."""

    def order(self) -> None:
        """Order this rank's reads and writes of memory before the call and after it. Local."""

    def free(self) -> None:
        """End it. Collective; it blocks in the library. Not called after a failure."""


class Survival(Protocol):
    """The abilities of a library that survives lost ranks, for one communicator.

    Attributes
    ----------
    epoch : int
        How often ranks were left out to come to this communicator.
    """

    epoch: int

    def lost(self, seconds: float = 0.0) -> tuple[int, ...]:
        """Return the ranks that this process knows to be lost. Local; from any thread.

        Blocks at most `seconds`, until one is known.
        """

    def release(self) -> None:
        """End every call of the communicator, on all ranks, those blocked in the library too.

        Local; from any thread; never blocks; idempotent. Nothing but `shrunk` and `agreed` works after it.
        """

    def shrunk(self, epoch: int, attempt: int) -> "tuple[Backend, tuple[int, ...]]":
        """Make a communicator of the ranks that are left, also after a failure.

        Collective over them; blocks until all have called or are lost too.

        Parameters
        ----------
        epoch : int
            Of the new communicator.
        attempt : int
            Tells apart what is made for the same epoch; the same on all ranks.

        Returns
        -------
        Backend
            Its ranks are in the same order.
        tuple of int
            The ranks that were left out, the same on all.
        """

    def agreed(self, flags: int) -> int:
        """Return the bits that are set in the `flags` of all ranks that are left: the same on all.

        Collective over them, also after a failure; blocks until all have called or are lost too.
        """


Buffer = NDArray[Any] | None
"""A flat array of the signature's dtype, or None on a rank without one."""

Start = Callable[[Buffer, Buffer], Steps]
"""``start(send, recv)`` gives the polled steps of a call, which may begin at once."""


def both(send: Buffer, recv: Buffer) -> tuple[Buffer, Buffer]:
    """Return the arrays of a call as its arguments."""
    return send, recv


class Implementation(NamedTuple):
    """Functions that carry out the calls of one signature on arrays in host memory.

    Attributes
    ----------
    start : callable
        ``start(send, recv)`` returns the polled steps. Every rank must take this form.
    run : callable or None
        ``run(*arguments(send, recv))`` blocks in the backend's library; None if that is not faster than polling.
    arguments : callable
        ``arguments(send, recv)`` returns the arguments of ``run``; without one these are the two arrays. They are valid
        for later calls on the same arrays too: a plan makes them once.
    agreed : bool
        Whether availability may differ between ranks, so that they must agree first.
    any_size : bool
        Whether it also serves calls that differ in their sizes alone, of half to twice its bytes.
    planned : callable or None
        Returns the choice and the implementation that a plan takes in its place if all ranks have such and have
        agreed on it, or None.
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
        How its ranks ask each other about waiting calls; None where they cannot.
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

    def native(self, signature: Signature, *, apart: bool = False) -> Implementation | None:
        """Return the backend's own form of a call, or None if it lacks it or means something else.

        `apart` says that it must not meet the calls that are carried out without it, whatever these are: ranks compare
        their calls by it. Local. If it depends on facts that may differ between ranks, ``Implementation.agreed`` is set.
        """

    def group(self, ranks: Sequence[int], label: int) -> "Backend":
        """Return the backend of the group of `ranks`, in that order. Called by all of them.

        Blocks until they have. No other group of these ranks has that `label`.
        """

    @property
    def split(self) -> "Split | None":
        """``split(color, key, label)``, by the library; None where it makes only groups of known ranks.

        It returns the backend of the ranks that give the same color, ordered by key and then by rank; None
        for the color None. Collective over all ranks; blocks until all have called. Colors are from 0 to
        2^31 - 1, keys as far from 0. `label` is as of `group`.
        """

    def planned(self) -> Transport:
        """Return a new transport, for the messages of plans, which no other messages disturb.

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
        """End all processes of the job; does not return where it can be done."""

    def abandon(self) -> None:
        """Note that the communicator has failed: nothing may need a peer from now on.

        Local; from any thread; never blocks; idempotent.
        """

    def close(self) -> None:
        """Free what the backend owns. Collective; not called after a failure."""
