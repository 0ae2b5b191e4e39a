"""Runs schedules in virtual time on a described network, without its machines.

`hpccomm.schedules.cost.rounds` advances the clocks of the ranks. Channels run concurrently and
share links and engines. Next in each channel are the messages of a round, or its steps. The
simulation takes the channel that is ready first, on average over its rows, for all ranks at once,
and with it the other channels' messages that are ready before its last row. So a link serves the
messages of one channel round by round, and messages taken together in their order of arrival. Where
the clocks of a round differ much, some of its messages may wait for others that arrived later.
Compared with one message at a time, the difference is a few percent if channels contend. With one
channel the result is the same as with one message at a time.

``hpccomm simulate --model events`` calls it.
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
        The programs of all ranks of `network`.
    network : Network
        The network of the ranks.
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
