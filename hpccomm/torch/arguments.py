"""Reads c10d's arguments of a call: options, or root, reduction and deadline themselves.

A process group that is a Python class gets its caller's arguments, in each of the forms that C++
distinguishes. `calls` and `work` read them here.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from torch import Tensor
from torch._C._distributed_c10d import ReduceOp as TorchOp

from hpccomm.errors import UnsupportedDtype
from hpccomm.reductions import Op, ReduceOp, premul_sum

_OPS = {
    getattr(TorchOp.RedOpType, torchs).value: ours
    for torchs, ours in {
        "SUM": ReduceOp.SUM,
        "AVG": ReduceOp.AVG,
        "PRODUCT": ReduceOp.PROD,
        "MIN": ReduceOp.MIN,
        "MAX": ReduceOp.MAX,
        "BAND": ReduceOp.BAND,
        "BOR": ReduceOp.BOR,
        "BXOR": ReduceOp.BXOR,
    }.items()
}
"""By c10d's numbers, which are found faster than its objects."""

_REDUCTIONS = TorchOp, TorchOp.RedOpType


class CallTerms(NamedTuple):
    """What a call is to do.

    Attributes
    ----------
    op : Op
        The reduction.
    root : int
        The rank in the group.
    timeout : float or None
        Seconds; None is the group's.
    async_op : bool
        Whether the caller goes on meanwhile.
    """

    op: Op
    root: int
    timeout: float | None
    async_op: bool


def seconds(time: timedelta | float | None) -> float | None:
    """Return a deadline in seconds, as which c10d takes numbers; None where it has none."""
    limit = time.total_seconds() if isinstance(time, timedelta) else time or 0.0
    return limit if limit > 0 else None


def operation(op: Any) -> Op:
    """Return a reduction of c10d as hpccomm's.

    Raises
    ------
    UnsupportedDtype
        If there is no such.
    """
    kind = getattr(op, "op", op)
    known = _OPS.get(kind.value)
    if known is not None:
        return known
    if kind == TorchOp.RedOpType.PREMUL_SUM:
        return premul_sum(float(op.__getstate__()[1]))
    raise UnsupportedDtype(f"op is {kind}; give another one of torch.distributed.ReduceOp")


def terms(given: tuple[Any, ...], named: dict[str, Any]) -> CallTerms:
    """Return what follows the tensors of a call."""
    op: Op = ReduceOp.SUM
    root, timeout, async_op = 0, None, True
    for each in (*given, *named.values()) if named else given:
        if each is None:
            continue
        if isinstance(each, timedelta):
            timeout = seconds(each)
        elif isinstance(each, int):
            root = each
        elif isinstance(each, _REDUCTIONS):
            op = operation(each)
        else:
            timeout = seconds(getattr(each, "timeout", None))
            async_op = getattr(each, "asyncOp", True)
            root = getattr(each, "rootRank", root)
            reduction = getattr(each, "reduceOp", None)
            if reduction is not None:
                op = operation(reduction)
    return CallTerms(op, root, timeout, async_op)


def tensors(given: Any) -> list[Any]:
    """Return tensors as a list: a call may be given one alone."""
    return [given] if isinstance(given, Tensor) else list(given)


def lists(given: Iterable[Any]) -> list[list[Any]]:
    """Return lists of tensors as a list of them: a call may be given one alone."""
    each = list(given)
    return [each] if each and isinstance(each[0], Tensor) else [list(one) for one in each]
