"""Checks that one rank's program, built alone, equals its part of all ranks' program.

`prove` does so last.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import zip_longest

import numpy as np

from hpccomm.schedules.proof.case import ProofCase, Unproven
from hpccomm.schedules.schedule import Column, Copies, Group, LocalStep, Place, Round, Transfers

Row = tuple[object, ...]
"""One row of a table, for one rank."""


def check_same_program(case: ProofCase, ranks: Collection[int] | None = None) -> None:
    """Raise `hpccomm.testing.Unproven` unless both ways to build a rank's program give the same.

    `hpccomm.testing.prove` proves one build for all ranks with equal calls. An executor runs one build
    for each rank. Both must agree, except for rounds in which the rank does nothing.

    Parameters
    ----------
    case : ProofCase
        The case, as `case` makes it. Its `solo` is ignored.
    ranks : collection of int, optional
        The ranks whose programs are compared; by default all.
    """
    for part in case.parts():
        together = [list(channel()) for channel in part.schedule.channels]
        for rank in part.ranks.tolist():
            if ranks is not None and rank not in ranks:
                continue
            solo = case.schedule(np.array([rank]), part.call)
            where = f"{case.title}: rank {rank}, asked for alone,"
            if len(solo.channels) != len(together):
                raise Unproven(
                    f"{where} has {len(solo.channels)} channels, not {len(together)} as among all"
                )
            for number, (rounds, channel) in enumerate(zip(together, solo.channels, strict=True)):
                turns = zip_longest(_turns(channel(), rank), _turns(rounds, rank), fillvalue=())
                for at, (alone, among_all) in enumerate(turns):
                    if alone != among_all:
                        raise Unproven(
                            f"{where} does {alone} in round {at} of channel {number}, not counting "
                            f"empty ones, and not {among_all} as among all"
                        )


def _turns(rounds: Iterable[Round], rank: int) -> Iterator[tuple[Row, ...]]:
    """Return the actions of `rank` in each round, without empty rounds."""
    for each in rounds:
        rows = [("receive", *row) for table in each.receives for row in _messages(table, rank)]
        rows += [("send", *row) for table in each.sends for row in _messages(table, rank)]
        rows += [row for table in each.local for row in _steps(table, rank)]
        if each.barrier is not None:
            rows += [("meet", *row) for row in _meetings(each.barrier, rank)]
        if rows:
            yield tuple(rows)


def _rows(column: Column, rank: int) -> list[int]:
    own: list[int] = np.flatnonzero(column == rank).tolist()
    return own


def _messages(table: Transfers, rank: int) -> Iterator[Row]:
    for i in _rows(table.rank, rank):
        yield int(table.peer[i]), table.buffer, int(table.start[i]), int(table.count[i])


def _steps(table: LocalStep, rank: int) -> Iterator[Row]:
    verb = "copy" if isinstance(table, Copies) else "fold, final" if table.final else "fold"
    for i in _rows(table.rank, rank):
        places = [_place(place, i) for place in (*table.sources, table.target)]
        yield verb, int(table.count[i]), *places


def _place(place: Place, row: int) -> Row:
    start = int(place.start[row]) if isinstance(place.start, np.ndarray) else place.start
    return place.buffer, start, None if place.peer is None else int(place.peer[row])


def _meetings(group: Group, rank: int) -> Iterator[Row]:
    members, which = group.meetings()
    for i in _rows(group.rank, rank):
        yield int(group.at[i]), *members[which[i]].tolist()
