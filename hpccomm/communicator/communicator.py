"""`Communicator`: the class, with all its methods. The modules beside it and `hpccomm.calls` carry them out."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from numpy.typing import DTypeLike

from hpccomm.calls.core import Core
from hpccomm.communicator import groups, memory, planning, windows
from hpccomm.communicator.arrivals import Message, probed, received_object
from hpccomm.communicator.grid import Grid, Mesh
from hpccomm.communicator.messages import exchange_arrays, receive_array, send_array
from hpccomm.communicator.objects import Rank, Tag, exchange_pickled, receive_pickled, send_pickled
from hpccomm.communicator.packing import along, broadcast_to_out
from hpccomm.communicator.planning import Batch, Plan
from hpccomm.communicator.turns import Counter, Mutex, turn
from hpccomm.communicator.uneven import listed, listed_peers, without_counts
from hpccomm.communicator.windows import Window
from hpccomm.contracts.signature import Choice
from hpccomm.contracts.transport import ANY
from hpccomm.reductions import Deterministic, Op, ReduceOp
from hpccomm.runtime.reports import AbortHook, Handle, Hook, Key, Tally
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool, check_seconds
from hpccomm.spelling import Hinting, respell

if TYPE_CHECKING:
    from os import PathLike

    from hpccomm.communicator.recording import ProgramRecorder

SUM = ReduceOp.SUM


class Communicator(Hinting):
    """A group of ranks that communicate. Made by `hpccomm.new_comm`.

    Only one thread at a time may call it; `abort` and `set_timeout` may be called from any thread. It is a context
    manager: leaving it normally finalizes it. Leaving it by an exception tells the other ranks of the exception, prints
    it, and aborts the communicator, locally.

    Only `all_reduce`, `reduce` (at the root) and `broadcast` work in place, as in ``torch.distributed``. All other
    calls leave x alone and return a new array, unless ``out`` is given.

    Attributes
    ----------
    rank, size : int
        This process's number, and the number of ranks.
    name : str
        The name in messages and logs.

    Notes
    -----
    **Collectives.** All ranks of the communicator make the same calls, in the same order, with equal keywords, except
    `timeout`, `stream` and `return_counts`.

    `x` and `out` are arrays, both in host memory (NumPy, or anything with the buffer protocol or DLPack) or both on
    this rank's device (CuPy, PyTorch, or anything with ``__cuda_array_interface__`` or CUDA DLPack), and in the same
    kind of memory on all ranks. They must be C-contiguous, in native byte order, and writable if the call writes to
    them; with an `axis` they may have any layout. `x` has the same dtype on all ranks, and if the method has no counts,
    the same shape. A number (Python's, of a class that is derived from it, or NumPy's) may take the place of x
    where the method says so; any other scalar of NumPy's, such as a ``numpy.datetime64``, is taken as a 0-d array.
    `out` may have any shape with the right number of elements. It is returned if given, else x or a new array.

    On host arrays, a synchronous call blocks until the result is complete. On device arrays, a call is put on a stream:
    it begins when the earlier work of that stream is done, and later work on that stream sees the result. The host does
    not wait, unless it takes part in the call: if ``comm.backends["cuda"]`` is not ``"nccl"``, or if NCCL lacks the
    call, which `explain` tells. The deadline starts with the call and includes the earlier work of the stream. When it
    passes, the communicator is aborted and later calls raise.

    **Messages** with the same sender, receiver, tag and dtype arrive in order. Receive arrays of different dtypes with
    the same sender and tag in the order in which they are sent, or give them different tags. That holds for
    asynchronous receives, too, and within a batch: the first waiting receive takes a message of another dtype, and
    raises, even if a later receive has that dtype. A message of another size or dtype than `out` raises
    `BufferMismatch`, and is lost; the communicator can still be used. Strided arrays are copied before or after.

    **Objects** are pickled (protocol 5); the memory of large arrays in them is sent without a copy. Only unpickle what
    ranks of your own job send. If one cannot be pickled, its rank raises `UsageError`, others `CommunicationError`.

    **Errors.** A call raises `UsageError` if an argument does not fit, before anything is sent, and
    `CommunicationError` if it fails or its deadline passes. Some calls compare their arguments over the ranks first,
    such as `plan` and those that make groups. If one rank raises `UsageError` there, or arguments differ, the others
    raise `RankMismatch`. A method names what else it raises.

    **Arguments** of many calls, which the methods do not explain again:

    ``async_op=False``
        If True, return a `Work` at once, whose ``wait()`` gives what the call returns.
    ``timeout=None``
        Deadline in seconds. None is the communicator's deadline, ``math.inf`` sets none.
    ``algorithm=None``
        None, ``"auto"``, or an algorithm name; an unknown name raises an error that lists the valid ones. Or a function
        that makes the schedule (:doc:`/how_to/adding_an_algorithm`), the same on all ranks.
    ``stream=None``
        The stream of a call on device arrays: a CuPy stream, its number, or an object with ``__cuda_stream__``. None is
        the current stream of the array's framework.
    ``op=ReduceOp.SUM``
        The reduction: a `ReduceOp`, ``premul_sum(factor)`` or a callable. A callable must be an elementwise function of
        two arrays, and without `deterministic` also commutative and associative. It is first called on a few values as
        a check. It may be called on slices, and must not modify them.
    ``deterministic=False``
        If True, a reduction combines the contributions in rank order, so that the same input gives the same bits.
        With ``"any ranks"``, sums of floats have the same bits on any number of ranks, and in any order.
    ``root=0``
        The rank whose data is sent, or that gets the result.
    ``axis=None``
        An axis in place of axis 0: the one along which x is split, or that of the ranks in the result.
    ``counts=None``
        Rows (along axis 0) of each rank, a sequence of int, the same on all ranks. Rows have the same shape on all
        ranks. None exchanges them first, which blocks, even with ``async_op=True``; all ranks give them, or none.
    ``return_counts=False``
        If True, return a pair of the result and the counts of what arrives, a tuple of int. Ranks may differ in it.
    ``dst``, ``src``, ``tag=0``
        The receiver and the sender of a message, and a number that distinguishes it among arrays or among objects.
    """

    def __init__(
        self, core: Core, make: "groups.Make[Communicator]", node: "Communicator | None"
    ) -> None:
        self._core = core
        self._make = make
        self._node = node
        self.rank = core.backend.rank
        self.size = core.backend.size

    # Facts.

    @property
    def name(self) -> str:
        """Name of the communicator."""
        return self._core.calls.name

    @property
    def local_rank(self) -> int:
        """Number of this rank among the ranks of its node, from 0."""
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

        It is False if MPI was started with less than ``MPI_THREAD_MULTIPLE``.
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

        If all ranks are on one node, it is this communicator itself. It ends with this communicator: do not finalize
        or abort it alone.
        """
        return self if self._node is None else self._node

    # Collectives that reduce.

    def all_reduce(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks in place; every rank gets the result, in x or `out`.

        Parameters
        ----------
        x : array or number
            This rank's contribution.
        out : array or "new", optional
            The array for the result; "new" makes one. If it is None, the result is written to x.
        op, async_op, timeout, algorithm, deterministic, stream : see the class
        """
        return self._core.collective(
            "all_reduce", x, out, async_op, timeout, algorithm, stream, op, deterministic
        )

    def reduce(
        self,
        x: Any,
        root: int = 0,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks in place at the root, which gets the result in x or `out`; others get None.

        Parameters
        ----------
        x : array or number
            This rank's contribution. It is not changed on other ranks.
        out : array or "new", optional
            As in `all_reduce`, on the root. Other ranks do not use it.
        root, op, async_op, timeout, algorithm, deterministic, stream : see the class
        """
        return self._core.collective(
            "reduce", x, out, async_op, timeout, algorithm, stream, op, deterministic, root
        )

    def reduce_scatter(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        axis: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of all ranks; rank i gets block i of the result, in a new array or `out`.

        Parameters
        ----------
        x : array
            This rank's contribution. Axis 0 must be divisible by the number of ranks.
        out : array, shape ``(x.shape[0] // size, *x.shape[1:])``, optional
            The array for the block. It may be this rank's block of x.
        op, axis, async_op, timeout, algorithm, deterministic, stream : see the class
        """
        core = self._core
        carry_out = core.collective if axis is None else along(core, axis)
        return carry_out(
            "reduce_scatter", x, out, async_op, timeout, algorithm, stream, op, deterministic
        )

    def scan(
        self,
        x: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        exclusive: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
        stream: object = None,
    ) -> Any:
        """Reduce the arrays of the ranks up to this one, into a new array or `out`.

        Parameters
        ----------
        x : array or number
            This rank's contribution.
        out : array of x's shape, optional
            The array for the result. It may be x.
        exclusive : bool
            Leave out this rank's own contribution; rank 0 gets the identity of the reduction. A callable has no
            identity: then give `out`, which rank 0 leaves as it is.
        op, async_op, timeout, algorithm, deterministic, stream : see the class; AVG is refused
        """
        return self._core.collective(
            "scan",
            x,
            out,
            async_op,
            timeout,
            algorithm,
            stream,
            op,
            deterministic,
            exclusive=exclusive,
        )

    # Collectives that reduce nothing.

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Overwrite x in place on every rank with the root's x, or write the root's x to `out`.

        Parameters
        ----------
        x : array or number
            The root's x is only read. With `out`, the x of other ranks is neither read nor written. If it is a number,
            every rank returns the root's.
        out : array or "new", optional
            The array for the result, on all ranks or on none; "new" makes one. If it is None, the result is written to
            x.
        root, async_op, timeout, algorithm, stream : see the class
        """
        core = self._core
        if out is None:
            return core.collective(
                "broadcast", x, None, async_op, timeout, algorithm, stream, None, False, root
            )
        how = async_op, timeout, algorithm, stream, None, False, root
        return broadcast_to_out(core, x, out, how)

    def all_gather(
        self,
        x: Any,
        *,
        out: Any = None,
        axis: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's array on every rank, by rank, in a new array or `out`.

        Parameters
        ----------
        x : array of shape s, or number
            It may be this rank's block of `out`.
        out : array, shape ``(size, *s)``, optional
            The array for the result.
        axis, async_op, timeout, algorithm, stream : see the class
        """
        core = self._core
        carry_out = core.collective if axis is None else along(core, axis)
        return carry_out("all_gather", x, out, async_op, timeout, algorithm, stream)

    def all_to_all(
        self,
        x: Any,
        *,
        out: Any = None,
        axis: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Send block j to rank j, and receive a block from each rank, in a new array or `out`.

        Parameters
        ----------
        x : array
            Axis 0 must be divisible by the number of ranks, unless `axis` is given.
        out : array, of x's shape if all blocks are alike, optional
            The array for the result, whose block j is from rank j. It may be x.
        axis : int or (int, int), optional
            The axis of the blocks, in place of axis 0. With two axes, x is split along the first, and the result is
            joined along the second, as in ``jax.lax.all_to_all``: ``axis=(1, 0)`` gives columns of a matrix whose rows
            are distributed. Then x is split as by ``numpy.array_split``, and its length along the second axis may
            differ between ranks: the ranks exchange their shapes first, which blocks, and raise `RankMismatch` if x
            differs along other axes. A plan or batch takes the shapes from `out`.
        async_op, timeout, algorithm, stream : see the class
        """
        core = self._core
        carry_out = core.collective if axis is None else along(core, axis)
        return carry_out("all_to_all", x, out, async_op, timeout, algorithm, stream)

    def gather(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        axis: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Collect every rank's array on the root, by rank, in a new array or `out`; other ranks get None.

        Parameters
        ----------
        x : array of shape s, or number
            On the root it may be this rank's block of `out`.
        out : array, shape ``(size, *s)``, optional
            The array for the result on the root. Other ranks do not use it.
        root, axis, async_op, timeout, algorithm, stream : see the class
        """
        core = self._core
        carry_out = core.collective if axis is None else along(core, axis)
        return carry_out("gather", x, out, async_op, timeout, algorithm, stream, None, False, root)

    def scatter(
        self,
        x: Any,
        root: int = 0,
        *,
        out: Any = None,
        axis: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Give each rank its block of the root's array, in a new array or `out`.

        Parameters
        ----------
        x : array or None
            On the root, the array; its axis 0 must be divisible by the number of ranks. On another rank without `out`,
            an array of the same shape and dtype, which is not read. With `out`, other ranks do not use x.
        out : array, shape ``(x.shape[0] // size, *x.shape[1:])``, optional
            The array for this rank's block; None makes one of the kind of x. On the root it may be the root's block of
            x.
        root, axis, async_op, timeout, algorithm, stream : see the class
        """
        core = self._core
        carry_out = core.collective if axis is None else along(core, axis)
        return carry_out("scatter", x, out, async_op, timeout, algorithm, stream, None, False, root)

    def barrier(
        self,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
    ) -> Any:
        """Wait until every rank has called `barrier`. It blocks the host.

        It neither waits for work on a device's streams nor delays that work: to include it, synchronize the stream
        first. It has no arrays and therefore no `stream`. For the other arguments see the class.
        """
        return self._core.collective("barrier", None, None, async_op, timeout, algorithm, stream)

    # Collectives on blocks of different sizes.

    def all_gather_v(
        self,
        x: Any,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Collect every rank's rows on every rank, by rank, in a new array or `out`.

        Parameters
        ----------
        x : array, shape ``(counts[rank], *rest)``
            This rank's rows. It may be this rank's block of `out`.
        out : array, shape ``(sum(counts), *rest)``, optional
            The array for the result.
        counts, return_counts, async_op, timeout, algorithm, stream : see the class
        """
        core, how = self._core, (async_op, timeout, algorithm, stream)
        if counts is None:
            return without_counts(core, "all_gather_v", x, out, (*how, return_counts))
        lists = listed(core, "all_gather_v", return_counts, counts)
        return core.collective("all_gather_v", x, out, *how, None, False, None, lists)

    def reduce_scatter_v(
        self,
        x: Any,
        counts: Any,
        op: Op = SUM,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Reduce the arrays of all ranks; rank i gets counts[i] rows of the result, in a new array or `out`.

        Parameters
        ----------
        x : array, shape ``(sum(counts), *rest)``
            This rank's contribution.
        out : array, shape ``(counts[rank], *rest)``, optional
            The array for this rank's rows. It may be this rank's block of x.
        counts, op, return_counts, async_op, timeout, algorithm, deterministic, stream : see the class; give counts
        """
        lists = listed(self._core, "reduce_scatter_v", return_counts, counts)
        how = async_op, timeout, algorithm, stream, op, deterministic, None, lists
        return self._core.collective("reduce_scatter_v", x, out, *how)

    def all_to_all_v(
        self,
        x: Any,
        send_counts: Any,
        recv_counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Send send_counts[j] rows to rank j, and receive recv_counts[j] rows from it, in a new array or `out`.

        Parameters
        ----------
        x : array, shape ``(sum(send_counts), *rest)``
            The rows for each rank, by rank.
        send_counts, recv_counts : sequence of int
            Rows for each rank, and from each rank. None as `recv_counts`, on all ranks, exchanges them first.
        out : array, shape ``(sum(recv_counts), *rest)``, optional
            The array for the rows from each rank, by rank. It may be x if `send_counts` and `recv_counts` are equal.
        return_counts, async_op, timeout, algorithm, stream : see the class
        """
        core, how = self._core, (async_op, timeout, algorithm, stream)
        if recv_counts is None:
            return without_counts(core, "all_to_all_v", x, out, (*how, return_counts), send_counts)
        lists = listed(core, "all_to_all_v", return_counts, send_counts, recv_counts)
        return core.collective("all_to_all_v", x, out, *how, None, False, None, lists)

    def gather_v(
        self,
        x: Any,
        root: int = 0,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Collect every rank's rows on the root, by rank, in a new array or `out`; other ranks get None.

        Parameters
        ----------
        x : array, shape ``(counts[rank], *rest)``
            This rank's rows. On the root it may be this rank's block of `out`.
        out : array, shape ``(sum(counts), *rest)``, optional
            The array for the result on the root. Other ranks do not use it.
        root, counts, return_counts, async_op, timeout, algorithm, stream : see the class
        """
        core, how = self._core, (async_op, timeout, algorithm, stream)
        if counts is None:
            return without_counts(core, "gather_v", x, out, (*how, return_counts), None, root)
        lists = listed(core, "gather_v", return_counts, counts)
        return core.collective("gather_v", x, out, *how, None, False, root, lists)

    def scatter_v(
        self,
        x: Any,
        root: int = 0,
        counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Give each rank its rows of the root's array, in a new array or `out`.

        Parameters
        ----------
        x : array, shape ``(sum(counts), *rest)``, or None
            On the root, the rows of all ranks. On another rank with `counts` and without `out`, an array of the same
            shape and dtype, which is not read. Else other ranks do not use x.
        counts : sequence of int, optional
            None takes them from `out` of each rank. Then `out` may be None on the root, which gets the remaining rows.
        out : array, shape ``(counts[rank], *rest)``, optional
            The array for this rank's rows; None makes one of the kind of x. On the root it may be the root's block of
            x.
        root, return_counts, async_op, timeout, algorithm, stream : see the class
        """
        core, how = self._core, (async_op, timeout, algorithm, stream)
        if counts is None:
            return without_counts(core, "scatter_v", x, out, (*how, return_counts), None, root)
        lists = listed(core, "scatter_v", return_counts, counts)
        return core.collective("scatter_v", x, out, *how, None, False, root, lists)

    def neighbor_all_to_all(
        self,
        x: Any,
        peers: Any,
        send_counts: Any = None,
        recv_counts: Any = None,
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: AnyAlgorithm | None = None,
        stream: object = None,
        return_counts: bool = False,
    ) -> Any:
        """Send block j of x to rank ``peers[j]``, and receive block j of a new array or `out` from it.

        Every rank of the communicator calls it, also a rank without peers. Lists are symmetric: rank a lists rank b
        as often as b lists a. The k-th mention of b by a matches the k-th mention of a by b. A rank may list itself. If
        lists are not symmetric, or a block is sent that is not expected, every rank raises `RankMismatch`: in the first
        call of a kind before anything is sent, later after 0.3 s.

        On a periodic grid that is two ranks wide, the left and the right neighbor are the same rank. If both ranks list
        the left neighbor first, the first block that arrives is the one that the neighbor sent to its left; it belongs
        to the right border. Let the two ranks list them in opposite order, or swap the two blocks afterwards. On a grid
        one rank wide, swap them.

        Parameters
        ----------
        x : array
            A block for each peer, one after the other along axis 0.
        peers : sequence of int or None
            The rank of each block. None stands for a missing peer, as at the border of a domain: that block of x is not
            sent, and that block of the result is left as it was in `out`; a new array has zeros there.
        send_counts, recv_counts : sequence of int, optional
            Rows of each block of x, and of the result; each list is given on all ranks or on none. Without both, blocks
            have one size on all ranks: axis 0 is divisible by the number of peers. If only `recv_counts` is None, they
            are exchanged first; then a block without a peer has no rows.
        out : array, optional
            The array for the blocks, in the order of `peers`. It may be x if its blocks have as many rows as x's.
        return_counts, async_op, timeout, algorithm, stream : see the class
        """
        core, how = self._core, (timeout, algorithm, stream)
        lists = listed_peers(core, x, out, *how, return_counts, send_counts, recv_counts, peers)
        return core.collective(
            "neighbor_all_to_all", x, out, async_op, *how, None, False, None, lists
        )

    # Messages between two ranks.

    def send(
        self,
        x: Any,
        dst: int | None,
        tag: int = 0,
        *,
        synchronous: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
    ) -> Any:
        """Send x, of any shape and dtype, to rank `dst`. Returns when x may be used again; this may need the receiver.

        Parameters
        ----------
        dst : int or None
            The receiver; with None, the call does nothing.
        synchronous : bool
            Return, or complete the `Work`, only once the receiver has begun to receive the message, as ``MPI_Ssend``.
            For host arrays, outside of plans and batches.
        tag, async_op, timeout, stream : see the class
        """
        return send_array(self._core, x, dst, tag, synchronous, async_op, timeout, stream)

    def recv(
        self,
        out: Any,
        src: Rank | None,
        tag: Tag = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
        return_src: bool = False,
    ) -> Any:
        """Receive an array from rank `src` into `out`, and return `out`.

        Parameters
        ----------
        out : array or None
            It must have exactly the size of the sent array. None makes a new 1-D host array of the message's size and
            dtype; for a dtype that a message does not name, such as a structured one, an array of the bytes (uint8).
        src : int, ANY or None
            The sender. `ANY` takes a message of any rank, for host arrays; with None, the call does nothing.
        tag : int or ANY
            `ANY` takes any tag. Then, over MPI, the call does not find an array behind an object of the same sender
            until the object is received; `probe` takes either.
        return_src : bool
            Return a `Received`, a tuple of array, src and tag. For host arrays.
        async_op, timeout, stream : see the class
        """
        return receive_array(self._core, out, src, tag, async_op, timeout, stream, return_src)

    def send_recv(
        self,
        x: Any,
        dst: int | None,
        out: Any,
        src: int | None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        stream: object = None,
    ) -> Any:
        """Send x to rank `dst` while receiving `out` from rank `src`; return `out`.

        Parameters
        ----------
        x, out : array
            `out` must have exactly the size of the received message. It may be x.
        dst, src : int or None
            None sends or receives nothing.
        tag, async_op, timeout, stream : see the class
        """
        return exchange_arrays(self._core, (x, dst, out, src), tag, async_op, timeout, stream)

    def probe(
        self, src: Rank = ANY, tag: Tag = ANY, *, block: bool = True, timeout: float | None = None
    ) -> Message | None:
        """Wait for a message, with an array in host memory or an object, and return it with its sender and size.

        The message is taken: no other call gets it, and the methods of the returned `Message` receive it. A message of
        a receive that began before is not taken, nor is a message of a plan. Messages of one sender and tag come in
        order. `UsageError` is raised also if the backend cannot look for messages. `src` and `tag` are numbers, or
        `ANY` for any. With ``block=False`` the call does not wait, and returns None if no message has arrived. For
        `timeout` see the class.
        """
        return probed(self._core, src, tag, block, timeout)

    # Python objects.

    def broadcast_object(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's object on every rank, on the root `value` itself. Collective; blocks.

        Only the root's `value` is used. For `root` and `timeout` see the class.
        """
        at_root = root == self._core.backend.rank
        came = exchange_pickled(self._core, "broadcast_object", value, at_root, root, timeout)
        return value if at_root else came[0]

    def all_gather_object(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return every rank's object, by rank, on every rank. Collective; blocks. For `timeout` see the class."""
        return exchange_pickled(self._core, "all_gather_object", value, True, 0, timeout)

    def gather_object(
        self, value: Any, root: int = 0, *, timeout: float | None = None
    ) -> list[Any] | None:
        """Return every rank's object, by rank, on the root; None on other ranks. Collective; blocks.

        For `root` and `timeout` see the class.
        """
        came = exchange_pickled(self._core, "gather_object", value, True, root, timeout)
        return came if root == self._core.backend.rank else None

    def scatter_object(
        self, values: Sequence[Any] | None, root: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Return the object that the root has for this rank. Collective; blocks.

        Only the root's `values` are used, one for each rank. The root's own object, too, is pickled and unpickled.
        The root raises `UsageError` if `values` are not as many as the ranks. For `root` and `timeout` see the class.
        """
        at_root = root == self._core.backend.rank
        return exchange_pickled(self._core, "scatter_object", values, at_root, root, timeout)[0]

    def send_object(
        self,
        value: Any,
        dst: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send an object that can be pickled to rank `dst`. Blocks until the object may be changed again.

        With ``async_op=True`` the object is pickled when the call returns; large arrays in it must stay as they are.
        For `dst`, `tag` and `timeout` see the class.
        """
        return send_pickled(self._core, value, dst, tag, async_op, timeout)

    def recv_object(
        self, src: Rank, tag: Tag = 0, *, async_op: bool = False, timeout: float | None = None
    ) -> Any:
        """Return a copy of an object that rank `src` sends. Blocks until it has arrived.

        `src` and `tag` are numbers, or `ANY` for any. Over MPI, with `ANY` as tag, the call does not find an object
        behind an array of the same sender until the array is received; `probe` takes either. For `async_op` and
        `timeout` see the class.
        """
        if src is ANY or tag is ANY:
            return received_object(self._core, src, tag, async_op, timeout)
        return receive_pickled(self._core, src, tag, async_op, timeout)

    # Memory that other ranks reach, and turns.

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> Any:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it copy the data only once. In a collective call the arrays are registered on
        all ranks or on none: a mixture is a `RankMismatch`. A rank's call is on registered arrays if all arrays of it
        that the call uses, x and `out`, are registered. The array belongs to the process: all its communicators can use
        it, and it outlives them. Its memory is freed when its last view is gone, on any rank at any time. Its elements
        are undefined. A forked process sees the same memory, not a copy. Local; does not block, except with `device`:
        then the call may wait for work on the device, if it frees memory that is no longer used.

        If ranks share no memory (one rank per node, or ``shared_memory="off"``), the result is an ordinary array. This
        is logged once. Arrays are C-contiguous, and begin at a cache line on the host. It may raise `MemoryError`.

        Parameters
        ----------
        shape : int or sequence of int
            Shape of the array. Ranks may pass different shapes, and not all ranks need to call.
        dtype : dtype
            Dtype of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None is host memory. The number of this rank's device gives device memory from NCCL's allocator. A plan of
            this communicator registers the memory, and then needs no intermediate copies, if the arrays of all ranks
            lie at the same offset in equal arrays of `empty`, or in views of them. All other calls, on all ranks, take
            it as an ordinary array, which mixes with any other; so does a CUDA graph, unless ``NCCL_GRAPH_REGISTER`` is
            1. If the library has no such memory, the result is an ordinary CuPy array, which `explain` reports.
        """
        return memory.empty(self._core, shape, dtype, device)

    def window(self, x: Any) -> Window:
        """Let all ranks read and write x without this rank taking part. Collective; blocks.

        x is this rank's memory: a C-contiguous and writable array, from `empty` or elsewhere. Shape and size may differ
        between ranks; the dtype must be the same. All ranks must close the window, which keeps x alive; `finalize`
        closes open windows. `UsageError` is raised also if the backend has no one-sided communication.
        """
        return windows.make(self._core, x)

    def counter(self, root: int = 0) -> Counter:
        """Return an integer, 0 at first, that all ranks count up, and whose memory `root` holds. Collective; blocks.

        Ranks share out work by it: each number is drawn once. Close it on all ranks, or use it in a ``with`` statement.
        """
        return Counter(self._core, 1, root)

    def mutex(self, root: int = 0) -> Mutex:
        """Return a lock that one rank at a time holds, in the order in which ranks ask. Collective; blocks.

        Use it as ``with mutex:``. `root` holds its memory. Close it on all ranks, or leave that to `finalize`.
        """
        return Mutex(self._core, 3, root)

    def in_turn(self, *, timeout: float | None = None) -> AbstractContextManager[None]:
        """Run the block on one rank after another, in the order of ranks. Collective; blocks.

        All ranks leave the block together, when the last rank is done: so successive blocks do not overlap. An
        exception in the block is raised on its rank at that time, and the other ranks have their turns. `timeout` is
        the deadline in seconds of the wait for the turn, and again of the wait for the last rank.
        """
        return turn(self._core, timeout)

    # Calls that are not issued as they are made.

    def explain(self, collective: str, *args: Any, **keywords: Any) -> Choice:
        """Return how a call would be carried out, and why; it prints as a sentence. Local: nothing is sent.

        `collective` is the name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``; the call's arguments
        follow it. It raises `UsageError` if the call would.
        """
        return planning.explained(self._core, self, collective, args, keywords)

    def plan(self, collective: str, *args: Any, **keywords: Any) -> Plan:
        """Return a plan of a call, which is checked and decided once, and can be made many times. Collective; blocks.

        The plan is called without arguments, on any stream. If `plan` makes a new result in device memory, it waits for
        the current stream first, within the deadline of the communicator.

        Parameters
        ----------
        collective : str
            Name of a collective call, ``"send"``, ``"recv"`` or ``"send_recv"``. For a message, each rank plans its own
            end, and ranks without a part plan a send or receive with rank None.
        *args, **keywords
            The arguments of the call. Counts must not be None. The arrays are kept alive.
        """
        return planning.planned(self._core, self, collective, args, keywords)

    def batch(self, async_op: bool = False, timeout: float | None = None) -> Batch:
        """Return a context manager; the calls in its block are issued together at the block's end.

        All ranks that take part in its collectives must make the same batch. In the block, calls return what they
        always return, but the arrays are filled only after its end. If the block raises, nothing is issued.

        With ``async_op=True`` the end does not wait; ``batch.work`` is the `Work`. `timeout` is the deadline of
        the whole batch in seconds; None is the communicator's. Calls in the block take no timeout.
        """
        return Batch(self._core, check_bool("async_op", async_op), self._core.limit(timeout))

    # Ranks in groups.

    def grid(
        self, dims: Sequence[int], periodic: bool | Sequence[bool] = False
    ) -> "Grid[Communicator]":
        """Return the ranks as a Cartesian grid, as MPI's, with neighbors and halos. Collective; blocks.

        Parameters
        ----------
        dims : sequence of int
            Number of ranks along each axis. Rank numbers run along the last axis first. A 0 is replaced by the number
            that fits; several are replaced by about equal numbers, the larger first, as by ``MPI_Dims_create``.
        periodic : bool or sequence of bool
            Whether the first and the last rank along an axis are neighbors; for all axes, or by axis.
        """
        return Grid(self, self._core, dims, periodic)

    def mesh(self, shape: Sequence[int], names: Sequence[str]) -> "Mesh[Communicator]":
        """Return the ranks as a grid with named dimensions, whose groups are made by name. Collective; blocks.

        Parameters
        ----------
        shape : sequence of int
            Lengths of the dimensions. Rank numbers run along the last one first: let that one communicate most, so that
            it stays within nodes. For -1 or 0, a length is chosen; for several, about equal ones, the larger first.
        names : sequence of str
            Names of the dimensions, such as ``("dp", "tp")``: ``mesh["tp"]`` is a communicator, made at its first use.
        """
        return Mesh(self, self._core, shape, names)

    def split(
        self, color: int | None, key: int = 0, name: str | None = None
    ) -> "Communicator | None":
        """Make a communicator of the ranks that pass the same `color`. Collective; blocks.

        Parameters
        ----------
        color : int or None
            The group of this rank. With None the rank joins no group, and gets None.
        key : int
            Ranks are ordered by key, then by rank.
        name : str, optional
            Name of the new communicator, which shares nothing with this one, and must be finalized too.
        """
        return groups.split(self._core, self._make, color, key, name)

    def split_ranks(self, ranks: Iterable[int], name: str | None = None) -> "Communicator | None":
        """Make a communicator of `ranks`, in that order; other ranks get None. Collective; blocks.

        `ranks` is a sequence of int, the same on all ranks, without repetition. `name` is as in `split`.
        """
        return groups.split_ranks(self._core, self._make, ranks, name)

    def dup(self, name: str | None = None) -> "Communicator":
        """Make a communicator of the same ranks, with a `name` as in `split`. Collective; blocks."""
        return groups.dup(self._core, self._make, name)

    def shrink(
        self, exclude: Iterable[int] | None = None, name: str | None = None
    ) -> "Communicator":
        """Make a communicator without some of the ranks, in the same order. Called by the ranks that stay; blocks.

        Without `exclude`, lost ranks are left out. That works in a job of Open MPI 5 that was started with
        ``mpiexec --with-ft ulfm``, also on a communicator that has failed, repeatedly: see :doc:`/how_to/losing_ranks`.
        All remaining ranks must call it. They agree on the lost ranks; there may be none.

        With `exclude`, the excluded ranks take no part, and may be dead. Over NCCL 2.27 and later, NCCL's own shrink
        makes the device side, which is faster than making a new communicator.

        Parameters
        ----------
        exclude : sequence of int, optional
            Ranks to leave out, at least one; the same on all remaining ranks. None leaves out the lost ranks.
        name : str, optional
            As in `split`. Without `exclude`, the default is the first communicator's name with the number of the
            epoch, such as ``"world.e1"``.

        Raises
        ------
        UsageError
            Also if this rank is excluded; or without `exclude`, if the job was not started so that it survives losses.
        CommunicatorAborted
            If the communicator has failed, and either `exclude` is given or the job cannot survive losses.
        """
        return groups.shrink(self._core, self._make, exclude, name)

    # Watching.

    def record(self, path: "str | PathLike[str] | None" = None) -> "ProgramRecorder":
        """Record every call that the program makes, on any communicator. Collective; blocks.

        The recording ends with the ``with`` statement, by ``close()``, or when this communicator is finalized. All
        ranks' times are on one clock. Meanwhile a call costs about a microsecond more. Every rank raises `UsageError`
        if the program is being recorded already, and `ResultsError` if any rank cannot write its file.

        Parameters
        ----------
        path : path-like, optional
            A results file, to which the recording is added; the same on all ranks. Until the end, each rank writes to
            its own file beside it. With None, the recorder has the recording when it has ended.
        """
        from hpccomm.communicator.recording import ProgramRecorder  # which loads h5py

        return ProgramRecorder(self, path)

    def stats(self) -> dict[Key, Tally]:
        """Return calls, bytes and seconds so far, by call and size class: ``("all_reduce", "to 1 KiB")``. Local."""
        return self._core.calls.reports.snapshot()

    def set_timeout(self, timeout: float) -> None:
        """Set the deadline of later calls in seconds, ``math.inf`` for none. Local; may be called from any thread."""
        self._core.calls.timeout = check_seconds("timeout", timeout)

    def register_pre_hook(self, hook: Hook) -> Handle:
        """Call ``hook(info)``, with a `CallInfo`, before each call, until ``close()`` of the returned handle. Local."""
        return self._core.calls.reports.pre_hooks.register(hook)

    def register_post_hook(self, hook: Hook) -> Handle:
        """Call ``hook(info)``, with a `CallInfo`, when a call has ended. Else as `register_pre_hook`. Local.

        For an asynchronous call, the hook runs in the thread that completes the call. It must not wait for other calls.
        """
        return self._core.calls.reports.post_hooks.register(hook)

    def register_abort_hook(self, hook: AbortHook) -> Handle:
        """Call ``hook(error)`` once, when the communicator fails or is aborted. Else as `register_pre_hook`. Local."""
        return self._core.calls.failure.hooks.register(hook)

    # The end.

    def finalize(self) -> None:
        """End the communicator. Collective; blocks; idempotent. Asynchronous calls are awaited.

        If the communicator has failed, only local work is done.

        Raises
        ------
        CommunicationError
            If calls on device arrays have failed and no call has raised that failure yet. The contents of their arrays
            are undefined.
        RankMismatch
            If the ranks have made different collective calls, and no other call has found that out. The communicator is
            finalized nevertheless.
        CollectiveTimeout
            If a rank has not called `finalize` before the deadline. The communicator is finalized nevertheless.
        """
        groups.finalize(self._core, self._node)

    def abort(self) -> None:
        """End the waits of this process and mark the communicator as failed. Local; may be called from any thread.

        Calls that wait, and asynchronous calls under way, end with `CommunicatorAborted`. A call that is blocked in the
        MPI library continues until its deadline. Over NCCL, calls under way end on the device, so that its streams
        continue; the contents of the calls' arrays are undefined. The arrays of unfinished calls are kept alive.
        """
        groups.abort(self._core, self._node)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is None:
            self.finalize()
        else:
            respell(error)
            groups.leave(self._core, self._node, error)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} over {name}" for kind, name in self.backends.items() if name)
        return f"<hpccomm.Communicator {self.name!r}: rank {self.rank} of {self.size}, {kinds}>"
