"""Dealing the pieces of an array to channels, so that one moves while another is folded."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from hpccomm.schedules.schedule import Channel, Round, Rounds, Schedule, Tuning

Piece = TypeVar("Piece")


def dealt(
    pieces: Sequence[Piece],
    run: Callable[[Piece, int], Rounds],
    tuning: Tuning,
    scratch: int,
) -> Schedule:
    """Return the schedule that runs `pieces`, dealt in turn to channels.

    Parameters
    ----------
    pieces : sequence
        What to run; those of one channel one after the other.
    run : callable
        ``run(piece, slot)`` makes a piece's rounds; its scratch begins at element `slot`.
    tuning : Tuning
        How many channels.
    scratch : int
        Elements of scratch that a piece takes.
    """
    number = min(tuning.channels, len(pieces))

    def channel(which: int) -> Channel:
        mine = pieces[which::number]
        return lambda: chain.from_iterable(run(piece, which * scratch) for piece in mine)

    channels = tuple(channel(which) for which in range(number))
    cut = tuning.segment if len(pieces) > 1 else None
    return Schedule(channels, number * scratch, cut)


def side_by_side(*several: Rounds) -> Rounds:
    """Run the rounds of several at the same time, the first of each in one round, and so on.

    They must touch different memory. None may have a barrier.
    """
    under_way = list(several)
    while under_way:
        rounds = []
        left = []
        for each in under_way:
            found = next(each, None)
            if found is not None:
                rounds.append(found)
                left.append(each)
        under_way = left
        if rounds:
            yield Round(
                tuple(chain.from_iterable(each.receives for each in rounds)),
                tuple(chain.from_iterable(each.sends for each in rounds)),
                tuple(chain.from_iterable(each.local for each in rounds)),
            )
