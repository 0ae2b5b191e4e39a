"""The arguments of a proof, checked before anything is built. `case` makes the calls of them."""

import operator
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hpccomm.contracts.collectives import COLLECTIVES, DESCRIPTIONS, NOBODY, ROOTED, ring
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.schedules.algorithms import KNOWN, Algorithm, AnyAlgorithm
from hpccomm.schedules.schedule import RECV, SCRATCH, SEND, Build
from hpccomm.settings import check_int
from hpccomm.topology import Topology

Counts = int | Sequence[int] | Sequence[Sequence[int]]
"""Elements of the whole array, or of blocks (see `hpccomm.testing.prove`)."""

Peers = Sequence[Sequence[int | None]]
"""For each rank, the peers with which it exchanges blocks; None for a block without a receiver."""

Form = Literal["build", "direct", "staged"]
"""Which of an algorithm's schedules."""

REACHED: Mapping[str, frozenset[str]] = {
    "direct": frozenset((SEND, RECV)),
    "staged": frozenset((SCRATCH,)),
}
"""The buffers of peers that are reached, by the value of `Reach`, or the form; otherwise none."""


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


def chosen(collective: str, algorithm: AnyAlgorithm) -> Algorithm:
    """Return the chosen algorithm.

    Raises
    ------
    UsageError
        If the collective has no such algorithm, or it is not a name and not callable.
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        own = KNOWN[collective]
        if algorithm not in own:
            advice = did_you_mean(algorithm, own, f"there are {', '.join(own)}")
            raise UsageError(f"{collective} has no algorithm {algorithm!r}; {advice}")
        return own[algorithm]
    if not callable(algorithm):
        raise UsageError(
            f"algorithm is {algorithm!r}; give a name, an Algorithm, or a function "
            "build(group, call, tuning) -> Schedule"
        )
    return Algorithm(algorithm, ordered=algorithm)


def form_of(title: str, algorithm: Algorithm, form: Form, *, deterministic: bool) -> Build:
    """Return the function that makes an algorithm's schedules in that form.

    Raises
    ------
    UsageError
        If it is unknown.
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
    """Return the peers of each rank, or those on a ring where none are given.

    Raises
    ------
    UsageError
        If their number does not fit the ranks, or one is not a rank.
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
    """Return `count`; for None, a number with uneven blocks and cuts.

    Raises
    ------
    UsageError
        If it holds other values than integers of at least 0, or has the wrong length.
    """
    what = DESCRIPTIONS[collective]
    if what.sends == "nothing":
        if count is not None and count != 0:
            raise UsageError(
                f"count is {count!r}, and a {collective} moves no elements; leave it out"
            )
        return 0
    if count is None:
        return 2 * ranks + 1
    fits = "an integer of at least 0"
    shapes: list[tuple[int, ...]] = [()]
    if what.blockwise:
        shapes.append((ranks,))
        fits += f", or {ranks} of them, one for each rank's block"
    rows = [ranks] * ranks
    if what.peers:
        rows = [len(own) for own in peers_of(ranks, peers)]
        fits += f", or {ranks} rows, what each rank sends to each of its peers"
    elif what.individual:
        fits += f", or {ranks} rows of {ranks}, what each rank sends to each"
    if what.individual and _is_table(count, rows):
        return count
    try:
        array = np.array(count)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iu" or array.shape not in shapes or array.min() < 0:
        raise UsageError(f"count is {count!r}, for {collective} of {ranks} ranks; give {fits}")
    return count


def _is_table(count: object, rows: Sequence[int]) -> bool:
    """Whether `count` has a row of integers of at least 0 for each of `rows`, of that length."""
    try:
        lists = [[operator.index(each) for each in row] for row in count]  # type: ignore[attr-defined]
    except TypeError:
        return False
    return [len(row) for row in lists] == list(rows) and all(n >= 0 for row in lists for n in row)
