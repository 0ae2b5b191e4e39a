"""What may be asked to be proven: arguments checked before anything is built."""

import difflib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hpccomm.contracts.collectives import BLOCKWISE, COLLECTIVES, ROOTED
from hpccomm.errors import UsageError
from hpccomm.schedules.algorithms import ALGORITHMS, Algorithm
from hpccomm.schedules.schedule import Build
from hpccomm.settings import check_int
from hpccomm.topology import Topology

Counts = int | Sequence[int] | Sequence[Sequence[int]]
"""Elements: of the whole array; where the collective is one of `BLOCKWISE`, of every block, or of
each rank's block; for all_to_all also a row for each rank, what it sends to each."""


Form = Literal["build", "direct", "staged"]
"""Which of an algorithm's schedules."""


def check(
    collective: str,
    ranks: int,
    root: int,
    segment: int,
    channels: int,
    topology: Topology | None,
    in_place: bool | Sequence[bool],
    room: int,
) -> None:
    """Raise `UsageError` unless these arguments of `hpccomm.testing.prove` fit together."""
    if collective not in COLLECTIVES:
        raise UsageError(
            f"no collective is called {collective!r}; give one of {', '.join(COLLECTIVES)}"
        )
    least = {"ranks": ranks, "segment": segment, "channels": channels, "room": room}
    for name, value in least.items():
        if check_int(name, value) < 1:
            raise UsageError(f"{name} is {value}; give an integer of at least 1")
    if collective in ROOTED and not 0 <= check_int("root", root) < ranks:
        raise UsageError(f"root is {root} of {ranks} ranks; give one from 0 to {ranks - 1}")
    if topology is not None and topology.size != ranks:
        raise UsageError(
            f"topology is one of {topology.size} ranks, and ranks is {ranks}; give one of {ranks}"
        )
    if not isinstance(in_place, bool) and len(in_place) != ranks:
        raise UsageError(
            f"in_place has {len(in_place)} values for {ranks} ranks; give one for each, or one for all"
        )


def chosen(collective: str, algorithm: str | Algorithm | Build) -> Algorithm:
    """Return the algorithm that is asked for.

    Raises
    ------
    UsageError
        If the collective has none of that name, or it is neither a name nor something that builds.
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        own = ALGORITHMS[collective]
        if algorithm not in own:
            near = difflib.get_close_matches(algorithm, own, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"{collective} has no algorithm {algorithm!r}; {hint}There are {', '.join(own)}"
            )
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
        If there is none.
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


def elements(collective: str, ranks: int, count: Counts | None) -> Counts:
    """Return `count`, or where it is None enough that blocks and cuts come out uneven.

    Raises
    ------
    UsageError
        If it holds anything but integers of at least 0, or not as many as fit.
    """
    if collective == "barrier":
        if count is not None and count != 0:
            raise UsageError(f"count is {count!r}, and a barrier moves no elements; leave it out")
        return 0
    if count is None:
        return 2 * ranks + 1
    fits = "an integer of at least 0"
    shapes: list[tuple[int, ...]] = [()]
    if collective in BLOCKWISE:
        shapes.append((ranks,))
        fits += f", or {ranks} of them, one for each rank's block"
    if collective == "all_to_all":
        shapes.append((ranks, ranks))
        fits += f", or {ranks} rows of {ranks}, what each rank sends to each"
    try:
        given = np.array(count)
    except ValueError:  # rows of different lengths
        given = np.array(None)
    if given.dtype.kind not in "iu" or given.shape not in shapes or given.min() < 0:
        raise UsageError(f"count is {count!r}, for {collective} of {ranks} ranks; give {fits}")
    return count
