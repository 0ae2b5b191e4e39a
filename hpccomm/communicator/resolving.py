"""Checks the arguments of each collective call, and makes its signature for the backend.

Pure functions of dtypes, shapes and numbers, which read the description of the collective. The
memory itself is checked elsewhere: its layout by the lanes, overlap when a decision is looked up.
`prepared_calls` and `counts` call it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hpccomm import dtypes, reductions
from hpccomm.contracts.collectives import CALLS, NOBODY, Collective
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.reductions import Deterministic, Op, ReduceOp
from hpccomm.schedules.algorithms import AnyAlgorithm
from hpccomm.settings import check_bool, check_int
from hpccomm.topology import check_rank

Shape = tuple[int, ...]
Role = Literal["x", "out", "new"]


class Lists(NamedTuple):
    """The lists of a call, if any.

    Attributes
    ----------
    counts : tuple of int
        Rows of each rank's block; with lists of each rank's own, the sent rows.
    recv_counts : tuple of int
        With lists of each rank's own, the received rows.
    peers : tuple of int
        For calls with listed peers, the peer of each block, or `NOBODY`.
    returned : bool
        Whether the call also returns the received rows.
    axis : tuple of int
        Where blocks are not along axis 0: the axis along which x is split, and the one of the result.
    """

    counts: Shape = ()
    recv_counts: Shape = ()
    peers: Shape = ()
    returned: bool = False
    axis: Shape = ()

    def arriving(self, rows: int) -> Shape:
        """Return the rows of each received block, from their total."""
        if self.peers and not self.counts:  # blocks of one size
            return (rows // len(self.peers),) * len(self.peers)
        return self.recv_counts or self.counts


NO_LISTS = Lists()


class CallRequest(NamedTuple):
    """The user's request of a collective call, without the memory.

    `x` and `out` are pairs of dtype and shape, or None where the array was not given. If `fresh`, the
    result goes to a new array. `registered` names those of the two that are in registered memory.
    """

    rank: int
    size: int
    name: str
    x: tuple[DType, Shape] | None
    out: tuple[DType, Shape] | None
    op: Any
    root: Any
    lists: Lists
    exclusive: bool
    in_place: bool
    algorithm: AnyAlgorithm | None
    deterministic: Deterministic
    fresh: bool = False
    registered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The meaning of a call's arguments.

    Attributes
    ----------
    call : Signature
        What the backend is asked for.
    send, recv : {"x", "out", "new"} or None
        Which array is sent from and which one is received into.
    shape : tuple of int
        Of the result; a new array is made so.
    written : bool
        Whether x is written.
    zeroed : bool
        Whether a new array begins with zeros, since the call does not write all of it.
    """

    call: Signature
    send: Role | None
    recv: Role | None
    shape: Shape
    written: bool = False
    zeroed: bool = False

    def shape_in_common(self) -> dict[str, object]:
        """Return what shapes must have in common on all ranks, as a term; empty where ranks do not know it.

        Elements meet in the order of memory. Extents of 1 do not change that, so they do not count.
        """
        call, shape = self.call, self.shape
        what = call.description
        known = what.in_place == "always" or not what.root_sends
        if what.sends == "nothing" or what.peers or not known:
            return {}
        # Ranks have rows of their own; a result of blocks begins with their number.
        extents = shape if call.uniform and what.sends != "block" else shape[1:]
        return {"shape": str(tuple(each for each in extents if each != 1))}

    def direct(
        self, arguments: Callable[[Any, Any], tuple[Any, ...]]
    ) -> Callable[[Any, Any], tuple[Any, ...]]:
        """Return the function for a call's arguments of x and `out`, if these are received into."""
        match self.send, self.recv:
            case "x", "out":
                return arguments
            case "x", "x":
                return lambda x, _out: arguments(x, x)
            case "x", None:
                return lambda x, _out: arguments(x, None)
            case None, "x":
                return lambda x, _out: arguments(None, x)
            case None, "out":
                return lambda _x, out: arguments(None, out)
        return lambda _x, _out: arguments(None, None)


def _on_registered(
    call: Signature, request: CallRequest, send: Role | None, recv: Role | None
) -> bool:
    """Return whether a call is one on registered arrays: all that this rank sends and receives are.

    Where a rank may have none with elements, all ranks take the call as one on plain arrays.
    """
    # A new array lies where x does.
    used = {"x" if each == "new" else each for each in (send, recv) if each is not None}
    return not call.individual and 0 not in call.counts and used.issubset(request.registered)


class _Extents(NamedTuple):
    """Elements of the blocks that are sent and received, and the shape of the result."""

    counts: Shape
    recv_counts: Shape
    result: Shape


def resolve(request: CallRequest) -> Resolved:
    """Return the meaning of a call's arguments.

    Raises
    ------
    UsageError
        If they do not fit.
    """
    collective = CALLS[request.name]
    if collective.sends == "nothing":
        return Resolved(Signature(collective.name, dtypes.BOOL, (0,)), None, None, ())
    rank, lists = request.rank, request.lists
    root = check_rank("root", request.root, request.size) if collective.rooted else -1
    sends = rank == root or not collective.root_sends
    receives = rank == root or not collective.root_receives
    one_array = collective.in_place == "always"
    # An x that is not sent stands for the root's, where no out says what arrives.
    like_root = not sends and request.out is None and request.x is not None
    which = "x" if sends or one_array or like_root else "out"
    dtype, shape = _required(request, which)
    op = _reduction(collective, request, dtype)
    extents = _extents(collective, request, which, shape, sends=sends or like_root)
    recv: Role | None = None
    if receives:
        default = collective.in_place == "by default" and request.out is None
        to_x = one_array or (default and not request.fresh)
        recv = "x" if to_x else _into(request, dtype, extents.result)
    in_place = not one_array and receives and (recv == "x" or request.in_place)
    call = Signature(
        collective.name,
        dtype,
        extents.counts,
        extents.recv_counts,
        lists.peers,
        uniform=not (lists.counts or collective.peers),
        op=op,
        root=root,
        exclusive=request.exclusive,
        in_place=in_place,
    )
    send: Role | None = "x" if sends and not one_array else None
    if request.registered:
        call = replace(call, registered=_on_registered(call, request, send, recv))
    if one_array:
        return Resolved(call, None, "x", shape, written=not sends)
    # In place by the user's `out`, the written memory is seen from there.
    through_out = collective.in_place == "by default" or collective.sends == "block"
    written = recv == "x" or (in_place and not through_out)
    return Resolved(call, send, recv, extents.result, written, NOBODY in lists.peers)


def _required(request: CallRequest, which: str) -> tuple[DType, Shape]:
    """Return the dtype and shape of x, or of out on a rank that has no x."""
    array = request.x if which == "x" else request.out
    if array is not None:
        return array
    if which == "x":
        raise UsageError("x is None; give an array or a number; broadcast_object takes None")
    counts = request.lists.counts
    shown = f"({counts[request.rank]}, ...)" if counts else "shape"
    raise UsageError(
        f"{request.name}: x and out are None on rank {request.rank}, which is not the root and does not "
        f"know what arrives; give out=np.empty({shown}, dtype) of this rank's block, or an x of the shape "
        "and dtype of the root's, which is not read"
    )


def _reduction(collective: Collective, request: CallRequest, dtype: DType) -> Op | None:
    """Return the checked reduction, or None for a collective without one."""
    if not collective.reduces:
        return None
    op: Op = reductions.recognised(request.op, dtype)
    reductions.check(op, dtype)
    if request.deterministic == reductions.ANY_RANKS:
        reductions.check_any_ranks(op, dtype)
    if collective.prefix:
        if op is ReduceOp.AVG:
            raise UsageError(
                f"op is ReduceOp.AVG, which {collective.name} does not take; "
                f"{collective.name} with SUM and divide"
            )
        given = request.out is not None and not isinstance(op, ReduceOp | reductions.PremulSum)
        if check_bool("exclusive", request.exclusive) and not given:
            reductions.identity(op, dtype)
    return op


def _extents(
    collective: Collective, request: CallRequest, name: str, shape: Shape, *, sends: bool
) -> _Extents:
    """Return the blocks of a call, and the shape of its result, from the shape of one array."""
    if not collective.blockwise:
        return _Extents((math.prod(shape),), (), shape)
    if request.lists.counts:
        return _listed(collective, request, name, shape, sends=sends)
    size = len(request.lists.peers) if collective.peers else request.size
    if collective.sends == "block":
        return _Extents((math.prod(shape),) * size, (), (size, *shape))
    block = _block(collective, shape, size) if sends else shape
    counts = (math.prod(block),) * size
    if collective.receives == "blocks":
        return _Extents(counts, counts, shape)
    return _Extents(counts, (), block)


def _listed(
    collective: Collective, request: CallRequest, name: str, shape: Shape, *, sends: bool
) -> _Extents:
    """Return the same for blocks whose rows are listed."""
    rank, (counts, recv_counts, peers, *_) = request.rank, request.lists
    rest = row_shape(name, shape)
    listed = "send_counts" if collective.individual else "counts"
    if collective.sends == "block" or not sends:
        _check_rows(name, shape, listed, counts[rank], f"for rank {rank}")
    else:
        _check_rows(name, shape, listed, sum(counts), "in all")
    if collective.individual:
        for block, peer in enumerate(peers if collective.peers else range(len(counts))):
            if peer == rank:
                _check_own(rank, block, counts, recv_counts)
        rows = sum(recv_counts)
    else:
        rows = sum(counts) if collective.receives == "blocks" else counts[rank]
    return _Extents(_elements(counts, rest), _elements(recv_counts, rest), (rows, *rest))


def check_counts(name: str, counts: object, size: int, whose: str = "rank") -> Shape:
    """Return `counts` as one number of rows for each of `size` blocks.

    Raises
    ------
    UsageError
        If it is not that.
    """
    try:
        numbers = tuple([check_int(name, each) for each in counts])  # type: ignore[attr-defined]
    except (TypeError, UsageError):
        raise UsageError(
            f"{name} is {counts!r}; give a sequence of {size} numbers of rows, one for each {whose}"
        ) from None
    if len(numbers) != size:
        raise UsageError(f"{name} has {len(numbers)} numbers; give {size}, one for each {whose}")
    if numbers and min(numbers) < 0:
        raise UsageError(f"{name} is {numbers}; numbers of rows are 0 or more")
    return numbers


def check_peers(peers: object, size: int) -> Shape:
    """Return `peers` as ranks, with `NOBODY` for None.

    Raises
    ------
    UsageError
        If it is not a sequence of ranks and None.
    """
    try:
        listed = list(peers)  # type: ignore[call-overload]
    except TypeError:
        raise UsageError(
            f"peers is {peers!r}; give a sequence of ranks, one for each block, or None for a block "
            "that is not exchanged"
        ) from None
    return tuple(
        NOBODY if each is None else check_rank(f"peers[{block}]", each, size)
        for block, each in enumerate(listed)
    )


def _check_own(rank: int, block: int, counts: Shape, recv_counts: Shape) -> None:
    if counts[block] != recv_counts[block]:
        raise UsageError(
            f"send_counts[{block}] is {counts[block]} and recv_counts[{block}] is "
            f"{recv_counts[block]} on rank {rank}; what a rank sends to itself is what it receives "
            "from itself"
        )


def _block(collective: Collective, shape: Shape, size: int) -> Shape:
    """Return the shape of one of `size` equal blocks of x along axis 0."""
    if collective.peers and not size:
        if shape[:1] != (0,):
            raise UsageError(f"x has shape {shape} and peers is empty; give an array with 0 rows")
        return shape
    if not shape:
        raise UsageError(f"x is 0-d; give an array whose axis 0 is divisible by {size}")
    if shape[0] % size == 0:
        return (shape[0] // size, *shape[1:])
    if collective.peers:
        raise UsageError(
            f"x has shape {shape}; axis 0 must be divisible by the {size} peers "
            "(send_counts lists the rows of uneven blocks)"
        )
    raise UsageError(
        f"x has shape {shape}; axis 0 must be divisible by the {size} ranks "
        "(the call whose name ends in _v takes uneven blocks)"
    )


def row_shape(name: str, shape: Shape) -> Shape:
    """Return the shape of one row.

    Raises
    ------
    UsageError
        If an array of that shape has no rows.
    """
    if not shape:
        raise UsageError(f"{name} is 0-d; give an array with rows along axis 0")
    return shape[1:]


def _elements(counts: Shape, rest: Shape) -> Shape:
    row = math.prod(rest)
    return tuple(count * row for count in counts)


def _check_rows(name: str, shape: Shape, counts: str, expected: int, what: str) -> None:
    if shape[0] != expected:
        raise BufferMismatch(
            f"{name} has {shape[0]} rows (shape {shape}) and {counts} says {expected} {what}; "
            "they must be equal"
        )


def _into(request: CallRequest, dtype: DType, shape: Shape) -> Role:
    """Return where a result of `shape` goes: to `out` or a new array."""
    if request.out is None:
        return "new"
    check_out(*request.out, dtype, shape)
    return "out"


def check_out(out_dtype: DType, out_shape: Shape, dtype: DType, shape: Shape) -> None:
    """Check that an `out` of `out_dtype` and `out_shape` takes a result of `dtype` and `shape`.

    Raises
    ------
    BufferMismatch
        If it does not.
    """
    if out_dtype != dtype:
        raise BufferMismatch(f"out has dtype {out_dtype}; give dtype {dtype}")
    if math.prod(out_shape) != math.prod(shape):
        raise BufferMismatch(
            f"out has shape {out_shape} ({math.prod(out_shape)} elements); "
            f"give shape {shape} or another with {math.prod(shape)} elements"
        )
