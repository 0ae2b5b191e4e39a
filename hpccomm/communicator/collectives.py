"""The collectives on blocks of one size that reduce nothing.

These are methods of `Communicator`, and so are the functions of `reductions`, `uneven`, `messages`, `arrivals`,
`objects`, `memory`, `planning` and `groups` that take `self`. All collectives have these rules:

All ranks of the communicator make the same calls, in the same order.

`x` and `out` are arrays, both in host memory (NumPy, or anything with the buffer protocol or DLPack)
or both on this rank's device (CuPy, PyTorch, or anything with ``__cuda_array_interface__`` or CUDA
DLPack), and in the same kind of memory on all ranks. They must be C-contiguous, in native byte order,
and writable if the call writes to them; with an `axis` they may have any layout. A number (Python's, of a class that
is derived from it, or NumPy's) may take the place of x where the call says so; any other scalar of NumPy's, such as
a ``numpy.datetime64``, is taken as a 0-d array. `out` may have any shape with the right number of elements.
Keywords must be equal on all ranks, except `timeout` and `stream`.

On host arrays, a synchronous call blocks until the result is complete. On device arrays, a call is
put on a stream: it begins when the earlier work of that stream is done, and later work on that stream
sees the result. The host does not wait, unless it takes part in the call: ``comm.backends["cuda"]``
is not ``"nccl"``, or NCCL has not that call, as `Communicator.explain` says. The deadline starts with the
call and includes the earlier work of the stream. When it passes, the communicator is aborted and later calls raise.
"""

from typing import Any

from hpccomm.calls.core import HasCore
from hpccomm.communicator.packing import along, broadcast_to_out
from hpccomm.communicator.uneven import listed
from hpccomm.schedules.algorithms import AnyAlgorithm


def broadcast(
    self: HasCore,
    x: Any,
    root: int = 0,
    *,
    out: Any = None,
    async_op: bool = False,
    timeout: float | None = None,
    algorithm: AnyAlgorithm | None = None,
    stream: object = None,
) -> Any:
    """Overwrite x in place on every rank with the root's, or fill `out` with that.

    Parameters
    ----------
    x : array or number
        Of the same shape and dtype on all ranks. The root's is only read; with `out`, the other ranks'
        is neither read nor written.
    root : int
        The rank whose data is sent.
    out : array or "new", optional
        The array for the result, on all ranks or on none; "new" makes one. If it is None, the result
        is written to x.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array or number
        `x` or `out`, or the root's number; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    if out is None:
        return core.collective(
            "broadcast", x, None, async_op, timeout, algorithm, stream, None, False, root
        )
    return broadcast_to_out(core, x, out, async_op, timeout, algorithm, stream, root)


def all_gather(
    self: HasCore,
    x: Any,
    *,
    out: Any = None,
    axis: Any = None,
    async_op: bool = False,
    timeout: float | None = None,
    algorithm: AnyAlgorithm | None = None,
    stream: object = None,
) -> Any:
    """Collect every rank's array on every rank, in a new array or `out`.

    Parameters
    ----------
    x : array of shape s, or number
        Of the same shape and dtype on all ranks. It may be this rank's block of `out`.
    out : array, shape ``(size, *s)``, optional
        The array for the result; None makes a new array.
    axis : int, optional
        The axis of the ranks in the result, as of ``numpy.stack``, in place of axis 0.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(size, *s)``
        The arrays, by rank; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    carry_out = core.collective if axis is None else along(core, axis)
    return carry_out("all_gather", x, out, async_op, timeout, algorithm, stream)


def all_to_all(
    self: HasCore,
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
        Of the same shape and dtype on all ranks. Axis 0 must be divisible by the number of ranks, unless `axis` is given.
    out : array, optional
        The array for the result; None makes a new array. It may be x.
    axis : int or (int, int), optional
        Where the blocks lie, in place of axis 0. Of two, x is split along the first one, and the result
        is joined along the second one, as of ``jax.lax.all_to_all``: ``axis=(1, 0)`` gives columns of a matrix whose
        rows are distributed. x is split as by ``numpy.array_split``, and may have more rows on some ranks than on others
        along the second axis: the ranks exchange their shapes first, which blocks. A plan or batch takes these from `out`.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, of x's shape if all blocks are alike
        Block j is from rank j; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    RankMismatch
        If x differs along other axes.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    carry_out = core.collective if axis is None else along(core, axis)
    return carry_out("all_to_all", x, out, async_op, timeout, algorithm, stream)


def gather(
    self: HasCore,
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
    """Collect every rank's array on the root, in a new array or `out`.

    Parameters
    ----------
    x : array of shape s, or number
        Of the same shape and dtype on all ranks. On the root it may be this rank's block of `out`.
    root : int
        The rank that gets the result.
    out : array, shape ``(size, *s)``, optional
        The array for the result on the root; None makes a new array. Other ranks do not use it.
    axis : int, optional
        The axis of the ranks in the result, as of ``numpy.stack``, in place of axis 0.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(size, *s)``, or None
        On the root the arrays, by rank; None on other ranks; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    carry_out = core.collective if axis is None else along(core, axis)
    return carry_out("gather", x, out, async_op, timeout, algorithm, stream, None, False, root)


def scatter(
    self: HasCore,
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
        On the root; axis 0 must be divisible by the number of ranks. On another rank without `out`, an
        array of the same shape and dtype, which is not read. Else other ranks do not use it.
    root : int
        The rank whose data is sent.
    out : array, optional
        The array for this rank's block; None makes a new array of the kind of x. On the root it may be
        the root's block of x.
    axis : int, optional
        The axis along which x is split, in place of axis 0.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array
        This rank's block, of shape ``(x.shape[0] // size, *x.shape[1:])``; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    carry_out = core.collective if axis is None else along(core, axis)
    return carry_out("scatter", x, out, async_op, timeout, algorithm, stream, None, False, root)


def barrier(
    self: HasCore,
    *,
    async_op: bool = False,
    timeout: float | None = None,
    algorithm: AnyAlgorithm | None = None,
    stream: object = None,
) -> Any:
    """Wait until every rank has called `barrier`. It blocks the host.

    It does not wait for work on a device's streams, and does not delay it: synchronize the stream
    first.

    Parameters
    ----------
    stream : None
        A barrier has no arrays and therefore no stream.
    async_op, timeout, algorithm
        See the common keywords of `Communicator`.

    Returns
    -------
    None
        Or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    return self._core.collective("barrier", None, None, async_op, timeout, algorithm, stream)


def neighbor_all_to_all(
    self: HasCore,
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

    Every rank of the communicator calls it, also one without peers. Lists are symmetric: a rank
    lists another one as often as that lists it. The k-th time that a rank lists a peer belongs to
    the k-th time that the peer lists the rank. A rank may list itself.

    On a periodic grid that is two ranks wide, the ranks on both sides of a rank are one. If all list
    the left one first, then what comes as the block of the left one is what that rank sent to its
    own left, and belongs to the right border. Let the two ranks list them in opposite order, or
    swap the two blocks afterwards. On a grid one rank wide, swap them.

    Parameters
    ----------
    x : array
        A block for each peer, one after the other along axis 0. Of the same dtype on all ranks.
    peers : sequence of int or None
        The rank of each block. None stands for a missing peer, as at the border of a domain: that
        block of x is not sent, and that block of the result is left as it was in `out`; a new array
        has zeros there.
    send_counts : sequence of int, optional
        Rows of each block of x. None is blocks of one size, on all ranks: axis 0 is divisible by the
        number of peers. Given on all ranks or on none.
    recv_counts : sequence of int, optional
        Rows of each block of the result. None exchanges them first, if `send_counts` is given; a
        block without a peer has no rows then. Given on all ranks or on none.
    out : array, optional
        Takes the result; None makes a new array. It may be x if it sends and receives equally many
        rows.
    return_counts : bool
        Also return the rows of each block of the result.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array
        The blocks from the peers, in the order of `peers`. With `return_counts`, a pair of that and a
        tuple of int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit; before anything is sent.
    CommunicationError
        If the call fails or its deadline passes. `RankMismatch` on every rank if lists are not symmetric,
        or a block is sent that is not expected: in the first call of a kind before anything is sent, later
        after 0.3 s.
    """
    core, how = self._core, (timeout, algorithm, stream)
    given = return_counts, send_counts, recv_counts, peers
    lists = listed(core, "neighbor_all_to_all", x, out, *how, *given)
    return core.collective("neighbor_all_to_all", x, out, async_op, *how, None, False, None, lists)
