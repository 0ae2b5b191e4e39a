"""The communicator, put together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpccomm.communicator import planning
from hpccomm.communicator.arrivals import Probing
from hpccomm.communicator.collectives import Collectives
from hpccomm.communicator.core import Core
from hpccomm.communicator.groups import Groups
from hpccomm.communicator.memory import MemoryCalls
from hpccomm.communicator.messages import Messages
from hpccomm.communicator.objects import Objects
from hpccomm.communicator.planning import Batch, Plan, Planning
from hpccomm.communicator.reductions import Reductions
from hpccomm.communicator.uneven import Uneven
from hpccomm.contracts.choice import Choice
from hpccomm.dispatch.policy import Policy
from hpccomm.errors import UsageError
from hpccomm.runtime.hooks import AbortHook, Handle, Hook
from hpccomm.runtime.stats import Key, Tally
from hpccomm.settings import check_bool, check_seconds

if TYPE_CHECKING:
    from hpccomm.communicator.mesh import Mesh


class Communicator(
    Collectives, Reductions, Uneven, Messages, Probing, Objects, MemoryCalls, Groups
):
    """A group of ranks that communicate. Made by `hpccomm.new_comm`.

    Only one thread at a time may call it; `abort` and `set_timeout` may be called from any thread. It is a
    context manager: leaving it normally finalizes it, leaving it by an exception aborts it locally.

    Attributes
    ----------
    rank, size : int
        This process's number, and the number of ranks.
    name : str
        For messages and logs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.rank = core.backend.rank
        self.size = core.backend.size

    # Facts.

    @property
    def name(self) -> str:
        """Name of the communicator."""
        return self._core.calls.name

    @property
    def local_rank(self) -> int:
        """Number of this rank among those of its node."""
        return self._core.backend.topology.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this node."""
        return len(self._core.backend.topology.neighbours(self.rank))

    @property
    def node(self) -> int:
        """Number of this rank's node; nodes are numbered by their lowest rank."""
        return self._core.backend.topology.node_of[self.rank]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._core.backend.topology.num_nodes

    @property
    def device(self) -> int | None:
        """CUDA device of this rank, or None if the process sees none."""
        return self._core.device

    @property
    def background(self) -> bool:
        """Whether asynchronous operations go on while nobody waits for them, and any thread may call.

        It is False where MPI was started with less than ``MPI_THREAD_MULTIPLE``.
        """
        return self._core.calls.progress.threaded

    @property
    def backends(self) -> dict[str, str | None]:
        """Names of the backends, for host and for device arrays.

        ``"cuda"`` is ``"nccl"``; ``"mpi"`` if a CUDA-aware MPI library takes device arrays directly;
        ``"staged"`` if they go through host memory; None if device arrays are refused.
        """
        lanes = self._core.lanes
        return {"host": lanes.host.name, "cuda": lanes.device.name}

    @property
    def mpi_comm(self) -> Any:
        """The mpi4py communicator that this one was made from, or None without MPI.

        The MPI communicator of a group belongs to hpccomm: duplicate it before you use it.
        """
        return self._core.backend.mpi_comm

    @property
    def policy(self) -> Policy:
        """What chooses the algorithm for ``algorithm="auto"``: by which table, for which shape."""
        return self._core.lanes.host.dispatch.policy

    # Deciding.

    def explain(self, collective: str, *args: Any, **keywords: Any) -> Choice:
        """Return how a call would be carried out, and why. Local: nothing is sent.

        Parameters
        ----------
        collective : str
            Name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``.
        *args, **keywords
            Its arguments.

        Returns
        -------
        Choice
            Prints as a sentence.

        Raises
        ------
        UsageError
            If the call would raise it.
        """
        return planning.explain(self._core, self, collective, args, keywords)

    def plan(self, collective: str, *args: Any, **keywords: Any) -> Plan:
        """Check a call and decide how to carry it out, once, to make it many times. Collective; blocks.

        Parameters
        ----------
        collective : str
            Name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``. For a message, each rank plans
            its own end, and those that have no part in it plan a send or receive with rank None.
        *args, **keywords
            Its arguments. Counts must not be None. The arrays are kept alive.

        Returns
        -------
        Plan
            Called without arguments, on any stream. If the plan makes a new result in device memory, it
            waits for the current stream first, within the deadline of the communicator.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On the other ranks in that case, and on all ranks if they plan different calls, or messages that
            do not fit each other.
        """
        return planning.plan(self._core, self, collective, args, keywords)

    def planning(self, timeout: float | None = None) -> Planning:
        """Return a context manager that plans the calls of its block, to make all of them many times.

        Nothing is sent within the block. At its end, which is collective and blocks, the ranks compare their
        calls: collectives must be the same, in the same order, and what one rank sends must be what the other
        one receives, message by message. The plan is called after the block, without arguments. It carries out
        one call after the other, and together those of a `batch`.

        Messages of plans on host arrays match those of the same plan alone. Where the MPI library moves them,
        their requests are persistent: made once, and only started by the plan.

        Parameters
        ----------
        timeout : float, optional
            Deadline of one call of the plan in seconds, for all that it does; None is the communicator's.
            Calls in the block take no timeout, and no ``async_op=True``.

        Returns
        -------
        Planning
            For a ``with`` statement, whose target is the `Plan`.

        Raises
        ------
        UsageError
            If the block is within another one, or within a batch. At its end, if calls of a batch write memory
            that another one uses. What the block raises on this rank, it raises.
        RankMismatch
            At its end, on the other ranks in these cases; and on all ranks, if the calls do not fit each other.
        """
        return Planning(self._core, self._core.limit(timeout))

    def batch(self, async_op: bool = False, timeout: float | None = None) -> Batch:
        """Return a context manager whose calls are issued together at its end.

        All ranks that take part in its collectives must make the same batch. Inside the batch, calls return
        what they always return, but the arrays are filled only after its end. If its body raises, nothing
        is issued.

        Parameters
        ----------
        async_op : bool
            Do not wait at the end; ``batch.work`` is the `Work`.
        timeout : float, optional
            Deadline of the whole batch in seconds; None is the communicator's. Calls inside it take no
            timeout.

        Returns
        -------
        Batch
            For a ``with`` statement.
        """
        check_bool("async_op", async_op)
        core = self._core
        return Batch(core, async_op, core.limit(timeout))

    def mesh(self, shape: Sequence[int], names: Sequence[str]) -> "Mesh[Communicator]":
        """Return the ranks as a grid with named dimensions, whose groups are made by name. Collective; blocks.

        Parameters
        ----------
        shape : sequence of int
            Lengths of the dimensions. Ranks run along the last one first: give it to what communicates most, so that
            it stays within nodes. -1 or 0 is chosen to fit; several are chosen about equal, the larger first.
        names : sequence of str
            Of the dimensions, such as ``("dp", "tp")``.

        Returns
        -------
        Mesh
            ``mesh["tp"]`` is a communicator, which its first use makes.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On the other ranks in that case, and on all ranks if they differ.
        """
        from hpccomm.communicator.mesh import Mesh  # few programs have one

        def agree(what: str, asked: dict[str, object], error: UsageError | None) -> None:
            with self._core.outside_batch(what):
                self._core.agree(what, asked, error)

        return Mesh(self, agree, shape, names)

    # Watching.

    def stats(self) -> dict[Key, Tally]:
        """Return calls, bytes and seconds so far. Local.

        Returns
        -------
        dict of (str, str) to Tally
            By call and size class, such as ``("all_reduce", "to 1 KiB")``.
        """
        return self._core.calls.reports.stats.snapshot()

    def set_timeout(self, timeout: float) -> None:
        """Set the deadline of later calls. Local; may be called from any thread.

        Parameters
        ----------
        timeout : float
            Seconds, ``math.inf`` for none.
        """
        self._core.calls.timeout = check_seconds("timeout", timeout)

    def register_pre_hook(self, hook: Hook) -> Handle:
        """Call ``hook(info)`` before each call. Local.

        Parameters
        ----------
        hook : callable
            Takes a `CallInfo`.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.
        """
        return self._core.calls.reports.pre_hooks.register(hook)

    def register_post_hook(self, hook: Hook) -> Handle:
        """Call ``hook(info)`` when a call has ended. Local.

        For an asynchronous call, the hook runs in the thread that completes the call. It must not wait for
        another call.

        Parameters
        ----------
        hook : callable
            Takes a `CallInfo`.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.
        """
        return self._core.calls.reports.post_hooks.register(hook)

    def register_abort_hook(self, hook: AbortHook) -> Handle:
        """Call ``hook(error)`` once, when the communicator fails or is aborted. Local.

        Parameters
        ----------
        hook : callable
            Takes the error.

        Returns
        -------
        Handle
            Its ``remove()`` removes the hook.
        """
        return self._core.calls.failure.hooks.register(hook)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.finalize()
        else:
            self.abort()

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} over {name}" for kind, name in self.backends.items() if name)
        return f"<hpccomm.Communicator {self.name!r}: rank {self.rank} of {self.size}, {kinds}>"
