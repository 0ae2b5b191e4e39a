"""`Communicator`: its facts, and a table of its methods, which the other modules define."""

from typing import TYPE_CHECKING, Any

from hpccomm.calls.core import Core
from hpccomm.communicator import (
    arrivals,
    collectives,
    groups,
    memory,
    messages,
    objects,
    reductions,
    turns,
    uneven,
)
from hpccomm.communicator import grid as grids
from hpccomm.communicator import grid as mesh
from hpccomm.communicator import planning as plans
from hpccomm.runtime.reports import AbortHook, Handle, Hook, Key, Tally
from hpccomm.settings import check_seconds
from hpccomm.spelling import Hinting, respell

if TYPE_CHECKING:
    from os import PathLike

    from hpccomm.communicator.groups import Make
    from hpccomm.communicator.recording import ProgramRecorder


class Communicator(Hinting):
    """A group of ranks that communicate. Made by `hpccomm.new_comm`.

    Only one thread at a time may call it; `abort` and `set_timeout` may be called from any thread. It is a
    context manager: leaving it normally finalizes it. Leaving it by an exception tells the other ranks of that,
    prints it, and aborts the communicator, locally.

    In place are `all_reduce`, `reduce` (at the root) and `broadcast`, as in ``torch.distributed``, and nothing
    else: all other calls leave x alone and return a new array, unless ``out`` is given.

    Attributes
    ----------
    rank, size : int
        This process's number, and the number of ranks.
    name : str
        For messages and logs.

    Notes
    -----
    The common keywords of the calls on arrays are equal on all ranks, except `timeout` and `stream`:

    ``async_op=False``
        If True, return a `Work` at once.
    ``timeout=None``
        Deadline in seconds. None is the communicator's deadline, ``math.inf`` sets none.
    ``algorithm=None``
        None, ``"auto"``, or an algorithm name; an unknown one raises an error that lists the valid ones. Or a
        function that makes the schedule (:doc:`/how_to/adding_an_algorithm`), the same on all ranks.
    ``deterministic=False``
        Of reductions. If True, combine the contributions in rank order, so that the same input gives the same
        bits. With ``"any ranks"``, sums of floats have the same bits on any number of ranks, and in any order.
    ``stream=None``
        Of device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is the current
        one of the array's framework.
    """

    def __init__(self, core: Core, make: "Make[Communicator]", node: "Communicator | None") -> None:
        self._core = core
        self._make = make
        self._node = node
        self.rank = core.backend.rank
        self.size = core.backend.size

    broadcast = collectives.broadcast
    all_gather = collectives.all_gather
    all_to_all = collectives.all_to_all
    gather = collectives.gather
    scatter = collectives.scatter
    barrier = collectives.barrier
    neighbor_all_to_all = collectives.neighbor_all_to_all

    all_reduce = reductions.all_reduce
    reduce = reductions.reduce
    reduce_scatter = reductions.reduce_scatter
    scan = reductions.scan

    all_gather_v = uneven.all_gather_v
    reduce_scatter_v = uneven.reduce_scatter_v
    all_to_all_v = uneven.all_to_all_v
    gather_v = uneven.gather_v
    scatter_v = uneven.scatter_v

    send = messages.send
    recv = messages.recv
    send_recv = messages.send_recv
    probe = arrivals.probe

    broadcast_object = objects.broadcast_object
    all_gather_object = objects.all_gather_object
    gather_object = objects.gather_object
    scatter_object = objects.scatter_object
    send_object = objects.send_object
    recv_object = objects.recv_object

    empty = memory.empty
    window = memory.window
    counter = turns.counter
    mutex = turns.mutex
    in_turn = turns.in_turn

    explain = plans.explain
    plan = plans.plan
    batch = plans.batch

    grid = grids.grid
    mesh = mesh.mesh

    split = groups.split
    split_ranks = groups.split_ranks
    dup = groups.dup
    shrink = groups.shrink
    finalize = groups.finalize
    abort = groups.abort

    # Facts.

    @property
    def name(self) -> str:
        """Name of the communicator."""
        return self._core.calls.name

    @property
    def local_rank(self) -> int:
        """Number of this rank among its node's ranks."""
        return self._core.backend.topology.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this node."""
        return len(self._core.backend.topology.neighbors(self.rank))

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
        """Whether asynchronous operations progress without a wait, and any thread may call.

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
    def node_comm(self) -> "Communicator":
        """The communicator of this node's ranks, made together with this one.

        Where all ranks are on one node, it is this communicator itself. It ends with this one; do not end
        it by itself.
        """
        return self if self._node is None else self._node

    # Watching.

    def record(self, path: "str | PathLike[str] | None" = None) -> "ProgramRecorder":
        """Record every call that the program makes, on any communicator. Collective; blocks.

        The recording ends with the ``with`` statement, by ``close()``, or when this communicator is finalized. All
        ranks' times are on one clock. A call costs about a microsecond more meanwhile.

        Parameters
        ----------
        path : path-like, optional
            A results file, to which the recording is added; the same on all ranks. Until the end, each rank writes to
            a file of its own beside it. None gives the recording when it has ended.

        Returns
        -------
        ProgramRecorder
            It marks the steps of the program. Once it has ended it has the recording, and who kept others waiting.

        Raises
        ------
        UsageError
            On every rank, if the program is recorded already.
        ResultsError
            On every rank, if one cannot write its file.

        Examples
        --------
        >>> from hpccomm.testing import run_ranks
        >>> def program(comm):
        ...     with comm.record() as recorder:
        ...         comm.barrier()
        ...     return recorder.recording
        >>> recording, _ = run_ranks(2, program)
        >>> list(recording.operations()), len(recording.calls["begin"])
        (['barrier'], 2)
        """
        from hpccomm.communicator.recording import ProgramRecorder  # which loads h5py

        return ProgramRecorder(self, path)

    def stats(self) -> dict[Key, Tally]:
        """Return calls, bytes and seconds so far. Local.

        Returns
        -------
        dict of (str, str) to Tally
            By call and size class, such as ``("all_reduce", "to 1 KiB")``.
        """
        return self._core.calls.reports.snapshot()

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
            Its ``close()`` takes the hook off.
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
            Its ``close()`` takes the hook off.
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
            Its ``close()`` takes the hook off.
        """
        return self._core.calls.failure.hooks.register(hook)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is None:
            self.finalize()
        else:
            respell(error)
            groups.leave(self, error)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} over {name}" for kind, name in self.backends.items() if name)
        return f"<hpccomm.Communicator {self.name!r}: rank {self.rank} of {self.size}, {kinds}>"
