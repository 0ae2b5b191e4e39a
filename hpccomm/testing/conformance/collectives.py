"""Cases of `Backend.native` and `Backend.group`. Every collective has NumPy's result, whichever code carries it out.

A `Trial` is one call of any collective: its arguments, and the contents of its arrays before and after the call. It
checks them against the oracle.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import DESCRIPTIONS, REDUCTIONS
from hpccomm.dtypes import BFLOAT16, REDUCIBLE
from hpccomm.reductions import Op, meaningful
from hpccomm.testing.conformance.case import Array, Behaviours, equal, same_bits
from hpccomm.testing.conformance.oracle import (
    FLAT,
    IN_PLACE,
    MOVABLE,
    NEW,
    OPS,
    OUT,
    WITH_DATA,
    Graph,
    RankView,
    Spec,
    poison,
    ranks_for,
    tolerance,
)

Place = Callable[[str, int, np.dtype[Any]], Array]
"""Returns new memory for an array of a call, from its name (``"x"`` or ``"out"``), number of elements and dtype."""

FORMS = ("call", "asynchronous", "plan")
"""Ways to make a call."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A call on one rank.

    Attributes
    ----------
    part : RankView
        This rank's part in the call.
    arguments : mapping
        Keyword arguments of the call, arrays among them.
    target : ndarray or None
        The argument that the call writes and returns, if any.
    """

    part: RankView
    arguments: Mapping[str, Any]
    target: Array | None

    def run(self, comm: Communicator, form: str = "call", **how: Any) -> None:
        """Make the call and check its arrays and its result; collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            The trial's communicator.
        form : str
            One of `FORMS`. A plan is called twice, with different values.
        **how
            Further keyword arguments of the call. With `deterministic`, results must be equal bit by bit.
        """
        spec = self.part.spec
        call: Callable[..., Any] = getattr(comm, spec.call)
        what = f"{spec.op} of {spec.dtype}, {spec}, {form}, {how}"
        calls: list[Callable[[], Any]] = [lambda: call(**self.arguments, **how)]
        if form == "asynchronous":
            calls = [lambda: call(**self.arguments, **how, async_op=True).wait()]
        elif form == "plan":
            calls = [comm.plan(spec.call, **self.arguments, **how)] * 2
        for seed, make in enumerate(calls):
            self.fill(seed)
            self.check(make(), what, exact="deterministic" in how, seed=seed)
            # The arrays are the caller's again: nothing is sent from them.
            for array in (self.arguments["x"], self.target):
                if array is not None:
                    array[...] = poison(array)

    def fill(self, seed: int = 0) -> None:
        """Fill the arrays with their contents before the call; another seed gives other values."""
        part = replace(self.part, seed=seed)
        given, wanted = part.given(), part.wanted()
        if self.target is not None:
            assert wanted is not None
            self.target[...] = poison(wanted, self.target.shape)
        if given is not None:
            self.arguments["x"][...] = given

    def check(self, outcome: Any, what: str, *, exact: bool = False, seed: int = 0) -> None:
        """Check the result and the arrays of a call that was made after `fill`. `outcome` is what it returned."""
        part, x, target = replace(self.part, seed=seed), self.arguments["x"], self.target
        given, wanted = part.given(), part.wanted()
        if wanted is None:
            assert outcome is None, f"{what}: {outcome!r} instead of None"
        else:
            if part.what.peers:
                nobody, before = part.from_nobody(), given if target is x else poison(wanted)
                assert before is not None
                wanted = wanted.copy()
                wanted[nobody] = 0 if target is None else before[nobody]
            if target is not None:
                assert outcome is target, f"{what}: the result is not the array that was given"
                outcome = target.reshape(wanted.shape)
            if exact:
                same_bits(outcome, wanted, what)
            else:
                rtol = tolerance(part.spec.op, part.spec.dtype, part.size)
                equal(outcome, wanted, what, rtol=rtol)
        if given is not None and x is not target:
            stays = given.copy()
            if target is not None and stays.size > target.size and np.may_share_memory(x, target):
                stays.reshape(-1)[part.own()] = target.reshape(-1)
            equal(x, stays, f"{what}, x")


def anywhere(_name: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return an array in NumPy's memory."""
    return np.empty(count, dtype)


def trial(comm: Communicator, spec: Spec, place: Place = anywhere) -> Trial:
    """Return the trial of `spec` on this rank. Local.

    Parameters
    ----------
    comm : Communicator
        Its rank and size are used.
    spec : Spec
        Equal on all ranks.
    place : callable
        Allocates the arrays; ranks may give different ones.
    """
    part = RankView(spec, comm.rank, comm.size)
    given, wanted, what = part.given(), part.wanted(), part.what
    result = spec.results[comm.rank % len(spec.results)]

    def array(name: str, like: Array) -> Array:
        return place(name, like.size, like.dtype).reshape(like.shape)

    if what.in_place == "always":
        assert wanted is not None
        whole = array("x", wanted)
        return Trial(part, {"x": whole, **part.arguments()}, whole)
    x: Array | None = None
    out: Array | None = None
    if given is not None and wanted is not None and result == IN_PLACE:
        x, out = overlapping(part, given, wanted, array)
    else:
        if given is not None:
            x = array("x", given)
        if wanted is not None and (given is None or result != NEW):
            out = array("out", wanted.reshape(-1) if result == FLAT else wanted)
    target = out
    if wanted is not None and out is None and what.in_place == "by default":
        target = x
    return Trial(part, {"x": x, "out": out, **part.arguments()}, target)


def overlapping(
    part: RankView, given: Array, wanted: Array, array: Callable[[str, Array], Array]
) -> tuple[Array, Array]:
    """Return x and out in the same memory: as one array, or the smaller as this rank's block of the larger."""
    if given.shape == wanted.shape:
        x = array("x", given)
        return x, x
    if given.size > wanted.size:
        x = array("x", given)
        return x, x.reshape(-1)[part.own()].reshape(wanted.shape)
    out = array("out", wanted)
    return out.reshape(-1)[part.own()].reshape(given.shape), out


def carry_out(comm: Communicator, spec: Spec, form: str = "call", **how: Any) -> None:
    """Make the call of `spec` on NumPy's arrays, and check it; collective over `comm`."""
    trial(comm, spec).run(comm, form, **how)


def another(comm: Communicator, **keywords: Any) -> Communicator:
    """Make a new communicator of the same ranks and backend as `comm`, by `new_comm`; collective over `comm`."""
    backend = str(comm.backends["host"])
    return hpccomm.new_comm(backend, **{"mpi_comm": comm.mpi_comm, **keywords})


COLLECTIVES = Behaviours("collectives")

REDUCING = tuple(name for name in WITH_DATA if name in REDUCTIONS)

BLOCKWISE = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")

MOVING = ("broadcast", *(name for name in BLOCKWISE if name not in REDUCING))

SHAPES: tuple[tuple[int | None, tuple[int, ...]], ...] = (
    (3, (5,)),
    (1, ()),
    (0, (2,)),
    (2, (0, 3)),
)
"""Pairs of the rows of each array or block, and the shape of a row; two of them have no elements."""

LARGE = (1 << 19) + 3
"""Rows of two float32, over all ranks: on each of a few ranks, more than a segment or an eager message."""


def specs(comm: Communicator, collective: str, dtype: Any, op: Op = ReduceOp.SUM) -> Iterator[Spec]:
    """Yield a collective's calls of each shape, with each place of the result, for each root that is tried."""
    dtype, what = np.dtype(dtype), DESCRIPTIONS[collective]
    roots = ranks_for(dtype, comm.size) if what.rooted else [0]
    whole = ((None, ()),) if collective not in BLOCKWISE else ()
    # Where data go does not depend on the dtype, so one dtype shows it for all.
    shapes = (*SHAPES, *whole) if dtype == np.float32 else SHAPES[:1]
    for root in roots:
        for count, rest in shapes:
            for result in (NEW, FLAT, IN_PLACE) if what.in_place != "always" else (NEW,):
                yield Spec(collective, count, dtype, op, root, results=(result,), rest=rest)


@COLLECTIVES.behaviour(collective=MOVING, dtype=MOVABLE)
def moved(comm: Communicator, collective: str, dtype: np.dtype[Any]) -> None:
    """Elements of any dtype arrive as they are, into a new array, into `out`, or in place."""
    for spec in specs(comm, collective, dtype):
        carry_out(comm, spec)


@COLLECTIVES.behaviour(collective=REDUCING, op=OPS)
def reductions(comm: Communicator, collective: str, op: ReduceOp) -> None:
    """Each operation, for every dtype for which it has a meaning. Scans have no average."""
    if collective == "scan" and op is ReduceOp.AVG:
        return
    for dtype in REDUCIBLE:
        if meaningful(op, dtype):
            for spec in specs(comm, collective, dtype, op):
                carry_out(comm, spec)


@COLLECTIVES.behaviour(collective=REDUCING)
def other_operations(comm: Communicator, collective: str) -> None:
    """Operations with a factor, functions of two arrays, and the place of the best value. Scans may be exclusive."""
    operations: tuple[tuple[Any, Any], ...] = (
        (hpccomm.premul_sum(0.5), np.float64),
        (hpccomm.premul_sum(-2.0), BFLOAT16),
        (np.gcd, np.int64),
        (ReduceOp.MINLOC, hpccomm.loc_dtype(np.float64)),
        (ReduceOp.MAXLOC, hpccomm.loc_dtype(np.float16, np.int32)),
    )
    for op, dtype in operations:
        spec = Spec(collective, 4, np.dtype(dtype), op, comm.size - 1, results=(NEW,))
        carry_out(comm, spec)
    if collective == "scan":
        carry_out(comm, Spec("scan", 4, exclusive=True, results=(OUT, IN_PLACE)))


@COLLECTIVES.behaviour(op=(ReduceOp.MIN, ReduceOp.MAX))
def nan_spreads(comm: Communicator, op: ReduceOp) -> None:
    """A NaN from any rank is the result on every rank, for every float."""
    for dtype in REDUCIBLE:
        if dtype.kind not in "biuc":
            x, places = np.ones(comm.size + 1, dtype), np.arange(comm.size + 1)
            x[comm.rank] = np.nan
            before = np.where(places <= comm.rank, np.nan, 1).astype(dtype)
            equal(comm.scan(x, op), before, "scan")
            everywhere = np.where(places < comm.size, np.nan, 1).astype(dtype)
            whole = np.tile(x, comm.size)
            equal(comm.reduce_scatter(whole, op), everywhere, "reduce_scatter")
            reduced = comm.reduce(x.copy(), op=op)
            equal(everywhere if reduced is None else reduced, everywhere, "reduce")
            equal(comm.all_reduce(x, op), everywhere, "all_reduce")


@COLLECTIVES.behaviour(collective=WITH_DATA, form=FORMS)
def forms(comm: Communicator, collective: str, form: str) -> None:
    """A call may be asynchronous, or planned and made twice. Arrays may be large. Ranks may differ in their outputs."""
    for dtype, count in ((np.float32, LARGE // comm.size), (np.int64, 6), (BFLOAT16, 6)):
        for results in ((NEW,), (IN_PLACE, OUT, NEW)):
            root = comm.size - 1
            spec = Spec(collective, count, np.dtype(dtype), root=root, results=results, rest=(2,))
            carry_out(comm, spec, form)


def growing(size: int) -> tuple[int, ...]:
    """Return 0, 1, 2, ... rows."""
    return tuple(range(size))


def only_the_last(size: int) -> tuple[int, ...]:
    """Return all rows on the last rank."""
    return (*[0] * (size - 1), 4)


def long(size: int) -> tuple[int, ...]:
    """Return rows of more than one segment on every second rank, and one row on the others."""
    return tuple(20_001 * (rank % 2) + 1 for rank in range(size))


@COLLECTIVES.behaviour(collective=BLOCKWISE, counts=(growing, only_the_last, long))
def uneven(comm: Communicator, collective: str, counts: Callable[[int], tuple[int, ...]]) -> None:
    """Blocks may have different numbers of rows, also none. In place, a block may lie at any offset."""
    for form in FORMS:
        for result, rest in ((NEW, ()), (OUT, (2,)), (IN_PLACE, (2,))):
            root, rows = comm.size - 1, counts(comm.size)
            carry_out(comm, Spec(collective, rows, root=root, results=(result,), rest=rest), form)


def line(rank: int, size: int) -> list[int | None]:
    """Return the ranks before and after `rank`; None beyond the ends."""
    return [rank - 1 if rank else None, rank + 1 if rank + 1 < size else None]


def star(rank: int, size: int) -> list[int | None]:
    """Return all other ranks at rank 0, and rank 0 at the others, so that the lists differ in length."""
    return list(range(1, size)) if rank == 0 else [0]


def double(_rank: int, size: int) -> list[int | None]:
    """Return all ranks, None, and all ranks again; a rank is its own peer too."""
    return [*range(size), None, *range(size)]


@COLLECTIVES.behaviour(graph=(line, star, double))
def neighbors(comm: Communicator, graph: Graph) -> None:
    """Block j goes to peers[j], and block j of the result comes from it; a block without a peer keeps its values."""
    counts = tuple(rank % 3 for rank in range(comm.size))
    for count, results in ((2, (OUT,)), (2, (IN_PLACE, OUT)), (20_001, (NEW,)), (counts, (OUT,))):
        if IN_PLACE not in results or graph is not star:
            for form in FORMS:
                spec = Spec("neighbor_all_to_all", count, graph=graph, results=results, rest=(2,))
                carry_out(comm, spec, form)


@COLLECTIVES.behaviour()
def bits_survive(comm: Communicator) -> None:
    """Moved data keep their bits, also the payload of a NaN and the sign of zero."""
    patterns = np.array([0x7FF8_0000_0000_1234, 0xFFF0_0000_0000_0001, 1 << 63, 1], np.uint64)
    source = patterns.view(np.float64)
    x = source.copy() if comm.rank == 0 else np.zeros_like(source)
    same_bits(comm.broadcast(x), source, "broadcast")
    tiled = np.stack([source] * comm.size)
    same_bits(comm.all_gather(x), tiled, "all_gather")
    same_bits(comm.all_to_all(tiled), tiled, "all_to_all")


def waits_for(comm: Communicator, late: int, barrier: Callable[[], object]) -> None:
    """Assert that no rank leaves a barrier before the last rank, `late`, has come.

    Only ranks of one node are compared: they share a monotonic clock.
    """
    if comm.rank == late:
        time.sleep(0.005)
    entered = time.monotonic()
    assert barrier() is None, "barrier returns None"
    left = time.monotonic()
    stamps = comm.node_comm.all_gather_object((entered, left))
    assert min(s[1] for s in stamps) >= max(s[0] for s in stamps), f"left early: {stamps}"


@COLLECTIVES.behaviour()
def barrier(comm: Communicator) -> None:
    """No rank leaves a barrier before the last rank has come."""
    planned = comm.plan("barrier")
    for late in range(comm.size):
        waits_for(comm, late, comm.barrier)
        waits_for(comm, late, planned)
        waits_for(comm, late, lambda: comm.barrier(async_op=True).wait())


GROUPS = Behaviours("groups")


def members(group: Communicator, comm: Communicator) -> list[int]:
    """Return the ranks in `comm` of `group`'s members, in `group`'s order; collective over `group`."""
    return [int(rank) for rank in group.all_gather(np.array(comm.rank))]


@GROUPS.behaviour()
def facts(comm: Communicator) -> None:
    """The facts of a communicator (rank, size, node, name, node_comm) are consistent over the ranks."""
    assert 0 <= comm.rank < comm.size, "rank"
    assert 0 <= comm.local_rank < comm.local_size <= comm.size, "local rank"
    assert 0 <= comm.node < comm.num_nodes <= comm.size, "node"
    places = comm.all_gather_object((comm.rank, comm.node, comm.local_rank, comm.local_size))
    assert [place[0] for place in places] == list(range(comm.size)), "ranks in order"
    for node in range(comm.num_nodes):
        local = [place for place in places if place[1] == node]
        assert [place[2] for place in local] == list(range(len(local))), "local ranks in order"
        assert {place[3] for place in local} == {len(local)}, "local size"
    assert isinstance(comm.backends["host"], str), "the host path's backend"
    assert len(set(comm.all_gather_object((comm.size, comm.num_nodes, comm.name)))) == 1, "agreed"
    local_comm = comm.node_comm
    assert local_comm is comm.node_comm, "made once"
    assert (local_comm.rank, local_comm.size) == (comm.local_rank, comm.local_size), "node_comm"
    here = [rank for rank, place in enumerate(places) if place[1] == comm.node]
    assert members(local_comm, comm) == here, "members of node_comm"


@GROUPS.behaviour()
def split(comm: Communicator) -> None:
    """Ranks of one color make a communicator in the order of keys. A rank whose color is None gets None."""
    for color in (comm.rank % 2, 0, None if comm.rank == 0 else 5, None):
        for key in (0, -comm.rank, comm.rank // 2, -(comm.rank % 2)):
            chosen = comm.all_gather_object((color, key))
            group = comm.split(color, key)
            assert (group is None) == (color is None), "None for None"
            if group is not None:
                with group:
                    same = [rank for rank in range(comm.size) if chosen[rank][0] == color]
                    expected = sorted(same, key=lambda rank: (chosen[rank][1], rank))
                    assert group.rank == expected.index(comm.rank), f"rank, {chosen}"
                    assert members(group, comm) == expected, f"members, {chosen}"


@GROUPS.behaviour()
def split_ranks(comm: Communicator) -> None:
    """The listed ranks make a communicator in the order of the list; the other ranks get None."""
    lists = [[comm.size - 1], list(range(0, comm.size, 2)), list(reversed(range(comm.size)))]
    for ranks in lists:
        group = comm.split_ranks(ranks)
        assert (group is not None) == (comm.rank in ranks), f"ranks {ranks}"
        if group is not None:
            with group:
                assert group.rank == ranks.index(comm.rank), f"ranks {ranks}"
                assert members(group, comm) == ranks, f"ranks {ranks}"


@GROUPS.behaviour()
def groups_outlive_their_parent(comm: Communicator) -> None:
    """A group of a group works, also after the communicators that it was made from are finalized."""
    parent = comm.dup()
    half = parent.split(int(comm.rank >= comm.size // 2))
    assert half is not None
    pair = half.split(half.rank // 2)
    assert pair is not None
    parent.finalize()
    half.finalize()
    with pair:
        x = np.array([comm.rank])
        pair.all_reduce(x)
        assert x[0] == sum(members(pair, comm)), "sum over the pair"
