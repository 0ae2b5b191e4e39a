"""What lies one after the other in an algorithm: a linear form in a network's parameters.

A message costs its latency and the time for which it takes a port, a fold the time in which its
elements are read and added (R. W. Hockney, "The communication challenge for MPP", 1994, for the
message; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations
in MPICH", 2005, for the fold). A rank whose message has passed the port goes on before the message
is there: who waits for it pays the latency, its sender does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from operator import add, attrgetter

import numpy as np
from numpy.typing import NDArray


class Reach(IntEnum):
    """How far apart two ranks are."""

    INNER = 0
    """They share a node."""
    ACROSS = 1
    """They are on different nodes."""


@dataclass(frozen=True, slots=True)
class Path:
    """What happens one after the other. Paths add up, and may be repeated.

    Attributes
    ----------
    inner_latencies, across_latencies : float
        Messages whose arrival the path waits for, within a node and between nodes.
    inner_messages, across_messages : float
        Messages that the path waits for to pass a port.
    inner_elements, across_elements : float
        Elements of these.
    folded, copied : float
        Elements that a rank folds, and copies.
    """

    inner_latencies: float = 0.0
    inner_messages: float = 0.0
    inner_elements: float = 0.0
    across_latencies: float = 0.0
    across_messages: float = 0.0
    across_elements: float = 0.0
    folded: float = 0.0
    copied: float = 0.0

    def __add__(self, other: "Path") -> "Path":
        return Path(*map(add, _values(self), _values(other)))

    def __rmul__(self, times: float) -> "Path":
        return Path(*(times * value for value in _values(self)))

    @property
    def without_latency(self) -> "Path":
        """The path of those who wait for no arrival."""
        return replace(self, inner_latencies=0.0, across_latencies=0.0)

    def terms(self, itemsize: int) -> NDArray[np.float64]:
        """Return the path's numbers, elements as bytes.

        Returns
        -------
        ndarray
            float64 (8,), in the order of the attributes.
        """
        return np.array(_values(self)) * (1, 1, itemsize, 1, 1, itemsize, itemsize, itemsize)


_values: Callable[[Path], tuple[float, ...]] = attrgetter(*(field.name for field in fields(Path)))

Stage = tuple[Path, ...]
"""A part of an algorithm that follows after what is before it: the paths through it, of which the
longest counts."""


def fold(elements: float) -> Path:
    """Return the time in which a rank folds `elements`."""
    return Path(folded=elements)


def copy(elements: float) -> Path:
    """Return the time in which a rank copies `elements`."""
    return Path(copied=elements)


def after(before: Path, stage: Stage) -> Stage:
    """Return the stage whose paths all begin with `before`."""
    return tuple(before + path for path in stage)
