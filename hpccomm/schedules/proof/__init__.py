"""Proves schedules by running them on symbols instead of numbers.

Each element of memory is a symbol: the set of ranks whose contributions are folded in it, and the index of
the folded element in their arrays. The rounds of all ranks run on these symbols, a whole round in a few
operations on arrays. Any fault raises `hpccomm.testing.Unproven`. The proof checks:

- Each element of each result is the fold of the right element of the contributions that the call
  requires, each exactly once; with ``deterministic=True`` from left to right in the order of ranks.
  With more than one rank it passed exactly one fold that is `final`, except in a scan.
- No element is read before it was written. Every slice lies in its buffer. Inputs are not overwritten,
  unless the result lies in the same memory. The root's array of a broadcast is never overwritten.
- Each message has both ends in the same round of the same channel, with the same count. A
  received slice overlaps no other slice that is sent or received in the round. The rows of a local step
  do not depend on each other.
- No channel writes what another channel reads or writes. So any order of the channels gives the same
  result, and the proof runs them one after the other.
- Ranks that reach each other's memory share a node, and reach only the buffers that the form may
  reach. Scratch that peers reach fits the room for it. Between a rank's write of an element and
  another rank's access, both meet in a barrier. A rank and its peer also meet before the rank first touches
  the peer's memory, and after it last touches it.

No deadlock
-----------
It follows that no rank waits for ever, even if a send completes only once its receive has begun.
Consider one channel, and assume that all ranks complete its rounds below k. Then each rank begins round k,
and begins all of its messages of that round before it waits for any. Both ends of each message are in round k, so both
begin, and the message completes. The local steps wait for nothing, so they complete. All ranks of the
barrier reach it at the end of round k, so it completes. Hence all ranks complete round k. The number of rounds is
finite, so all ranks complete the channel.

The proof checks the needed properties of a schedule. Both ends of a message are in one round of one
channel, with one count. All members of a barrier are in one round. The rounds end. Several messages
of one pair match in the order of their rows, and the messages of each pair match round after round,
so that matching in the order of sending gives the same pairs. The executor provides the rest: a
rank begins all messages of a round before it waits, its channels advance independently of each
other, and messages and barriers of different channels are never confused.

`hpccomm.testing.prove` is the public form of `prove`. ``hpccomm.calls.proofs`` proves other packages' algorithms by
this module, and ``hpccomm simulate`` checks algorithms by it.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, ParamSpec

import numpy as np

from hpccomm.schedules.proof.case import ProofCase, Unproven, case, signatures
from hpccomm.schedules.proof.machine import SymbolicMachine
from hpccomm.schedules.proof.memory import SymbolicMemory, check_barriers, check_results
from hpccomm.schedules.schedule import Column, Copies, Group, LocalStep, Place, Round, Transfers

__all__ = [
    "ProofCase",
    "Unproven",
    "actions",
    "case",
    "check_same_program",
    "prove",
    "prove_all",
    "signatures",
]


P = ParamSpec("P")


def _with_parameters_of(
    made: Callable[P, ProofCase],
) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """Declare that a function has the parameters of `made`, since it passes all arguments on."""

    def declare(function: Callable[..., None]) -> Callable[P, None]:
        shown = inspect.signature(made).replace(return_annotation=None)
        vars(function)["__signature__"] = shown
        return function

    return declare


@_with_parameters_of(case)
def prove(*args: Any, **options: Any) -> None:
    """Prove that an algorithm carries out one collective call, for any values of the elements.

    Parameters
    ----------
    collective : str
        One of ``hpccomm.contracts.collectives.COLLECTIVES``.
    algorithm : str, Algorithm or callable
        The name of an algorithm (hpccomm's or another package's), or an algorithm of your own:
        ``build(group, call, tuning) -> Schedule``.
    ranks : int
        Number of ranks, at least 1.
    count : int, sequence of int or sequence of sequences of int
        Numbers of elements; by default ``2 * ranks + 1``, and 0 for a barrier. With 0 the proof only shows
        that messages match. For all_reduce, broadcast, reduce and scan it is the number of elements of the array. For
        the other collectives it is the number for every rank's block, or a sequence with a number for each rank's
        block. If ranks give different counts, it can be a sequence for each rank with the numbers that the rank
        sends to each rank (or to each of its peers).
    root : int
        The root, if the collective has one.
    segment : int
        `Tuning.segment`: elements to move at a time; by default the array is not cut.
    channels : int
        `Tuning.channels`.
    topology : Topology or None
        `Tuning.topology`: the ranks of each node. None means one node, or that it does not matter.
    in_place : bool or sequence of bool
        Whether `send` and `recv` lie in the same memory: on all ranks, or on each rank. Ignored if a
        call cannot be in place.
    exclusive : bool
        Whether a scan is exclusive.
    deterministic : bool
        Whether to prove the build that folds in rank order, and that it does so. For a narrow float it must also
        round only once.
    dtype : dtype or None
        Type of the elements; by default int64.
    op : ReduceOp, PremulSum or callable
        The reduction.
    peers : sequence of sequences of int or None, optional
        For calls with listed peers: the peers of each rank, None for a block that is not exchanged.
        By default the ranks are a ring.
    solo : bool
        Whether to build each rank's program alone, as the executor does, and not all at once. Both must be right,
        and equal: see ``hpccomm.schedules.proof.check_same_program``.
    form : str
        The form of the algorithm to prove: ``"build"``; ``"direct"``, for ranks of a node that
        reach each other's arrays; or ``"staged"``, for ranks that reach each other's scratch, and fold
        in rank order.
    room : int
        `Tuning.room`: most elements of scratch on a rank, if peers reach scratch.

    Raises
    ------
    Unproven
        An AssertionError that names the rank and its fault, the round and the channel.
    UsageError
        If the collective or algorithm is unknown; if the algorithm lacks this form, or a build that folds in
        rank order; if ``ranks``, ``segment``, ``channels`` or ``room`` is not an integer of at least 1,
        `root` is not a rank, or `count`, `topology` or `in_place` does not fit the ranks; if the
        algorithm does not return a schedule.

    Examples
    --------
    >>> from hpccomm.testing import prove
    >>> prove("all_reduce", "ring", 6, count=20, segment=2)
    """
    prove_all([case(*args, **options)])


def prove_all(cases: Sequence[ProofCase]) -> None:
    """Prove several cases at once, which is faster than one after the other.

    Parameters
    ----------
    cases : sequence of ProofCase
        The cases, as `case` makes them. Only memory limits their number and size.

    Raises
    ------
    Unproven
        For the first fault of any case.
    """
    if not cases:
        return
    parts = [each.parts() for each in cases]
    memory = SymbolicMemory(cases, parts)
    for channel in range(max(len(part.schedule.channels) for its in parts for part in its)):
        streams = [
            (first, each.size, part.schedule.channels[channel]())
            for first, each, its in zip(memory.offset.tolist(), cases, parts, strict=False)
            for part in its
            if channel < len(part.schedule.channels)
        ]
        SymbolicMachine(memory, channel).run(streams)
    check_results(memory, parts)
    check_barriers(memory)


Row = tuple[object, ...]
"""One row of a table of a round: a message, a local step or a barrier of one rank."""


def check_same_program(case: ProofCase, ranks: Collection[int] | None = None) -> None:
    """Raise `hpccomm.testing.Unproven` unless a rank's program is the same whether it is built alone or among all.

    `hpccomm.testing.prove` builds the programs of all ranks with equal calls at once. The executor builds each rank's
    program alone. Both programs must agree, except for rounds in which the rank does nothing.

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
                turns = zip_longest(actions(channel(), rank), actions(rounds, rank), fillvalue=())
                for at, (alone, among_all) in enumerate(turns):
                    if alone != among_all:
                        raise Unproven(
                            f"{where} does {alone} in round {at} of channel {number}, not counting "
                            f"empty ones, and not {among_all} as among all"
                        )


def actions(rounds: Iterable[Round], rank: int) -> Iterator[tuple[Row, ...]]:
    """Yield the actions of `rank` in each round of a channel, without empty rounds."""
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
