"""Times with components: the parameters of the network that they consist of.

A row of times is seconds alone, or seconds and a column for each parameter of a network, with the
amount of this parameter along the critical path. The later of two times keeps its own columns. The
modules of this package compute with such times; ``hpccomm simulate --like`` needs the components.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.schedules.schedule import Column, Mask

Times = NDArray[np.float64]
"""Rows of seconds, float64 (rows,); or with components, (rows, 1 + parameters)."""


def seconds(times: Times) -> Times:
    """Return the seconds of each row, without components; a view."""
    return times if times.ndim == 1 else times[:, 0]


def rowwise(values: NDArray[np.int64] | Times | Mask, rows: Times) -> Any:
    """Return a value for each row in a shape that fits rows such as `rows`."""
    return values if rows.ndim == 1 else values[..., np.newaxis]


def later(one: Times, other: Times) -> Times:
    """Return row by row the later of two times; of equal ones the first."""
    if one.ndim == 1:
        return np.maximum(one, other)
    return np.where(one[:, :1] >= other[:, :1], one, other)


def take_latest(clock: Times, index: Column, times: Times) -> None:
    """Move rows `index` of a clock on to `times`; of several for one row, the latest counts."""
    if clock.ndim == 1:
        np.maximum.at(clock, index, times)
        return
    order = np.lexsort((times[:, 0], index))
    index = index[order]
    last = np.append(index[1:] != index[:-1], True)
    row, latest = index[last], times[order[last]]
    clock[row] = later(clock[row], latest)
