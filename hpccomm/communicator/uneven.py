"""The collectives on blocks of different sizes, with the rules of `collectives`.

Counts are numbers of rows along axis 0, one for each rank. Rows have the same shape on all ranks.
With ``None`` the ranks exchange the counts first; this blocks, even with ``async_op=True``. With
``return_counts=True`` a call, a `Work` or a plan gives a pair of the result and the counts. Ranks
may differ in it.
"""

from typing import Any

from hpccomm.calls.core import HasCore
from hpccomm.communicator.counts import listed, without_counts
from hpccomm.reductions import Deterministic, Op, ReduceOp
from hpccomm.schedules.algorithms import AnyAlgorithm

SUM = ReduceOp.SUM


def all_gather_v(
    self: HasCore,
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
    """Collect every rank's rows on every rank, in a new array or `out`.

    Parameters
    ----------
    x : array, shape ``(counts[rank], *rest)``
        This rank's rows. It may be this rank's block of `out`.
    counts : sequence of int, optional
        Rows of each rank; the same on all ranks. None exchanges them first.
    out : array, shape ``(sum(counts), *rest)``, optional
        The array for the result; None makes a new array.
    return_counts : bool
        Also return the rows of each rank.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(sum(counts), *rest)``
        The rows of all ranks, by rank. With `return_counts`, a pair of that and a tuple of
        int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core, how = self._core, (async_op, timeout, algorithm, stream, return_counts)
    if counts is None:
        return without_counts(core, "all_gather_v", x, out, how)
    lists = listed(core, "all_gather_v", x, out, timeout, algorithm, stream, return_counts, counts)
    return core.collective(
        "all_gather_v", x, out, async_op, timeout, algorithm, stream, None, False, None, lists
    )


def reduce_scatter_v(
    self: HasCore,
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
    counts : sequence of int
        Rows of each rank; the same on all ranks.
    op : ReduceOp, premul_sum(factor) or callable
        The reduction. A callable must be an elementwise function of two arrays, and without
        `deterministic` also commutative and associative. It is tried first. It may be called on
        slices, and must not modify them.
    out : array, shape ``(counts[rank], *rest)``, optional
        The array for the result; None makes a new array. It may be this rank's block of x.
    return_counts : bool
        Also return the rows of each rank.
    async_op, timeout, algorithm, deterministic, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(counts[rank], *rest)``
        The rows of this rank. With `return_counts`, a pair of that and a tuple of
        int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    lists = listed(
        core, "reduce_scatter_v", x, out, timeout, algorithm, stream, return_counts, counts
    )
    how = timeout, algorithm, stream, op, deterministic, None, lists
    return core.collective("reduce_scatter_v", x, out, async_op, *how)


def all_to_all_v(
    self: HasCore,
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
    send_counts : sequence of int
        Rows for each rank.
    recv_counts : sequence of int, optional
        Rows from each rank. None exchanges them first, on all ranks.
    out : array, shape ``(sum(recv_counts), *rest)``, optional
        The array for the result; None makes a new array. It may be x if it sends and receives
        equally many rows.
    return_counts : bool
        Also return the rows that come from each rank.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(sum(recv_counts), *rest)``
        The rows from each rank, by rank. With `return_counts`, a pair of that and a tuple of
        int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core, how = self._core, (async_op, timeout, algorithm, stream, return_counts)
    if recv_counts is None:
        return without_counts(core, "all_to_all_v", x, out, how, send_counts)
    given = send_counts, recv_counts
    lists = listed(core, "all_to_all_v", x, out, timeout, algorithm, stream, return_counts, *given)
    return core.collective(
        "all_to_all_v", x, out, async_op, timeout, algorithm, stream, None, False, None, lists
    )


def gather_v(
    self: HasCore,
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
    """Collect every rank's rows on the root, in a new array or `out`.

    Parameters
    ----------
    x : array, shape ``(counts[rank], *rest)``
        This rank's rows. On the root it may be this rank's block of `out`.
    root : int
        The rank that gets the result.
    counts : sequence of int, optional
        Rows of each rank; the same on all ranks. None exchanges them first.
    out : array, shape ``(sum(counts), *rest)``, optional
        The array for the result on the root; None makes a new array. Other ranks do not use it.
    return_counts : bool
        Also return the rows of each rank, on every rank.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(sum(counts), *rest)``, or None
        On the root the rows of all ranks, by rank; None on other ranks. With `return_counts`, a pair of that and a tuple of
        int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core, how = self._core, (async_op, timeout, algorithm, stream, return_counts)
    if counts is None:
        return without_counts(core, "gather_v", x, out, how, None, root)
    lists = listed(core, "gather_v", x, out, timeout, algorithm, stream, return_counts, counts)
    return core.collective(
        "gather_v", x, out, async_op, timeout, algorithm, stream, None, False, root, lists
    )


def scatter_v(
    self: HasCore,
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
        On the root. On another rank with `counts` and without `out`, an array of the same shape and
        dtype, which is not read. Else other ranks do not use it.
    root : int
        The rank whose data is sent.
    counts : sequence of int, optional
        Rows of each rank; the same on all ranks. None takes them from `out` of each rank. The
        root's own `out` may be None then; the root gets the rows that remain.
    out : array, shape ``(counts[rank], *rest)``, optional
        The array for this rank's rows; None makes a new array of the kind of x. On the root it may be
        the root's block of x.
    return_counts : bool
        Also return the rows of each rank, on every rank.
    async_op, timeout, algorithm, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(counts[rank], *rest)``
        This rank's rows. With `return_counts`, a pair of that and a tuple of
        int. Or a `Work`, whose ``wait`` returns the same.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core, how = self._core, (async_op, timeout, algorithm, stream, return_counts)
    if counts is None:
        return without_counts(core, "scatter_v", x, out, how, None, root)
    lists = listed(core, "scatter_v", x, out, timeout, algorithm, stream, return_counts, counts)
    return core.collective(
        "scatter_v", x, out, async_op, timeout, algorithm, stream, None, False, root, lists
    )
