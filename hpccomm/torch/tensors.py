"""c10d's arguments of a call: tensors as arrays that hpccomm takes, and the options behind them.

A process group that is a Python class gets its caller's arguments, in each of the forms that C++ distinguishes: options,
or root, reduction and deadline themselves.

A tensor in host memory becomes a NumPy array over the same memory; one on a device goes to hpccomm as it is. Where
its elements do not lie in order one behind the other, a copy is communicated, and copied back.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch.utils.weak
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp as TorchOp

from hpccomm.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory.shared.pages import join_pages
from hpccomm.reductions import Op, ReduceOp, premul_sum

Settle = Callable[[], object]
"""Copies results to where they belong, once they are there."""

LARGE = 4 << 20
"""Bytes of a tensor whose pages are made huge ones: PyTorch takes small ones, and NumPy does not."""

_large: Any = torch.utils.weak.WeakTensorKeyDictionary()
"""The large tensors of earlier calls that still exist."""

_BITS = {
    torch.bfloat16: (torch.int16, BFLOAT16),
    torch.float8_e4m3fn: (torch.uint8, FLOAT8_E4M3FN),
    torch.float8_e5m2: (torch.uint8, FLOAT8_E5M2),
}
"""For each dtype that NumPy lacks, the integers as which NumPy shares its memory, and hpccomm's dtype."""

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
    """Return a deadline in seconds; None if there is none, which c10d also writes as 0. Numbers are seconds."""
    limit = time.total_seconds() if isinstance(time, timedelta) else time or 0.0
    return limit if limit > 0 else None


def operation(op: Any) -> Op:
    """Return a reduction of c10d as hpccomm's.

    Raises
    ------
    UnsupportedDtype
        If hpccomm has none like it.
    """
    kind = getattr(op, "op", op)
    ours = _OPS.get(kind.value)
    if ours is not None:
        return ours
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


def sizes(parts: Sequence[Any]) -> list[int]:
    """Return how many elements tensors have."""
    return [each.numel() for each in parts]


def array(tensor: Any, *, reduced: bool = False) -> Any:
    """Return a contiguous tensor's memory as an array.

    Parameters
    ----------
    tensor : torch.Tensor
        A contiguous tensor of any shape.
    reduced : bool
        Whether its elements are reduced. Where NumPy and hpccomm lack a dtype, bytes are moved.

    Raises
    ------
    UnsupportedDtype
        If elements are to be reduced, and their dtype is only bytes to hpccomm.
    UsageError
        If the tensor lies on a device that is not CUDA's.
    """
    if tensor.is_cpu and tensor.nbytes >= LARGE:
        # It takes longer than one call gains, so that a tensor of one call keeps its pages.
        if tensor in _large:
            join_pages(tensor.data_ptr(), tensor.nbytes)
        _large[tensor] = None
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        if not tensor.is_cuda:
            raise UsageError(f"a tensor lies on {tensor.device}; hpccomm takes cpu and cuda")
        return tensor
    if bits := _BITS.get(tensor.dtype):
        return tensor.view(bits[0]).numpy().view(bits[1])
    try:
        return tensor.numpy()
    except TypeError:
        if reduced:
            raise UnsupportedDtype(
                f"tensors of {tensor.dtype} cannot be reduced; convert them, such as by .float()"
            ) from None
        # The ranks compare the name.
        named = np.dtype([(str(tensor.dtype).removeprefix("torch."), f"V{tensor.itemsize}")])
        return tensor.reshape(-1).view(torch.uint8).numpy().view(named)


def contiguous(tensor: Any) -> Any:
    """Return a tensor with its elements in memory as a reader sees them: the same one, or a copy.

    Raises
    ------
    UsageError
        If it is sparse.
    """
    if tensor.layout is not torch.strided:
        raise UsageError(f"a tensor has layout {tensor.layout}; give tensor.to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def flat(tensor: Any, *, reduced: bool = False) -> Any:
    """Return the elements of a tensor, which a call reads, as a flat array."""
    return array(contiguous(tensor), reduced=reduced).reshape(-1)


def joined(parts: Sequence[Any]) -> Any:
    """Return the elements of tensors in one flat tensor: a copy."""
    return torch.cat([each.detach().reshape(-1) for each in parts])


def check_apart(tensor: Any) -> None:
    """Raise if several elements of an output share one place, as in an expanded tensor."""
    if torch._debug_has_internal_overlap(tensor) == 1:  # noqa: SLF001 (the only way)
        raise UsageError(
            f"a tensor of shape {tuple(tensor.shape)} has elements in one place in memory (strides "
            f"{tensor.stride()}), and results are written to it; give tensor.contiguous()"
        )


def keep_for_stream(tensor: Any) -> None:
    """Keep the memory of a tensor, which may be dropped now, until the current stream has come so far.

    PyTorch gives it to the stream on which it was made at once, and that may be another one.
    """
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def copy_back(outputs: Sequence[Any], parts: Sequence[Any], whole: Any) -> None:
    """Copy parts of a tensor to outputs of as many elements; it may be dropped then."""
    for output, part in zip(outputs, parts, strict=True):
        output.detach().copy_(part.view(output.shape))
    keep_for_stream(whole)


class TensorCalls:
    """Calls of the communicator that are issued together, on tensors as arrays.

    Parameters
    ----------
    result : list
        The tensors that c10d passed to be filled, or lists of them.

    Attributes
    ----------
    issued : list of (str, tuple, dict)
        The name, arguments and keywords of each call.
    settles : list of callable
        Copy results to where they belong, once they are there.
    """

    def __init__(self, result: Sequence[Any] = ()) -> None:
        self.result = list(result)
        self.issued: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.settles: list[Settle] = []

    def add(self, name: str, *arguments: Any, **keywords: Any) -> Self:
        """Add a call, and return itself."""
        self.issued.append((name, arguments, keywords))
        return self

    def add_blocks(self, name: str, x: Any, counts: Sequence[int], *more: Any, out: Any) -> None:
        """Add the call that moves blocks of these sizes: the one for uneven ones, unless they are equal."""
        if len(set(counts)) == 1:
            self.add(name, x, *more, out=out)
        else:
            self.add(f"{name}_v", x, counts, *more, out=out)

    def extend(self, later: "TensorCalls") -> None:
        """Add other calls."""
        self.result += later.result
        self.issued += later.issued
        self.settles += later.settles

    def out(self, tensor: Any, *, reduced: bool = False) -> Any:
        """Return the memory of a tensor that a call writes to as an array, or that of a copy."""
        whole = contiguous(tensor)
        if whole is not tensor:
            check_apart(tensor)
            self.settles.append(partial(copy_back, [tensor], [whole], whole))
        return array(whole, reduced=reduced)

    def parts(self, parts: Sequence[Any], like: Any) -> Any:
        """Return a flat array for the elements of all parts, which have the dtype of the tensor `like`."""
        for each in parts:
            check_apart(each)
        counts = sizes(parts)
        whole = torch.empty(sum(counts), dtype=like.dtype, device=like.device)
        self.settles.append(partial(copy_back, parts, whole.split(counts), whole))
        return array(whole)
