"""Schedules run in virtual time on a described network, without any of its machines.

`hpccomm.schedules.cost.rounds` moves the clocks of the ranks on. Channels run concurrently and share links
and engines. Next in each channel are the messages of a round, or its steps. The simulation takes those that
are ready first, on average over their rows, for all ranks at once. With them it takes the messages of other
channels that are ready before the last row. So a link serves the messages of one channel round by round, and
messages that are taken together in the order in which they arrive. Where the clocks of a round differ much,
some of its messages may wait for others that arrived later. Compared with one message at a time, that makes
a few percent where channels contend. With one channel the result is the same as with one message at a time.
"""

from dataclasses import dataclass

import numpy as np

from hpccomm.errors import UsageError
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.rounds import Walk
from hpccomm.schedules.cost.times import Times
from hpccomm.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulation.

    Attributes
    ----------
    ends : ndarray of float64, shape (ranks,)
        Seconds from the earliest start to each rank's end.
    bottleneck : str
        The link or engine that was busy longest; empty if none was.
    busy : float
        Seconds that it was busy, a lower bound of the time.
    """

    ends: Times
    bottleneck: str
    busy: float

    @property
    def seconds(self) -> float:
        """Time from the earliest start to the latest end."""
        return float(self.ends.max())


def simulate(
    schedule: Schedule, network: Network, itemsize: int, starts: Times | None = None
) -> Outcome:
    """Run a schedule in virtual time. Local; the work is proportional to rounds and rows.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks of `network`.
    network : Network
        The network on which it runs.
    itemsize : int
        Bytes of an element.
    starts : ndarray of float64, shape (ranks,), optional
        When each rank enters the call, in seconds; by default all at once.

    Raises
    ------
    UsageError
        If `starts` does not have one time for each rank.
    """
    begin = np.zeros(network.ranks) if starts is None else starts
    if begin.shape != (network.ranks,):
        raise UsageError(
            f"starts has shape {begin.shape}; {network.name} has {network.ranks} ranks: "
            "give one time for each"
        )
    walk = Walk(network, itemsize, begin + network.overhead, together=True)
    clocks = walk.run(schedule).reshape(-1, network.ranks)
    return Outcome(clocks.max(axis=0) - begin.min(), *walk.bottleneck())
