"""A bucket that ranks update in equal parts, for `ShardedOptimizer`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import FLOAT32, is_narrow
from hpccomm.errors import UsageError
from hpccomm.gradients.arrays import wide
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.layout import ALIGNMENT, registered
from hpccomm.gradients.parameters import Bucket, padding
from hpccomm.reductions import ReduceOp

Flat = NDArray[Any]
UpdateRule = Callable[[Flat, Flat, dict[str, Flat], int], object]
StateOf = Mapping[str, Any] | Callable[[Flat], Mapping[str, Flat]]

MASTER = "master"
"""The name of the float32 parameters among the state."""


class Shard:
    """A bucket of parameters and of gradients in registered memory, and this rank's part of both.

    Parameters
    ----------
    group : RankGroup
        The ranks that share the bucket.
    bucket : Bucket
        What lies where. Behind it there is padding, so that all ranks have parts of one length, which begin at
        cache lines.
    state : mapping or callable
        As in `ShardedOptimizer`.
    masters : bool
        Whether narrow parameters are updated in float32.

    Attributes
    ----------
    parameters, gradients : FlatMemory
        All of the bucket. Padding is 0.
    values : ndarray, 1-D
        What this rank updates: its part of the parameters, or their float32 masters.
    state : dict of str to ndarray
        Of the length and order of `values`.
    reduce, collect : callable
        The calls that `plan` has planned.
    """

    def __init__(self, group: RankGroup, bucket: Bucket, state: StateOf, *, masters: bool) -> None:
        self._group = group
        unit = group.size * (ALIGNMENT // bucket.dtype.itemsize)
        length = max(1, -(-bucket.length // unit)) * unit
        self.parameters = registered(group, bucket, length)
        self.gradients = registered(group, bucket, length)
        part = length // group.size
        own = slice(group.rank * part, (group.rank + 1) * part)
        self._parameters, self._gradients = self.parameters.memory[own], self.gradients.memory[own]
        self._padding = np.flatnonzero(padding(bucket, length)[own])
        self._master = np.zeros(part, FLOAT32) if masters and is_narrow(bucket.dtype) else None
        self.values = self._parameters if self._master is None else self._master
        self._state_of = state
        self.state: dict[str, Flat] = {}

    def make_state(self) -> None:
        """Make the state, from the parameters if it is a callable. Local."""
        self.take_masters()
        self.state = _state(self._state_of, self.values)
        if self._master is not None and MASTER in self.state:
            raise UsageError(f"an array of state is named {MASTER!r}; with masters=True, rename it")
        self._clear_padding()

    def take_masters(self) -> None:
        """Set the masters to the parameters. Local."""
        if self._master is not None:
            self._master[:] = self._parameters

    def plan(self, op: ReduceOp, exact: bool, async_op: bool) -> None:
        """Plan the reduction of gradients to their parts, and the collection of parameters. Collective; blocks."""
        group, gradients = self._group, self.gradients.memory
        parts = self.parameters.memory.reshape(group.size, -1)
        how = {"deterministic": exact, "async_op": async_op}
        self.reduce = group.plan("reduce_scatter", gradients, op, out=self._gradients, **how)
        self.collect = group.plan("all_gather", self._parameters, out=parts, async_op=async_op)

    def update(self, rule: UpdateRule, step: int) -> None:
        """Update this rank's part by its reduced gradients. Local."""
        gradients = self._gradients if self._master is None else self._gradients.astype(FLOAT32)
        rule(self.values, gradients, self.state, step)
        self._clear_padding()
        if self._master is not None:
            self._parameters[:] = self._master

    def _clear_padding(self) -> None:
        # A rule may make NaN of it, such as 0/0, which must not spread, nor raise warnings for ever.
        for each in (self.values, self._gradients, *self.state.values()):
            each[self._padding] = 0

    def own(self) -> dict[str, Flat]:
        """Return this rank's own part: the state, and the masters. Local."""
        return self.state if self._master is None else {MASTER: self._master, **self.state}


def _state(state: StateOf, values: Flat) -> dict[str, Flat]:
    if not callable(state):
        own = wide(values.dtype)
        return {
            name: np.zeros(values.size, own if each is None else each)
            for name, each in state.items()
        }
    arrays = dict(state(values))
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.shape != values.shape:
            raise UsageError(
                f"the state {name!r} is {getattr(array, 'shape', type(array).__name__)}; "
                f"return an array of the shape {values.shape} of the shard"
            )
        if np.may_share_memory(array, values) or not array.flags.writeable:
            raise UsageError(f"the state {name!r} is not an array of its own; return a copy")
    return arrays
