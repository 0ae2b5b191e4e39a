"""The difference of two clocks: bounds from exchanged messages, and lines between bounds.

The bounds are those of S. Hunold and A. Carpen-Amarie, "On the impact of synchronizing clocks and
processes on benchmarking MPI collectives", EuroMPI 2015: the other clock was read after its reader
was asked, and before the answer arrived.

`hpccomm.clocks.common` joins these differences to a common clock.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Offset:
    """By how much another clock is ahead of this one, at one moment.

    Attributes
    ----------
    at : float
        The moment, in seconds of this clock.
    low, high : float
        Bounds, in seconds.
    """

    at: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The middle of the bounds, in seconds."""
        return (self.low + self.high) / 2

    @property
    def error(self) -> float:
        """How far the truth can be from `value`, in seconds."""
        return (self.high - self.low) / 2


SAME = Offset(0.0, 0.0, 0.0)
"""Two readers of one clock."""


def bounded(exchanges: NDArray[np.float64]) -> Offset:
    """Return bounds of an offset from messages that went to the other clock and back.

    Parameters
    ----------
    exchanges : ndarray of float64, shape ``(n, 3)``
        Of each exchange: when the question left and when the answer was there, in seconds of this clock, with
        the other clock's time between them. Together they take so little that clocks do not drift.
    """
    asked, other, answered = exchanges.T
    low, high = float((other - answered).max()), float((other - asked).min())
    if low > high:  # one of the clocks was set during the exchanges: the quickest one is believed
        best = int((answered - asked).argmin())
        low, high = float(other[best] - answered[best]), float(other[best] - asked[best])
    return Offset(float((asked + answered).mean()) / 2, low, high)


@dataclass(frozen=True, slots=True)
class ClockLine:
    """How two clocks run beside each other, between two moments and a little beyond.

    The difference is a straight line through two offsets: quartz drifts by a constant rate within
    seconds. Between the two, it is as uncertain as the worse of them. Later, the clocks are taken
    to drift no more than the two offsets prove, as their errors grow with the distance.

    Attributes
    ----------
    before, after : Offset
        The two offsets. They are the same one as long as there is only one.
    """

    before: Offset
    after: Offset

    @property
    def rate(self) -> float:
        """Seconds that the other clock gains in a second of this one, between the two moments."""
        distance = self.after.at - self.before.at
        return (self.after.value - self.before.value) / distance if distance > 0 else 0.0

    @property
    def later_rate(self) -> float:
        """Seconds that it gains in a second after the two moments: the least that the bounds allow."""
        gained = self.after.value - self.before.value
        doubt = self.before.error + self.after.error
        return self.rate * (1 - doubt / abs(gained)) if abs(gained) > doubt else 0.0

    @property
    def error(self) -> float:
        """Bound of the error between the two moments, in seconds."""
        return max(self.before.error, self.after.error)

    def other(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return times of this clock as times of the other one; any shape, in seconds."""
        since = mine - self.after.at
        rates = np.where(since > 0, self.later_rate, self.rate)
        times: NDArray[np.float64] = mine + self.after.value + rates * since
        return times

    def mine(self, other: float) -> float:
        """Return a time of the other clock as a time of this one, in seconds."""
        since = other - self.after.value - self.after.at
        return self.after.at + since / (1.0 + (self.later_rate if since > 0 else self.rate))
