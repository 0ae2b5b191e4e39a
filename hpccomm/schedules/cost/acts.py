"""The acts of a channel, one after the other: the messages of a round, then its local steps.

`hpccomm.schedules.cost.rounds` runs them in virtual time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hpccomm.schedules.cost.links import joined
from hpccomm.schedules.cost.times import Times, seconds
from hpccomm.schedules.schedule import Channel, Column, Group, LocalStep, Rounds


@dataclass(frozen=True, slots=True, eq=False)
class RoundMessages:
    """The messages of a round, of `nbytes` each."""

    rank: Column
    peer: Column
    nbytes: Column


@dataclass(frozen=True, slots=True, eq=False)
class RoundSteps:
    """The local steps of a round, and its barrier."""

    steps: tuple[LocalStep, ...]
    barrier: Group | None

    @property
    def rank(self) -> Column:
        """Ranks whose clocks say when they are ready."""
        return self.steps[0].rank if self.barrier is None else self.barrier.rank


Act = RoundMessages | RoundSteps


def acts(rounds: Rounds, itemsize: int) -> Iterator[Act]:
    """Yield the messages of each round, and then its steps, for elements of `itemsize` bytes."""
    for each in rounds:
        sends = [table for table in each.sends if len(table.rank)]
        if sends:
            yield RoundMessages(
                joined([table.rank for table in sends]),
                joined([table.peer for table in sends]),
                joined([table.count for table in sends]) * itemsize,
            )
        steps = tuple(step for step in each.local if len(step.rank))
        if steps or each.barrier is not None:
            yield RoundSteps(steps, each.barrier)


class ChannelClock:
    """A channel under way.

    Parameters
    ----------
    number : int
        Its place in the schedule.
    channel : callable
        Makes its rounds.
    itemsize : int
        Bytes of an element.
    clock : Times of ranks
        When each rank begins.

    Attributes
    ----------
    number, clock
        As above; `rounds` advances the clock in place.
    following : RoundMessages, RoundSteps or None
        The next act; None at the end.
    ready, latest : float
        Seconds at which it is ready: on average over its rows, and for the last of them.
    """

    def __init__(self, number: int, channel: Channel, itemsize: int, clock: Times) -> None:
        self.number = number
        self.clock = clock
        self.following: Act | None = None
        self.ready = self.latest = 0.0
        self._acts = acts(channel(), itemsize)
        self.go_on()

    def go_on(self) -> None:
        """Look at what comes next."""
        self.following = next(self._acts, None)
        if self.following is not None:
            times = seconds(self.clock)[self.following.rank]
            self.ready, self.latest = float(times.mean()), float(times.max())
