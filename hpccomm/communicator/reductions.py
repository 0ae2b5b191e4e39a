"""The collectives on blocks of one size that reduce, with the rules of `collectives`."""

from typing import Any

from hpccomm.calls.core import HasCore
from hpccomm.communicator.packing import along
from hpccomm.reductions import Deterministic, Op, ReduceOp
from hpccomm.schedules.algorithms import AnyAlgorithm

SUM = ReduceOp.SUM


def all_reduce(
    self: HasCore,
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
        This rank's contribution, of the same shape and dtype on all ranks.
    op : ReduceOp, premul_sum(factor) or callable
        The reduction. A callable must be an elementwise function of two arrays, and without
        `deterministic` also commutative and associative. It is tried first. It may be called on
        slices, and must not modify them.
    out : array or "new", optional
        The array for the result; "new" makes one. If it is None, the result is written to x.
    async_op, timeout, algorithm, deterministic, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array or number
        `out`, or `x`; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    return self._core.collective(
        "all_reduce", x, out, async_op, timeout, algorithm, stream, op, deterministic
    )


def reduce(
    self: HasCore,
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
    """Reduce the arrays of all ranks in place at the root, which gets the result in x or `out`.

    Parameters
    ----------
    x : array or number
        This rank's contribution, of the same shape and dtype on all ranks.
    root : int
        The rank that gets the result.
    op : ReduceOp, premul_sum(factor) or callable
        The reduction. A callable must be an elementwise function of two arrays, and without
        `deterministic` also commutative and associative. It is tried first. It may be called on
        slices, and must not modify them.
    out : array or "new", optional
        The array for the result on the root; "new" makes one. If it is None, the result is written to
        x there. Other ranks do not use it.
    async_op, timeout, algorithm, deterministic, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, number or None
        On the root `out` or `x`; None on other ranks, where x is not changed; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    return self._core.collective(
        "reduce", x, out, async_op, timeout, algorithm, stream, op, deterministic, root
    )


def reduce_scatter(
    self: HasCore,
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
        This rank's contribution, of the same shape and dtype on all ranks. Axis 0 must be divisible
        by the number of ranks.
    op : ReduceOp, premul_sum(factor) or callable
        The reduction. A callable must be an elementwise function of two arrays, and without
        `deterministic` also commutative and associative. It is tried first. It may be called on
        slices, and must not modify them.
    out : array, shape ``(x.shape[0] // size, *x.shape[1:])``, optional
        The array for the result; None makes a new array. It may be this rank's block of x.
    axis : int, optional
        The axis along which x is split, in place of axis 0.
    async_op, timeout, algorithm, deterministic, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array, shape ``(x.shape[0] // size, *x.shape[1:])``
        The block; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    core = self._core
    carry_out = core.collective if axis is None else along(core, axis)
    return carry_out(
        "reduce_scatter", x, out, async_op, timeout, algorithm, stream, op, deterministic
    )


def scan(
    self: HasCore,
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
        This rank's contribution, of the same shape and dtype on all ranks.
    op : ReduceOp, premul_sum(factor) or callable
        The reduction; AVG is refused. A callable must be an elementwise function of two arrays, and
        without `deterministic` also commutative and associative. It is tried first. It may be
        called on slices, and must not modify them.
    out : array, optional
        The array for the result; None makes a new array. It may be x.
    exclusive : bool
        Leave out this rank's own contribution; rank 0 gets the identity of the reduction. A
        callable has none: give `out`, which rank 0 leaves as it is.
    async_op, timeout, algorithm, deterministic, stream
        See the common keywords of `Communicator`.

    Returns
    -------
    array of x's shape, or number
        The prefix; or a `Work`.

    Raises
    ------
    UsageError
        If an argument does not fit. Nothing has been sent then.
    CommunicationError
        If the call fails or its deadline passes.
    """
    return self._core.collective(
        "scan", x, out, async_op, timeout, algorithm, stream, op, deterministic, exclusive=exclusive
    )
