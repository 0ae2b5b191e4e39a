"""What each collective call demands of its arguments, and what it asks of the path.

Pure functions of dtypes, shapes and numbers. The memory itself (layout, overlap) is looked at in
`core`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpccomm import dtypes, reductions
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.reductions import Op, ReduceOp
from hpccomm.settings import check_bool, check_int
from hpccomm.topology import check_rank

Shape = tuple[int, ...]
Role = Literal["x", "out", "new"]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A call's arguments, without the memory.

    `x` and `out` are pairs of dtype and shape, or None where the array was not given.
    """

    rank: int
    size: int
    x: tuple[DType, Shape] | None
    out: tuple[DType, Shape] | None
    op: Any = None
    root: Any = None
    counts: Shape = ()
    recv_counts: Shape = ()
    exclusive: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a call comes to.

    Attributes
    ----------
    call : Signature
        What the path is asked for.
    send, recv : {"x", "out", "new"} or None
        Which array plays which part.
    shape : tuple of int
        Of the result; a new array is made so.
    written : bool
        Whether x is written.
    """

    call: Signature
    send: Role | None
    recv: Role | None
    shape: Shape
    written: bool = False


Rule = Callable[[CallArguments], Resolved]


def check_counts(name: str, counts: object, size: int) -> Shape:
    """Return `counts` as one number of rows for each rank.

    Raises
    ------
    UsageError
        If it is not that.
    """
    try:
        numbers = tuple(check_int(name, each) for each in counts)  # type: ignore[attr-defined]
    except (TypeError, UsageError):
        raise UsageError(
            f"{name} is {counts!r}; give a sequence of {size} numbers of rows, one for each rank"
        ) from None
    if len(numbers) != size:
        raise UsageError(f"{name} has {len(numbers)} numbers; give {size}, one for each rank")
    if min(numbers) < 0:
        raise UsageError(f"{name} is {numbers}; numbers of rows are 0 or more")
    return numbers


def _given(asked: CallArguments) -> tuple[DType, Shape]:
    if asked.x is None:
        raise UsageError("x is None; give an array")
    return asked.x


def _reduction(op: Any, dtype: DType) -> Op:
    reductions.check(op, dtype)
    checked: Op = op
    return checked


def _fit(name: str, array: tuple[DType, Shape], dtype: DType, shape: Shape) -> None:
    if array[0] != dtype:
        raise BufferMismatch(f"{name} has dtype {array[0]}; give dtype {dtype}")
    if math.prod(array[1]) != math.prod(shape):
        raise BufferMismatch(
            f"{name} has shape {array[1]} ({math.prod(array[1])} elements); "
            f"give shape {shape} or another with {math.prod(shape)} elements"
        )


def _blocks(name: str, shape: Shape, size: int) -> Shape:
    """Return the shape of one of `size` equal blocks along axis 0."""
    if not shape:
        raise UsageError(f"{name} is 0-d; give an array whose axis 0 is divisible by {size}")
    if shape[0] % size:
        raise UsageError(
            f"{name} has shape {shape}; axis 0 must be divisible by the {size} ranks "
            "(the call whose name ends in _v takes uneven blocks)"
        )
    return (shape[0] // size, *shape[1:])


def _rows(name: str, shape: Shape) -> Shape:
    if not shape:
        raise UsageError(f"{name} is 0-d; give an array with rows along axis 0")
    return shape[1:]


def _into(asked: CallArguments, dtype: DType, shape: Shape) -> Role:
    """Return where a result of `shape` goes: to `out` or a new array."""
    if asked.out is None:
        return "new"
    _fit("out", asked.out, dtype, shape)
    return "out"


def _uniform(shape: Shape, size: int) -> Shape:
    return (math.prod(shape),) * size


def _uneven(counts: Sequence[int], rest: Shape) -> Shape:
    row = math.prod(rest)
    return tuple(count * row for count in counts)


def all_reduce(asked: CallArguments) -> Resolved:
    """X and the result have one shape; without out, x is both."""
    dtype, shape = _given(asked)
    op = _reduction(asked.op, dtype)
    recv: Role = "x" if asked.out is None else _into(asked, dtype, shape)
    in_place = recv == "x" or asked.in_place
    call = Signature("all_reduce", dtype, (math.prod(shape),), op=op, in_place=in_place)
    return Resolved(call, "x", recv, shape, written=recv == "x")


def broadcast(asked: CallArguments) -> Resolved:
    """X is read at the root and written elsewhere."""
    dtype, shape = _given(asked)
    root = check_rank("root", asked.root, asked.size)
    call = Signature("broadcast", dtype, (math.prod(shape),), root=root)
    return Resolved(call, None, "x", shape, written=asked.rank != root)


def reduce(asked: CallArguments) -> Resolved:
    """The result is at the root alone, in out or in x."""
    dtype, shape = _given(asked)
    root = check_rank("root", asked.root, asked.size)
    op = _reduction(asked.op, dtype)
    recv: Role | None = None
    if asked.rank == root:
        recv = "x" if asked.out is None else _into(asked, dtype, shape)
    in_place = recv is not None and (recv == "x" or asked.in_place)
    call = Signature("reduce", dtype, (math.prod(shape),), op=op, root=root, in_place=in_place)
    return Resolved(call, "x", recv, shape, written=recv == "x")


def scan(asked: CallArguments) -> Resolved:
    """The result has x's shape."""
    dtype, shape = _given(asked)
    op = _reduction(asked.op, dtype)
    if op is ReduceOp.AVG:
        raise UsageError("op is ReduceOp.AVG, which scan does not take; scan with SUM and divide")
    if check_bool("exclusive", asked.exclusive):
        reductions.identity(op, dtype)
    recv = _into(asked, dtype, shape)
    call = Signature(
        "scan",
        dtype,
        (math.prod(shape),),
        op=op,
        exclusive=asked.exclusive,
        in_place=asked.in_place,
    )
    return Resolved(call, "x", recv, shape, written=asked.in_place)


def all_gather(asked: CallArguments) -> Resolved:
    """The result is (size, *x.shape)."""
    dtype, shape = _given(asked)
    result = (asked.size, *shape)
    recv = _into(asked, dtype, result)
    counts = _uniform(shape, asked.size)
    call = Signature("all_gather", dtype, counts, in_place=asked.in_place)
    return Resolved(call, "x", recv, result)


def gather(asked: CallArguments) -> Resolved:
    """As all_gather, at the root alone."""
    dtype, shape = _given(asked)
    root = check_rank("root", asked.root, asked.size)
    result = (asked.size, *shape)
    recv = _into(asked, dtype, result) if asked.rank == root else None
    counts = _uniform(shape, asked.size)
    in_place = asked.in_place and recv is not None
    call = Signature("gather", dtype, counts, root=root, in_place=in_place)
    return Resolved(call, "x", recv, result)


def reduce_scatter(asked: CallArguments) -> Resolved:
    """The result is a block of x along axis 0."""
    dtype, shape = _given(asked)
    op = _reduction(asked.op, dtype)
    result = _blocks("x", shape, asked.size)
    recv = _into(asked, dtype, result)
    counts = _uniform(result, asked.size)
    call = Signature("reduce_scatter", dtype, counts, op=op, in_place=asked.in_place)
    return Resolved(call, "x", recv, result, written=asked.in_place)


def all_to_all(asked: CallArguments) -> Resolved:
    """The result has x's shape; blocks along axis 0 change places."""
    dtype, shape = _given(asked)
    counts = _uniform(_blocks("x", shape, asked.size), asked.size)
    recv = _into(asked, dtype, shape)
    call = Signature("all_to_all", dtype, counts, counts, in_place=asked.in_place)
    return Resolved(call, "x", recv, shape, written=asked.in_place)


def scatter(asked: CallArguments) -> Resolved:
    """X is at the root; the result is a block of it."""
    root = check_rank("root", asked.root, asked.size)
    if asked.rank != root:
        if asked.out is None:
            raise UsageError(f"out is None on rank {asked.rank}; scatter needs it but on the root")
        dtype, shape = asked.out
        counts = _uniform(shape, asked.size)
        return Resolved(Signature("scatter", dtype, counts, root=root), None, "out", shape)
    dtype, whole = _given(asked)
    result = _blocks("x", whole, asked.size)
    recv = _into(asked, dtype, result)
    counts = _uniform(result, asked.size)
    call = Signature("scatter", dtype, counts, root=root, in_place=asked.in_place)
    return Resolved(call, "x", recv, result, written=asked.in_place)


def all_gather_v(asked: CallArguments) -> Resolved:
    """Rank i gives counts[i] rows."""
    dtype, shape = _given(asked)
    rest = _rows("x", shape)
    _check_rows("x", shape, "counts", asked.counts[asked.rank], f"for rank {asked.rank}")
    result = (sum(asked.counts), *rest)
    recv = _into(asked, dtype, result)
    call = Signature(
        "all_gather",
        dtype,
        _uneven(asked.counts, rest),
        uniform=False,
        in_place=asked.in_place,
    )
    return Resolved(call, "x", recv, result)


def gather_v(asked: CallArguments) -> Resolved:
    """As all_gather_v, at the root alone."""
    root = check_rank("root", asked.root, asked.size)
    demand = all_gather_v(asked if asked.rank == root else _without_out(asked))
    call = Signature(
        "gather",
        demand.call.dtype,
        demand.call.counts,
        uniform=False,
        root=root,
        in_place=asked.in_place and asked.rank == root,
    )
    return Resolved(call, "x", demand.recv if asked.rank == root else None, demand.shape)


def reduce_scatter_v(asked: CallArguments) -> Resolved:
    """Rank i gets counts[i] rows of the result."""
    dtype, shape = _given(asked)
    op = _reduction(asked.op, dtype)
    rest = _rows("x", shape)
    _check_rows("x", shape, "counts", sum(asked.counts), "in all")
    result = (asked.counts[asked.rank], *rest)
    recv = _into(asked, dtype, result)
    call = Signature(
        "reduce_scatter",
        dtype,
        _uneven(asked.counts, rest),
        uniform=False,
        op=op,
        in_place=asked.in_place,
    )
    return Resolved(call, "x", recv, result, written=asked.in_place)


def all_to_all_v(asked: CallArguments) -> Resolved:
    """send_counts[j] rows go to rank j, recv_counts[j] come from it."""
    dtype, shape = _given(asked)
    rest = _rows("x", shape)
    _check_rows("x", shape, "send_counts", sum(asked.counts), "in all")
    if asked.counts[asked.rank] != asked.recv_counts[asked.rank]:
        raise UsageError(
            f"send_counts[{asked.rank}] is {asked.counts[asked.rank]} and "
            f"recv_counts[{asked.rank}] is {asked.recv_counts[asked.rank]} on rank {asked.rank}; "
            "what a rank sends to itself is what it receives from itself"
        )
    result = (sum(asked.recv_counts), *rest)
    recv = _into(asked, dtype, result)
    call = Signature(
        "all_to_all",
        dtype,
        _uneven(asked.counts, rest),
        _uneven(asked.recv_counts, rest),
        uniform=False,
        in_place=asked.in_place,
    )
    return Resolved(call, "x", recv, result, written=asked.in_place)


def scatter_v(asked: CallArguments) -> Resolved:
    """Rank i gets counts[i] rows of the root's x."""
    root = check_rank("root", asked.root, asked.size)
    own = asked.counts[asked.rank]
    if asked.rank != root:
        if asked.out is None:
            raise UsageError(
                f"out is None on rank {asked.rank}; scatter_v needs it but on the root"
            )
        dtype, shape = asked.out
        rest = _rows("out", shape)
        _check_rows("out", shape, "counts", own, f"for rank {asked.rank}")
        counts = _uneven(asked.counts, rest)
        call = Signature("scatter", dtype, counts, uniform=False, root=root)
        return Resolved(call, None, "out", shape)
    dtype, whole = _given(asked)
    rest = _rows("x", whole)
    _check_rows("x", whole, "counts", sum(asked.counts), "in all")
    result = (own, *rest)
    recv = _into(asked, dtype, result)
    call = Signature(
        "scatter",
        dtype,
        _uneven(asked.counts, rest),
        uniform=False,
        root=root,
        in_place=asked.in_place,
    )
    return Resolved(call, "x", recv, result, written=asked.in_place)


def barrier(_asked: CallArguments) -> Resolved:
    """Nothing is moved."""
    return Resolved(Signature("barrier", dtypes.BOOL, (0,)), None, None, ())


def _without_out(asked: CallArguments) -> CallArguments:
    return CallArguments(asked.rank, asked.size, asked.x, None, counts=asked.counts)


def _check_rows(name: str, shape: Shape, counts: str, expected: int, what: str) -> None:
    if shape[0] != expected:
        raise BufferMismatch(
            f"{name} has {shape[0]} rows (shape {shape}) and {counts} says {expected} {what}; "
            "they must be equal"
        )


RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        all_reduce,
        broadcast,
        reduce,
        all_gather,
        reduce_scatter,
        all_to_all,
        gather,
        scatter,
        scan,
        barrier,
        all_gather_v,
        reduce_scatter_v,
        all_to_all_v,
        gather_v,
        scatter_v,
    )
}
"""By name of the call."""
