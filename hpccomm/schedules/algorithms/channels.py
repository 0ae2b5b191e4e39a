"""Pieces of an array in several channels, so that one piece moves while another is folded."""

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from hpccomm.schedules.schedule import Channel, Round, Rounds, Schedule, Tuning

T = TypeVar("T")


def in_channels(
    pieces: Sequence[T], run: Callable[[T, int], Rounds], tuning: Tuning, scratch: int
) -> Schedule:
    """Return the schedule that runs `pieces` in channels, which take them in turn.

    Parameters
    ----------
    pieces : sequence
        What to run. A channel runs its pieces one after the other.
    run : callable
        ``run(piece, slot)`` makes the rounds of a piece, whose scratch begins at element `slot`.
    tuning : Tuning
        Its `channels` is the largest number of channels.
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
    """Run several sequences of rounds at the same time: their first rounds become one, and so on.

    They must touch different memory. None may have a barrier.
    """
    return several[0] if len(several) == 1 else _joined(several)


def _joined(several: Sequence[Rounds]) -> Rounds:
    for together in zip_longest(*several, fillvalue=Round()):
        yield Round(
            tuple(chain.from_iterable(each.receives for each in together)),
            tuple(chain.from_iterable(each.sends for each in together)),
            tuple(chain.from_iterable(each.local for each in together)),
        )


def merged(programs: Sequence[Schedule]) -> Schedule:
    """Return the schedule of all ranks, from one schedule for each rank.

    Where calls differ from rank to rank, as in an uneven all-to-all, each rank has a schedule of its
    own. None may have a barrier.
    """
    most = max((len(each.channels) for each in programs), default=0)

    def channel(number: int) -> Channel:
        parts = [each.channels[number] for each in programs if number < len(each.channels)]
        return lambda: side_by_side(*(part() for part in parts))

    return Schedule(
        tuple(channel(number) for number in range(most)),
        max((each.scratch for each in programs), default=0),
        next((each.segment for each in programs if each.segment is not None), None),
    )
