"""One call of any collective: its arguments, what they hold before it, and what after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ReduceOp
from hpccomm.contracts.collectives import DESCRIPTIONS, Collective, counterpart, ring
from hpccomm.reductions import PremulSum
from hpccomm.testing.conformance.check import equal
from hpccomm.testing.conformance.inputs import moved, poison, reduced, reduction, tolerance
from hpccomm.testing.conformance.reductions import identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpccomm.communicator import Communicator
    from hpccomm.reductions import Op
    from hpccomm.testing.conformance.check import Array

Place = Callable[[str, int, "np.dtype[Any]"], "Array"]
"""Gives the memory of a call's array: its name (``"x"`` or ``"out"``), elements and dtype."""

FORMS = ("call", "asynchronous", "plan")
"""Ways to make a call."""

FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a trial is of.

    Attributes
    ----------
    collective : str
        Without ``_v``.
    count : int or tuple of int
        Elements of the array, or of each block; a tuple, one number a rank, makes it the uneven call.
        What ranks send in each block where they have numbers of their own is these, turned round by rank.
    dtype : dtype
        Of all arrays.
    op : ReduceOp, PremulSum or callable
        Where the collective reduces.
    root : int
        Where it has one.
    exclusive : bool
        Of a scan.
    in_place : bool or None
        Whether the result goes where the contribution lies, on the ranks that have both; None is on
        every other one of them.
    """

    collective: str
    count: int | tuple[int, ...]
    dtype: np.dtype[Any] = FLOAT32
    op: Op = ReduceOp.SUM
    root: int = 0
    exclusive: bool = False
    in_place: bool | None = False

    @property
    def call(self) -> str:
        """Name of the call."""
        return self.what.calls[0 if isinstance(self.count, int) else -1]

    @property
    def what(self) -> Collective:
        """What the collective is."""
        return DESCRIPTIONS[self.collective]

    def counts(self, size: int) -> tuple[int, ...]:
        """Return the elements of each of `size` blocks."""
        return (self.count,) * size if isinstance(self.count, int) else self.count


@dataclass(frozen=True, slots=True)
class Trial:
    """A call on one rank.

    Attributes
    ----------
    ask : Ask
        What it is of.
    arguments : mapping
        Keyword arguments of the call.
    before, after : tuple of (ndarray, ndarray)
        Arrays and the values that they get before the call, in this order; and those that they must
        have after it.
    """

    ask: Ask
    arguments: Mapping[str, Any]
    before: tuple[tuple[Array, Array], ...]
    after: tuple[tuple[Array, Array], ...]

    def run(self, comm: Communicator, form: str = "call", **how: Any) -> None:
        """Make the call and look at what it wrote; collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            That for which the trial was made.
        form : str
            One of `FORMS`. A plan is called twice.
        **how
            More keyword arguments of the call.
        """
        call = getattr(comm, self.ask.call)
        what = f"{form}, {how}"
        if form == "plan":
            planned = comm.plan(self.ask.call, **self.arguments, **how)
            self._make(planned, what)
            self._make(planned, f"{what}, again")
        elif form == "asynchronous":
            self._make(lambda: call(**self.arguments, **how, async_op=True).wait(), what)
        else:
            self._make(lambda: call(**self.arguments, **how), what)

    def _make(self, call: Callable[[], object], what: str) -> None:
        for array, values in self.before:
            array[...] = values
        call()
        op, dtype = self.ask.op, self.ask.dtype
        rtol = tolerance(op, dtype) if isinstance(op, ReduceOp) else 0.0
        for array, values in self.after:
            equal(array, values, f"{self.ask}, {what}", rtol=rtol)


def anywhere(_name: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return memory of NumPy's."""
    return np.empty(count, dtype)


def trial(comm: Communicator, ask: Ask, place: Place = anywhere) -> Trial:
    """Return the trial of `ask` on this rank. Local.

    Parameters
    ----------
    comm : Communicator
        Gives rank and size.
    ask : Ask
        Equal on all ranks.
    place : callable
        Gives the arrays' memory; ranks may differ in it.
    """
    rank, size = comm.rank, comm.size
    given, wanted = _values(ask, rank, size)
    arguments = _arguments(ask, rank, size)
    if ask.what.in_place == "always":
        assert wanted is not None
        if given is not None:
            return Trial(ask, {"x": frozen(given, place), **arguments}, (), ())
        x = place("x", wanted.size, wanted.dtype)
        return Trial(ask, {"x": x, **arguments}, ((x, poison(wanted)),), ((x, wanted),))
    in_place = rank % 2 == 0 if ask.in_place is None else ask.in_place
    if given is None or wanted is None or not in_place:
        return _apart(ask, arguments, given, wanted, place)
    counts = ask.counts(size)
    own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
    return _in_place(ask, arguments, given, wanted, own, place)


def frozen(values: Array, place: Place = anywhere) -> Array:
    """Return a read-only array of `values`."""
    array = place("x", values.size, values.dtype)
    array[...] = values
    array.flags.writeable = False
    return array


def _apart(
    ask: Ask,
    arguments: Mapping[str, Any],
    given: Array | None,
    wanted: Array | None,
    place: Place,
) -> Trial:
    """Return a trial in which the contribution stays, on ranks that may have only x or only out."""
    x = out = None
    before, after = [], []
    if given is not None:
        x = frozen(given, place)  # so that nobody writes there
    if wanted is not None:
        out = place("out", wanted.size, wanted.dtype)
        before.append((out, poison(wanted)))
        after.append((out, wanted))
    return Trial(ask, {"x": x, "out": out, **arguments}, tuple(before), tuple(after))


def _in_place(
    ask: Ask,
    arguments: Mapping[str, Any],
    given: Array,
    wanted: Array,
    own: slice,
    place: Place,
) -> Trial:
    """Return a trial in which x is out, or one of them the block `own` of the other."""
    if ask.what.in_place == "own block" and ask.what.sends == "block":
        out = place("out", wanted.size, wanted.dtype)
        arrays = {"x": out[own], "out": out}
        before = ((out, poison(wanted)), (out[own], given))
        return Trial(ask, {**arrays, **arguments}, before, ((out, wanted),))
    x = place("x", given.size, given.dtype)
    if ask.what.in_place == "own block":
        after = given.copy()  # the other blocks stay
        after[own] = wanted
        return Trial(ask, {"x": x, "out": x[own], **arguments}, ((x, given),), ((x, after),))
    arrays = {"x": x, "out": x} if ask.what.in_place == "on request" else {"x": x}
    return Trial(ask, {**arrays, **arguments}, ((x, given),), ((x, wanted),))


def contributions(op: Op, size: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
    """Return what each rank gives to a reduction by `op` whose partial results are all exact."""
    return reduced(op if isinstance(op, ReduceOp) else ReduceOp.SUM, size, (count,), dtype)


def folded(op: Op, arrays: Sequence[Array]) -> Array:
    """Return what `op` makes of at least one array, folded in this order."""
    if isinstance(op, ReduceOp):
        return reduction(op, arrays)
    if isinstance(op, PremulSum):
        factor = arrays[0].dtype.type(op.factor)
        scaled = [(array * factor).astype(array.dtype) for array in arrays]
        return reduction(ReduceOp.SUM, scaled)
    return np.asarray(reduce(op, arrays))


# Ranks that are threads all ask for the same; nobody writes into what they get.
_contributions = lru_cache(maxsize=16)(contributions)


@lru_cache(maxsize=16)
def _total(op: Op, size: int, count: int, dtype: np.dtype[Any]) -> Array:
    return folded(op, _contributions(op, size, count, dtype))


@lru_cache(maxsize=16)
def _moved(size: int, count: int, dtype: np.dtype[Any]) -> list[Array]:
    return moved(size, (count,), dtype)


def cut(array: Array, counts: Sequence[int]) -> list[Array]:
    """Return the blocks of `array`, of `counts` elements each."""
    return np.split(array, np.cumsum(counts)[:-1])


def peers(ask: Ask, rank: int, size: int) -> tuple[int, ...]:
    """Return the rank to which each block goes that a rank exchanges."""
    return ring(rank, size) if ask.what.peers else tuple(range(size))


def sent(ask: Ask, size: int) -> list[tuple[int, ...]]:
    """Return how many elements each rank (first index) sends in each block (second)."""
    counts = ask.counts(size)
    # In place as many come as go: the table is symmetric. Else it is not.
    turn = 2 if ask.in_place is False else 1
    return [
        tuple(counts[(turn * i + j) % size] for j in range(len(peers(ask, i, size))))
        for i in range(size)
    ]


def arriving(ask: Ask, rank: int, size: int) -> list[tuple[int, int]]:
    """Return for each block that a rank receives who sends it, and as which of its blocks."""
    return [
        (peer, counterpart(rank, block, lambda each: peers(ask, each, size)))
        for block, peer in enumerate(peers(ask, rank, size))
    ]


Values = tuple["Array | None", "Array | None"]
"""What a rank gives, and what it gets."""


def _values(ask: Ask, rank: int, size: int) -> Values:
    what = ask.what
    if what.individual:
        return _exchanged(ask, rank, size)
    counts = ask.counts(size) if what.blockwise else ask.counts(1)
    total = sum(counts)
    if what.reduces:
        given = _contributions(ask.op, size, total, ask.dtype)[rank]
        wanted = _folded_at(ask, rank, size, total)
    else:
        whole = _moved(1, total, ask.dtype)[0]
        given = cut(whole, counts)[rank] if what.sends == "block" else whole
        wanted = whole
    if what.receives == "block":
        wanted = cut(wanted, counts)[rank]
    at_root = rank == ask.root
    return (
        given if at_root or not what.root_sends else None,
        wanted if at_root or not what.root_receives else None,
    )


def _folded_at(ask: Ask, rank: int, size: int, total: int) -> Array:
    """Return the fold that a rank gets."""
    if not ask.what.prefix:
        return _total(ask.op, size, total, ask.dtype)
    arrays = _contributions(ask.op, size, total, ask.dtype)
    before = arrays[: rank if ask.exclusive else rank + 1]
    if before:
        return folded(ask.op, before)
    assert isinstance(ask.op, ReduceOp)
    return np.full_like(arrays[rank], identity(ask.op, ask.dtype))


def _exchanged(ask: Ask, rank: int, size: int) -> Values:
    """Return what a rank gives and gets where each has blocks for its peers."""
    table = sent(ask, size)
    arrays = _moved(size, max(map(sum, table)), ask.dtype)
    parts = [
        cut(arrays[peer][: sum(table[peer])], table[peer])[block]
        for peer, block in arriving(ask, rank, size)
    ]
    return arrays[rank][: sum(table[rank])], np.concatenate(parts)


def _arguments(ask: Ask, rank: int, size: int) -> dict[str, Any]:
    """Return the keyword arguments of a call, but for its arrays."""
    arguments: dict[str, Any] = {}
    what = ask.what
    if what.reduces:
        arguments["op"] = ask.op
    if what.rooted:
        arguments["root"] = ask.root
    if what.prefix:
        arguments["exclusive"] = ask.exclusive
    if what.peers:
        arguments["peers"] = peers(ask, rank, size)
    if isinstance(ask.count, tuple):
        if what.individual:
            table = sent(ask, size)
            arguments["send_counts"] = table[rank]
            arguments["recv_counts"] = [
                table[peer][block] for peer, block in arriving(ask, rank, size)
            ]
        else:
            arguments["counts"] = ask.count
    return arguments
