"""The subject of a proof: all ranks' calls, their schedules, and the required results.

The arguments are checked before anything is built. `prove` and `hpccomm.calls.proofs` make cases, and `machine` runs
them; ``hpccomm plot`` (`hpccomm.tools.runs.trace`) uses both for its pictures.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import (
    COLLECTIVES,
    DESCRIPTIONS,
    NOBODY,
    ROOTED,
    Collective,
    counterpart,
    ring,
)
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.reductions import Op, ReduceOp
from hpccomm.schedules.algorithms import Algorithm, AnyAlgorithm, chosen
from hpccomm.schedules.schedule import (
    RECV,
    SCRATCH,
    SEND,
    Build,
    Column,
    Schedule,
    Tuning,
    whole,
    world,
)
from hpccomm.settings import check_int
from hpccomm.topology import Topology
from hpccomm.units import grouped

Counts = int | Sequence[int] | Sequence[Sequence[int]]
"""Elements of the whole array, or of blocks (see `hpccomm.testing.prove`)."""

Peers = Sequence[Sequence[int | None]]
"""The peers with which each rank exchanges blocks; None for a block that is not exchanged."""

Form = Literal["build", "direct", "staged"]
"""The name of one of an algorithm's schedules; see `Algorithm`."""

REACHED: Mapping[str, frozenset[str]] = {
    "direct": frozenset((SEND, RECV)),
    "staged": frozenset((SCRATCH,)),
}
"""The buffers of peers that ranks reach, by the value of `Reach` or by the form; none for other values."""


def check(
    collective: str,
    ranks: int,
    root: int,
    segment: int,
    channels: int,
    topology: Topology | None,
    in_place: bool | Sequence[bool],
    room: int,
    peers: Peers | None,
) -> None:
    """Raise `UsageError` unless these arguments of `hpccomm.testing.prove` fit together."""
    if collective not in COLLECTIVES:
        raise UsageError(
            f"no collective is called {collective!r}; "
            + did_you_mean(collective, COLLECTIVES, f"give one of {', '.join(COLLECTIVES)}")
        )
    least = {"ranks": ranks, "segment": segment, "channels": channels, "room": room}
    for name, value in least.items():
        if check_int(name, value) < 1:
            raise UsageError(f"{name} is {value}; give an integer of at least 1")
    if collective in ROOTED and not 0 <= check_int("root", root) < ranks:
        raise UsageError(f"root is {root} of {ranks} ranks; give one from 0 to {ranks - 1}")
    if peers is not None and not DESCRIPTIONS[collective].peers:
        raise UsageError(f"peers is given, and {collective} does not take it; leave it out")
    peers_of(ranks, peers)
    if topology is not None and topology.size != ranks:
        raise UsageError(
            f"topology is one of {topology.size} ranks, and ranks is {ranks}; give one of {ranks}"
        )
    if not isinstance(in_place, bool) and len(in_place) != ranks:
        raise UsageError(
            f"in_place has {len(in_place)} values for {ranks} ranks; give one for each, or one for all"
        )


def form_of(title: str, algorithm: Algorithm, form: Form, *, deterministic: bool) -> Build:
    """Return the function that makes an algorithm's schedules in that form.

    Raises
    ------
    UsageError
        If the form is unknown, or the algorithm does not have it.
    """
    builds = {"build": algorithm.build, "direct": algorithm.direct, "staged": algorithm.staged}
    if form not in builds:
        raise UsageError(f"form is {form!r}; give one of {', '.join(map(repr, builds))}")
    build = builds[form]
    if build is None:
        raise UsageError(f"{title} has no {form} form; give another")
    if not deterministic or form == "staged":
        return build
    if algorithm.ordered is None or form == "direct":
        raise UsageError(f"{title} has no build that folds in rank order; leave deterministic out")
    return algorithm.ordered


def reached(algorithm: Algorithm, form: Form) -> frozenset[str]:
    """Return the buffers of peers that the form reaches."""
    by = "direct" if algorithm.shared and form == "build" else form
    return REACHED.get(by, frozenset())


def peers_of(ranks: int, peers: Peers | None) -> list[tuple[int, ...]]:
    """Return the peers of each rank; if none are given, the neighbors on a ring.

    Raises
    ------
    UsageError
        If there is not one list for each rank, or a peer is not a rank.
    """
    if peers is None:
        return [ring(rank, ranks) for rank in range(ranks)]
    if len(peers) != ranks:
        raise UsageError(f"peers has {len(peers)} lists for {ranks} ranks; give one for each")
    listed = [tuple(NOBODY if each is None else each for each in own) for own in peers]
    for rank, own in enumerate(listed):
        if not all(each in range(NOBODY, ranks) for each in own):
            raise UsageError(
                f"peers of rank {rank} are {list(peers[rank])}; give ranks from 0 to {ranks - 1}, or None"
            )
    return listed


def elements(collective: str, ranks: int, count: Counts | None, peers: Peers | None) -> Counts:
    """Return `count`; for None, a number of elements that gives uneven blocks and cuts.

    Raises
    ------
    UsageError
        If `count` holds other values than integers of at least 0, or has the wrong length.
    """
    description = DESCRIPTIONS[collective]
    if description.sends == "nothing":
        if count is not None and count != 0:
            raise UsageError(
                f"count is {count!r}, and a {collective} moves no elements; leave it out"
            )
        return 0
    if count is None:
        return 2 * ranks + 1
    wanted = "an integer of at least 0"
    shapes: list[tuple[int, ...]] = [()]
    if description.blockwise:
        shapes.append((ranks,))
        wanted += f", or {ranks} of them, one for each rank's block"
    rows = [ranks] * ranks
    if description.peers:
        rows = [len(own) for own in peers_of(ranks, peers)]
        wanted += f", or {ranks} rows, what each rank sends to each of its peers"
    elif description.individual:
        wanted += f", or {ranks} rows of {ranks}, what each rank sends to each"
    if description.individual and _is_table(count, rows):
        return count
    try:
        array = np.array(count)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iu" or array.shape not in shapes or array.min() < 0:
        raise UsageError(f"count is {count!r}, for {collective} of {ranks} ranks; give {wanted}")
    return count


def _is_table(count: object, rows: Sequence[int]) -> bool:
    """Whether `count` has a row of integers of at least 0 for each of `rows`, of that length."""
    try:
        lists = [[operator.index(each) for each in row] for row in count]  # type: ignore[attr-defined]
    except TypeError:
        return False
    return [len(row) for row in lists] == list(rows) and all(n >= 0 for row in lists for n in row)


class Unproven(AssertionError):
    """The fault of a schedule, with the rank, the channel and the round."""


class RankSchedule(NamedTuple):
    """Ranks of a case that have equal calls, their call and their schedule."""

    ranks: Column
    call: Signature
    schedule: Schedule


@dataclass(frozen=True, slots=True, eq=False)
class ProofCase:
    """One collective call of all ranks, and the schedules that carry it out.

    Attributes
    ----------
    title : str
        Name of the case in errors.
    build : callable
        Makes the schedules.
    calls : tuple of Signature
        The call of each rank.
    tuning : Tuning
        Further parameters, which `build` gets.
    in_rank_order : bool
        Whether each element must be the left fold of the contributions in rank order.
    reaches : frozenset of str
        The buffers of peers that ranks may reach.
    solo : bool
        Whether each rank's program is built alone, as in a run.
    """

    title: str
    build: Build
    calls: tuple[Signature, ...]
    tuning: Tuning
    in_rank_order: bool = False
    reaches: frozenset[str] = frozenset()
    solo: bool = False

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.calls)

    def parts(self) -> list[RankSchedule]:
        """Build a schedule for all ranks with equal calls, or for each rank if `solo`."""
        return [
            RankSchedule(ranks, call, self.schedule(ranks, call)) for ranks, call in self._alike()
        ]

    def schedule(self, ranks: Column, call: Signature) -> Schedule:
        """Build the schedule of `ranks`, whose call is `call`.

        Raises
        ------
        Unproven
            If peers reach scratch, and it is larger than the room for it.
        UsageError
            If `build` returns no schedule.
        """
        built: object = self.build(world(self.size, ranks), call, self.tuning)
        if not isinstance(built, Schedule):
            raise UsageError(
                f"{self.title}: it returned {built!r}; let it return a "
                "hpccomm.schedules.schedule.Schedule"
            )
        room = self.tuning.room
        if SCRATCH in self.reaches and built.scratch > room:
            raise Unproven(f"{self.title}: its scratch is {built.scratch} elements of {room}")
        return built

    def _alike(self) -> list[tuple[Column, Signature]]:
        if self.solo:
            return [(np.array([rank]), call) for rank, call in enumerate(self.calls)]
        first = self.calls[0]
        if all(call is first for call in self.calls):
            return [(np.arange(self.size), first)]
        alike = grouped((call, rank) for rank, call in enumerate(self.calls))
        return [(np.array(ranks), call) for call, ranks in alike.items()]


def case(
    collective: str,
    algorithm: AnyAlgorithm,
    ranks: int,
    *,
    count: Counts | None = None,
    root: int = 0,
    segment: int = whole,
    channels: int = 2,
    topology: Topology | None = None,
    in_place: bool | Sequence[bool] = False,
    exclusive: bool = False,
    deterministic: bool = False,
    dtype: DType | None = None,
    op: Op = ReduceOp.SUM,
    peers: Peers | None = None,
    solo: bool = False,
    form: Form = "build",
    room: int = 1 << 21,
) -> ProofCase:
    """Return the case that `hpccomm.testing.prove` proves; the parameters are described there.

    Raises
    ------
    UsageError
        If the arguments do not fit, as in `hpccomm.testing.prove`; before anything is built.
    """
    check(collective, ranks, root, segment, channels, topology, in_place, room, peers)
    found = chosen(collective, algorithm)
    unnamed = getattr(algorithm, "__name__", "an algorithm")
    name = algorithm if isinstance(algorithm, str) else unnamed
    build = form_of(f"{name} {collective}", found, form, deterministic=deterministic)
    count = elements(collective, ranks, count, peers)
    calls = signatures(
        collective,
        ranks,
        count,
        root=root,
        in_place=in_place,
        exclusive=exclusive,
        dtype=np.dtype(np.int64) if dtype is None else dtype,
        op=op,
        peers=peers,
    )
    tuning = Tuning(segment, channels, topology, room)
    described = {
        "count": count,
        "root": root if collective in ROOTED else 0,
        "segment": 0 if segment == whole else segment,
        "channels": 0 if channels == 2 else channels,
        "in_place": in_place,
        "exclusive": exclusive,
        "deterministic": deterministic,
        "peers": peers,
        "solo": solo,
        "form": form if form != "build" else "",
        "room": room if form == "staged" else 0,
        "topology": topology and topology.node_of,
    }
    details = "".join(f", {key}={value}" for key, value in described.items() if value)
    title = f"{name} {collective}, {ranks} ranks{details}"
    in_order = deterministic or (form == "staged" and found.shared)
    return ProofCase(title, build, calls, tuning, in_order, reached(found, form), solo)


def signatures(
    collective: str,
    ranks: int,
    count: Counts,
    *,
    root: int = 0,
    in_place: bool | Sequence[bool] = False,
    exclusive: bool = False,
    dtype: DType,
    op: Op = ReduceOp.SUM,
    peers: Peers | None = None,
) -> tuple[Signature, ...]:
    """Return the call of each rank; the parameters are those of `hpccomm.testing.prove`.

    A call is in place only if that is possible. If only the root has both arrays, only the root's call can be in
    place. If ranks give different counts, a call can be in place if both of its arrays have the same size.
    """
    description = DESCRIPTIONS[collective]
    wanted = [in_place] * ranks if isinstance(in_place, bool) else list(in_place)
    signatures: dict[tuple[bool, CallLists], Signature] = {}
    calls = []
    for rank, lists in enumerate(_lists(description, ranks, count, peers)):
        same = wanted[rank] and description.in_place not in ("never", "always")
        same = same and (rank == root or not description.rooted)
        same = same and (not description.individual or sum(lists.sent) == sum(lists.received))
        key = bool(same), lists
        if key not in signatures:
            signatures[key] = Signature(
                collective,
                dtype,
                lists.sent,
                lists.received,
                lists.peers,
                uniform=lists.uniform,
                op=op if description.reduces else None,
                root=root if description.rooted else -1,
                exclusive=exclusive,
                in_place=bool(same),
            )
        calls.append(signatures[key])
    return tuple(calls)


class CallLists(NamedTuple):
    """The counts and lists of one rank's call, as in `Signature`."""

    sent: tuple[int, ...]
    received: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    uniform: bool = True


def _lists(
    description: Collective, ranks: int, count: Counts, peers: Peers | None
) -> Iterator[CallLists]:
    """Yield the lists of each rank."""
    if description.peers:
        yield from _with_peers(peers_of(ranks, peers), count)
        return
    blocks = np.array(count, np.int64)
    if not description.blockwise:
        blocks = blocks.reshape(1)
    elif blocks.ndim < 2:
        blocks = np.broadcast_to(blocks, ranks)
    uniform = bool((blocks == blocks.flat[0]).all())
    if not description.individual:
        yield from [CallLists(tuple(blocks.tolist()), uniform=uniform)] * ranks
        return
    blocks = np.broadcast_to(blocks, (ranks, ranks))
    if uniform:
        row = tuple(blocks[0].tolist())
        yield from [CallLists(row, row)] * ranks
        return
    for sent, received in zip(blocks.tolist(), blocks.T.tolist(), strict=True):
        yield CallLists(tuple(sent), tuple(received), uniform=False)


def _with_peers(peers: Sequence[tuple[int, ...]], count: Counts) -> Iterator[CallLists]:
    """Yield the lists of each rank, for ranks that exchange blocks with listed peers."""
    rows: Sequence[int | Sequence[int]]
    rows = count if isinstance(count, Sequence) else [count] * len(peers)
    sent = [
        tuple(row) if isinstance(row, Sequence) else (row,) * len(own)
        for row, own in zip(rows, peers, strict=True)
    ]
    for rank, own in enumerate(peers):
        received = tuple(
            sent[rank][block]
            if peer == NOBODY
            else sent[peer][counterpart(rank, block, peers.__getitem__)]
            for block, peer in enumerate(own)
        )
        yield CallLists(sent[rank], received, own, uniform=False)


Expected = tuple[Column, Column, Column]
"""The required final contents of some ranks' `recv` arrays, one after the other: columns `first`, `number` and `origin`.

Element j is the fold of element `origin[j]` of the contributions of `number[j]` ranks from rank `first[j]` on. If
`number[j]` is 0, the element must not be written.
"""


def expected(case: ProofCase, call: Signature, ranks: Column) -> Expected:
    """Return the required contents of `recv` on `ranks`, whose call is `call`."""
    received = call.lengths(ranks)[1]
    inside = within(received)
    rank = np.repeat(ranks, received)
    one = np.ones(len(rank), np.int64)
    if not len(rank):
        return one, one, one
    description = DESCRIPTIONS[call.collective]
    counts = np.array(call.counts, np.int64)
    starts = np.cumsum(counts) - counts
    origin = inside + starts[rank] if description.receives == "block" else inside
    if description.prefix:
        number = rank + (0 if call.exclusive else 1)
        if call.exclusive and call.in_place:  # on rank 0, recv is left as it was
            number = np.maximum(number, 1)
        return 0 * one, number, origin
    if description.reduces:
        return 0 * one, case.size * one, origin
    if description.root_sends:
        return call.root * one, one, origin
    if description.peers:
        return _from_peers(case, call, ranks)
    if description.sends == "block":
        holders = len(rank) // max(int(counts.sum()), 1)
        owner = np.tile(np.repeat(np.arange(case.size), counts), holders)
        return owner, one, np.tile(within(counts), holders)
    return _exchanged(case, ranks)


def _exchanged(case: ProofCase, ranks: Column) -> Expected:
    sent = np.array([call.counts for call in case.calls], np.int64)
    starts = np.cumsum(sent, axis=1) - sent
    # A row for each receiver, a column for each sender.
    blocks = sent.T[ranks].ravel()
    sender = np.repeat(np.tile(np.arange(case.size), len(ranks)), blocks)
    origin = np.repeat(starts.T[ranks].ravel(), blocks) + within(blocks)
    return sender, np.ones(len(sender), np.int64), origin


def _from_peers(case: ProofCase, call: Signature, ranks: Column) -> Expected:
    columns: list[tuple[int, int, int]] = []
    for rank in ranks.tolist():
        start = 0
        for block, (peer, count) in enumerate(zip(call.peers, call.recv_counts, strict=True)):
            if peer == NOBODY:  # recv is not written; in place it holds the contribution
                first, number, origin = rank, int(call.in_place), start
            else:
                other = counterpart(rank, block, lambda each: case.calls[each].peers)
                first, number, origin = peer, 1, sum(case.calls[peer].counts[:other])
            columns += [(first, number, origin + i) for i in range(count)]
            start += count
    firsts, numbers, origins = np.array(columns, np.int64).T
    return firsts, numbers, origins


def within(counts: Column) -> NDArray[np.int64]:
    """Return 0, 1, ..., n - 1 for each n in `counts`, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)
