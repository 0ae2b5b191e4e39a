"""Checks the arguments of each collective call, and makes its signature for the backend.

A `CallKind` is the meaning of the arguments without their sizes, so that a program with another size in each call has
few kinds. The functions here are pure functions of dtypes, shapes and numbers, which read the description of the
collective. Memory is checked elsewhere: the lanes check its layout, and `prepared_calls` checks overlap.

A call may also be on a number (`call_on_number`). Its result is a number of the same class, or an array of all
ranks' numbers. Integers are sent as int64 and floats as float64, whatever their width, and next to the number
a one is sent. Ranks easily differ here: a rank that has no data gives 0 where the others give 0.5. The fold of the ones
shows that in each call, at no cost. Python's numbers keep Python's meaning: integers are exact or refused, SUM and
PROD of bool count, and AVG divides. NumPy's numbers keep the meaning of NumPy's arrays.

`core` and `prepared_calls` use it, and so do `hpccomm.communicator` and the tools.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from hpccomm import dtypes, reductions
from hpccomm.contracts.collectives import CALLS, NOBODY, Collective
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.dtypes import REDUCIBLE, DType
from hpccomm.errors import BufferMismatch, RankMismatch, UsageError
from hpccomm.memory.views import check_layout, host_view
from hpccomm.reductions import Deterministic, Op, PremulSum, ReduceOp, recognised
from hpccomm.runtime.work import Later
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
        Rows of each rank's block. If ranks give different lists, the rows of each block that this rank sends.
    recv_counts : tuple of int
        If ranks give different lists, the rows of each block that this rank receives.
    peers : tuple of int
        For calls with listed peers, the peer of each block, or `NOBODY`.
    returned : bool
        Whether the call also returns the received rows.
    axis : tuple of int
        If blocks are not along axis 0: the axis along which x is split, and the axis of the result's blocks.
    """

    counts: Shape = ()
    recv_counts: Shape = ()
    peers: Shape = ()
    returned: bool = False
    axis: Shape = ()

    @property
    def sizeless(self) -> "Lists | None":
        """The lists without the numbers of rows: the part that all calls of a kind share. None without lists."""
        if self is NO_LISTS:
            return None
        return Lists((-1,) if self.counts else (), (), self.peers, False, self.axis)

    def arriving(self, rows: int) -> Shape:
        """Return the rows of each received block, from their total."""
        if self.peers and not self.counts:  # blocks of one size
            return (rows // len(self.peers),) * len(self.peers)
        return self.recv_counts or self.counts


NO_LISTS = Lists()


@dataclass(slots=True, eq=False)
class CallKind:
    """The meaning of a call's arguments without their sizes.

    Attributes
    ----------
    algorithm : str, Algorithm, callable or None
        The caller's argument.
    rank, ranks : int
        This rank, and the number of ranks.
    call : Signature
        The request to the backend, without counts.
    shaped_by : {"x", "out"}
        The array whose shape determines the sizes.
    sends : bool
        Whether that array is the sent one, on this rank or on the root.
    send, recv : {"x", "out", "new"} or None
        The array that is sent from, and the array that is received into.
    axis : tuple of int
        As in `Lists`.
    written : bool
        Whether the call writes to x.
    choices : dict
        The lane's choice, by class of size and kind of memory, and its implementation if that serves all sizes of the
        class.
    labels : dict
        The common part of fingerprints, by algorithm, kind of memory and whether the call is asynchronous.
    """

    algorithm: AnyAlgorithm | None
    rank: int
    ranks: int
    call: Signature
    shaped_by: Role
    sends: bool
    send: Role | None
    recv: Role | None
    axis: Shape = ()
    written: bool = False
    choices: dict[tuple[int, bool], tuple[Choice, Any]] = field(default_factory=dict)
    labels: dict[tuple[str, bool, bool], tuple[dict[str, object], int]] = field(
        default_factory=dict
    )

    @property
    def zeroed(self) -> bool:
        """Whether a new array begins with zeros, since the call does not write all of it."""
        return NOBODY in self.call.peers

    def with_sizes(
        self, x: Shape | None, out: Shape | None, lists: Lists
    ) -> tuple[Signature, Shape]:
        """Return the signature with its sizes, and the shape of the result, from the shapes of the arrays.

        Raises
        ------
        UsageError
            If the shapes do not fit.
        """
        call = self.call
        if call.description.sends == "nothing":
            return call._replace(counts=(0,)), ()
        shape = x if self.shaped_by == "x" else out
        assert shape is not None
        counts, recv_counts, result = _extents(self, shape, lists)
        if self.recv == "out":
            assert out is not None
            _check_elements(out, result)
        # If any block may be empty, all ranks treat the arrays as plain ones.
        registered = call.registered and 0 not in counts
        if call.description.in_place == "always":
            result = shape
        return call._replace(counts=counts, recv_counts=recv_counts, registered=registered), result

    def shape_in_common(self, call: Signature, shape: Shape) -> dict[str, object]:
        """Return the part of the result's shape that must be equal on all ranks; empty if ranks do not know it.

        Elements correspond by their order in memory. Extents of 1 do not change that order, so they do not count.
        """
        what = call.description
        known = what.in_place == "always" or not what.root_sends
        if what.sends == "nothing" or what.peers or not known:
            return {}
        # Ranks may have different numbers of rows, and the first extent of a result of blocks is their number.
        extents = shape if call.uniform and what.sends != "block" else shape[1:]
        return {"shape": str(tuple([each for each in extents if each != 1]))}


_Extents = tuple[Shape, Shape, Shape]
"""Elements of the blocks that are sent and that are received, and the shape of the result."""


def kind_of_call(
    rank: int,
    ranks: int,
    name: str,
    x: DType | None,
    out: DType | None,
    op: Any,
    root: Any,
    lists: Lists,
    exclusive: bool,
    in_place: bool,
    algorithm: AnyAlgorithm | None,
    deterministic: Deterministic,
    fresh: bool,
    registered: tuple[str, ...],
) -> CallKind:
    """Return the meaning of a call's arguments without their sizes.

    `x` and `out` are the dtypes of the arrays, or None if an array was not given. With `fresh`, the result goes to a
    new array. `registered` has the names of the arrays that are in registered memory.

    Raises
    ------
    UsageError
        If the arguments do not fit.
    """
    what = CALLS[name]
    if deterministic != reductions.ANY_RANKS:
        check_bool("deterministic", deterministic, f", or {reductions.ANY_RANKS!r}")
    if what.sends == "nothing":
        call = Signature(what.name, dtypes.BOOL, ())
        return CallKind(algorithm, rank, ranks, call, "x", False, None, None)
    root = check_rank("root", root, ranks) if what.rooted else -1
    sends = rank == root or not what.root_sends
    receives = rank == root or not what.root_receives
    one_array = what.in_place == "always"
    # Without out, an x that is not sent has the shape of the root's x.
    like_root = not sends and out is None and x is not None
    shaped_by: Role = "x" if sends or one_array or like_root else "out"
    dtype = _required(name, rank, x, out, lists, shaped_by)
    if what.reduces:
        op = _reduction(what, op, dtype, deterministic, exclusive, out is not None)
    recv: Role | None = None
    if receives:
        to_x = one_array or (what.in_place == "by default" and out is None and not fresh)
        recv = "x" if to_x else "new" if out is None else "out"
    if recv == "out" and out != dtype:
        raise BufferMismatch(f"out has dtype {out}; give dtype {dtype}")
    send: Role | None = "x" if sends and not one_array else None
    in_place = not one_array and receives and (recv == "x" or in_place)
    # A new array is in the same kind of memory as x.
    used = {"x" if each == "new" else each for each in (send, recv) if each is not None}
    call = Signature(
        what.name,
        dtype,
        (),
        (),
        lists.peers,
        uniform=not (lists.counts or what.peers),
        op=op if what.reduces else None,
        root=root,
        exclusive=exclusive,
        in_place=in_place,
        deterministic=deterministic,
    )
    if registered and not call.individual:
        call = call._replace(registered=used.issubset(registered))
    # If the call is in place by the user's `out`, the check of `out` covers the written memory.
    through_out = what.in_place == "by default" or what.sends == "block"
    written = not sends if one_array else recv == "x" or (in_place and not through_out)
    shaped = shaped_by, sends or like_root, send, recv
    return CallKind(algorithm, rank, ranks, call, *shaped, lists.axis, written)


def _required(
    name: str, rank: int, x: DType | None, out: DType | None, lists: Lists, which: Role
) -> DType:
    """Return the dtype of x, or of out on a rank that has no x."""
    dtype = x if which == "x" else out
    if dtype is not None:
        return dtype
    if which == "x":
        raise UsageError("x is None; give an array or a number; broadcast_object takes None")
    shown = f"({lists.counts[rank]}, ...)" if lists.counts else "shape"
    raise UsageError(
        f"{name}: x and out are None on rank {rank}, which is not the root and does not "
        f"know what arrives; give out=np.empty({shown}, dtype) of this rank's block, or an x of the shape "
        "and dtype of the root's, which is not read"
    )


def _reduction(
    collective: Collective,
    given: Any,
    dtype: DType,
    deterministic: Deterministic,
    exclusive: bool,
    into_out: bool,
) -> Op:
    """Return the checked reduction."""
    op: Op = reductions.recognised(given, dtype)
    reductions.check(op, dtype)
    if deterministic == reductions.ANY_RANKS:
        reductions.check_any_ranks(op, dtype)
    if collective.prefix:
        if op is ReduceOp.AVG:
            raise UsageError(
                f"op is ReduceOp.AVG, which {collective.name} does not take; "
                f"{collective.name} with SUM and divide"
            )
        given = into_out and not isinstance(op, ReduceOp | reductions.PremulSum)
        if check_bool("exclusive", exclusive) and not given:
            reductions.identity(op, dtype)
    return op


def _extents(kind: CallKind, shape: Shape, lists: Lists) -> _Extents:
    """Return the blocks of a call, and the shape of its result, from the shape of one array."""
    what = kind.call.description
    if not what.blockwise:
        return (math.prod(shape),), (), shape
    if lists.counts:
        return _listed(kind, shape, lists)
    size = len(lists.peers) if what.peers else kind.ranks
    if what.sends == "block":
        return (math.prod(shape),) * size, (), (size, *shape)
    block = _block(what, shape, size) if kind.sends else shape
    counts = (math.prod(block),) * size
    if what.receives == "blocks":
        return counts, counts, shape
    return counts, (), block


def _listed(kind: CallKind, shape: Shape, lists: Lists) -> _Extents:
    """Return the blocks of a call, and the shape of its result, for blocks whose rows are listed."""
    what, rank, name = kind.call.description, kind.rank, kind.shaped_by
    counts, recv_counts, peers, *_ = lists
    rest = row_shape(name, shape)
    listed = "send_counts" if what.individual else "counts"
    if what.sends == "block" or not kind.sends:
        _check_rows(name, shape, listed, counts[rank], f"for rank {rank}")
    else:
        _check_rows(name, shape, listed, sum(counts), "in all")
    if what.individual:
        for block, peer in enumerate(peers if what.peers else range(len(counts))):
            if peer == rank:
                _check_own(rank, block, counts, recv_counts)
        rows = sum(recv_counts)
    else:
        rows = sum(counts) if what.receives == "blocks" else counts[rank]
    return _elements(counts, rest), _elements(recv_counts, rest), (rows, *rest)


def check_counts(name: str, counts: object, size: int, whose: str = "rank") -> Shape:
    """Return `counts` as a tuple of numbers of rows, one for each of `size` blocks.

    Raises
    ------
    UsageError
        If it is not a sequence of so many numbers of at least 0.
    """
    try:
        numbers = tuple([check_int(name, each) for each in counts])  # type: ignore[attr-defined]
    except (TypeError, UsageError):
        raise UsageError(
            f"{name} is {counts!r}; give a sequence of {size} integers, such as n // m: rows, one for each {whose}"
        ) from None
    if len(numbers) != size:
        raise UsageError(f"{name} has {len(numbers)} numbers; give {size}, one for each {whose}")
    if numbers and min(numbers) < 0:
        raise UsageError(f"{name} is {numbers}; numbers of rows are 0 or more")
    return numbers


def check_peers(peers: object, size: int) -> Shape:
    """Return `peers` as a tuple of ranks, with `NOBODY` in place of None.

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
    for block, each in enumerate(listed):
        if (
            each.__class__ is not int or not 0 <= each < size
        ):  # checked in place, since a function call per peer takes time
            listed[block] = NOBODY if each is None else check_rank(f"peers[{block}]", each, size)
    return tuple(listed)


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


def check_out(out_dtype: DType, out_shape: Shape, dtype: DType, shape: Shape) -> None:
    """Check that an `out` of `out_dtype` and `out_shape` takes a result of `dtype` and `shape`.

    Raises
    ------
    BufferMismatch
        If it does not.
    """
    if out_dtype != dtype:
        raise BufferMismatch(f"out has dtype {out_dtype}; give dtype {dtype}")
    _check_elements(out_shape, shape)


def _check_elements(out: Shape, shape: Shape) -> None:
    if math.prod(out) != math.prod(shape):
        raise BufferMismatch(
            f"out has shape {out} ({math.prod(out)} elements); "
            f"give shape {shape} or another with {math.prod(shape)} elements"
        )


_PYTHON: tuple[Any, ...] = (bool, int, float, complex)
NUMBERS = frozenset((*_PYTHON, *(each.type for each in REDUCIBLE), np.longlong, np.ulonglong))
"""Classes of numbers. Two C types, such as long and long long, may have the same dtype."""

SCALARS = (int, float, complex, np.generic)
"""Python's classes of numbers, and the base class of NumPy's scalars."""

OF_NUMBERS = frozenset(("all_reduce", "reduce", "broadcast", "scan", "all_gather", "gather"))
"""The calls that take a number in place of an array."""

LARGEST = np.iinfo(np.int64).max

_INTEGER, _FLOAT, _COMPLEX = map(np.dtype, (np.int64, np.float64, np.complex128))
_WIDE = {"i": _INTEGER, "f": _FLOAT, "V": _FLOAT, "c": _COMPLEX}
"""The dtype in which NumPy's numbers are sent, by kind; ml_dtypes has kind V."""


class NumberCall:
    """A collective call on numbers of one class, which can be carried out repeatedly.

    The parameters are those of `Core.collective`.

    Attributes
    ----------
    call : Call
        The call on the array with the number and a one.
    """

    def __init__(
        self, core: Any, name: str, like: Any, op: Any, root: Any, exclusive: Any, *how: Any
    ) -> None:
        backend = core.backend
        op = op if op is None else recognised(op, np.dtype(like.__class__))
        dtype, self._most = _travelling(like, op, backend.size)
        self._calls, self._class = core.calls, like.__class__
        self._box = np.ones(2, dtype)
        lists = NO_LISTS, exclusive, *how
        prepared, arrays = core.prepared_calls.find(name, self._box, "new", op, root, *lists)
        self.call = call = prepared.lane.bind(prepared, arrays, None)
        self._prepared = prepared
        self._arguments = prepared.arguments(call.send, call.recv)
        # The result of the ones of all ranks; None if it is not known.
        ones = backend.rank + (not exclusive) if name == "scan" else backend.size
        if op is ReduceOp.BXOR:
            ones %= 2
        elif op is not ReduceOp.SUM or dtype == np.bool_:
            ones = min(ones, 1)
        known = ones and (op is None or isinstance(op, ReduceOp))
        self._ones = ones if known else None

    def __call__(self, x: Any, limit: float) -> Any:
        """Carry the call out on a number, with a deadline of `limit` seconds, and return its result."""
        self.fill(x)
        self._prepared.issue(self._arguments, self.call.keep, limit)
        return self.came(self.call.result)

    def fill(self, x: Any) -> None:
        """Put the number into the array of the call.

        Raises
        ------
        UsageError
            If the number is one of Python's integers, and the result may not fit int64.
        """
        most, box = self._most, self._box
        if most is not None and not -most <= x <= most:
            raise UsageError(
                f"x is {x}, and the result of the integers of {self._calls.backend.size} ranks may not fit int64; "
                "give float(x), or sum what all_gather_object(x) gives, whose integers have any size"
            )
        box[0], box[1] = x, 1

    def came(self, result: Any) -> Any:
        """Return the result of the call as a number of the given class, or as an array of such numbers."""
        if result is None:
            return None
        number, ones = result.T.tolist()
        if result.ndim > 1:
            number, ones = result[:, 0].copy(), max(ones, key=lambda one: one != 1)
        if ones != self._ones and self._ones is not None:
            calls, label = self._calls, self._prepared.label
            error = RankMismatch(
                f"{label.name}: the ranks give numbers of different kinds, and this one {self._class.__name__}; "
                "give one kind on all ranks, such as float(x)",
                communicator=calls.name,
                rank=calls.backend.rank,
                operation=label.name,
            )
            calls.fail(error)
            raise error
        if self._class in _PYTHON:
            return number
        return result[..., 0].astype(self._class)[()]


def plain(x: Any) -> Any:
    """Return a number of a user's subclass as Python's number, and any other scalar of NumPy as a 0-d array.

    Other objects are returned unchanged. The array is new, since scalars are never written.
    """
    if x.__class__ in NUMBERS or not isinstance(x, SCALARS):
        return x
    if isinstance(x, np.generic):
        return np.array(x)
    return next(kind(x) for kind in _PYTHON if isinstance(x, kind))


def call_on_number(
    core: Any, name: str, x: Any, out: Any, async_op: bool, limit: float, key: object, *given: Any
) -> Any:
    """Carry out a collective call on a number, and keep it for later calls with the same `key`.

    The caller holds the turn. Ranks may differ in whether they give an array for the result, `out`, since the messages
    are the same.
    """
    if core.sink.batch is not None:
        raise UsageError(
            f"x is {x!r} within batch(), at whose end calls fill arrays; give an array, such as "
            f"numpy.array({x!r})"
        )
    into = None if out is None else host_view(out, "out")
    if into is not None:
        shape = (core.backend.size,) * name.endswith("gather")
        check_out(into.dtype, into.shape, np.asarray(x).dtype, shape)
        check_layout(into, "out", written=True)
    number = NumberCall(core, name, x, *given)

    def stored(came: Any) -> Any:
        if into is None or came is None:
            return came
        into.reshape(-1)[...] = came
        return out

    if async_op is False and not core.sink.diverted:
        if key is not None:
            core.known.keep(key, number)
        return stored(number(x, limit))
    number.fill(x)
    result = number.call.result
    call = replace(number.call, result=Later(lambda: stored(number.came(result))))
    return core.issue(call, async_op, limit)


def _travelling(x: Any, op: Any, size: int) -> tuple[DType, int | None]:
    """Return the dtype in which numbers of a class are sent, and the largest permitted number, or None."""
    if not isinstance(x, int):
        dtype = np.dtype(x.__class__)
        narrow = dtype.kind == "u" and dtype.itemsize < 8
        return _INTEGER if narrow else _WIDE.get(dtype.kind, dtype), None
    if op is ReduceOp.AVG:
        return _FLOAT, None
    counting = op is ReduceOp.SUM or op is ReduceOp.PROD or isinstance(op, PremulSum)
    if isinstance(x, bool) and not counting:
        return np.dtype(np.bool_), None
    most = LARGEST
    if op is ReduceOp.PROD:
        most = int(LARGEST ** (1 / size))
        most -= most**size > LARGEST
    elif counting:
        most //= size * (int(abs(getattr(op, "factor", 1))) or 1)
    return _INTEGER, most
