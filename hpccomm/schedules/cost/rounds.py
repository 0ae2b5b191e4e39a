"""The price of a schedule, from its own rounds: what every message, fold and copy waits for.

Each channel moves a clock for every rank on, round by round, by the rules of
`hpccomm.schedules.cost.network`. Messages queue in front of links in the order in which their senders
were ready; links and ranks are shared by all channels. With one channel the price is exact. Of
several channels, that one goes on whose ranks are the earliest on average, and a whole round of it at
a time: messages of different channels may then pass a link in another order than one by one.

A price is linear in the network's parameters along its critical path: so many latencies, so many
bytes through ports, so many bytes folded and copied. `coefficients` carries these numbers beside each
time, so that the later of two times brings its own along.
"""

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.walk import PARAMETERS, Walk
from hpccomm.schedules.schedule import Schedule

__all__ = ["PARAMETERS", "coefficients", "walked"]


def walked(schedule: Schedule, network: Network, itemsize: int) -> float:
    """Return the seconds that a schedule takes, without the call's overhead.

    Local: sends nothing. The time it takes grows with rounds times ranks.

    Parameters
    ----------
    schedule : Schedule
        Of all ranks of `network`.
    network : Network
        Where it runs.
    itemsize : int
        Bytes of an element.
    """
    walk = Walk(network, itemsize, np.zeros(network.ranks), together=False)
    return float(walk.run(schedule).max())


def coefficients(
    schedule: Schedule, network: Network, itemsize: int
) -> tuple[float, NDArray[np.float64]]:
    """Return the same seconds, and what they are made of along the critical path.

    Returns
    -------
    float
        Seconds.
    ndarray of float64, shape (parameters,)
        How many of each of `PARAMETERS`: messages for a latency, else bytes. What is left of the
        seconds are gaps, and the time of links that ports share.
    """
    begin = np.zeros((network.ranks, 1 + len(PARAMETERS)))
    clocks = Walk(network, itemsize, begin, together=False).run(schedule)
    end = clocks[clocks[:, 0].argmax()]
    return float(end[0]), end[1:]
