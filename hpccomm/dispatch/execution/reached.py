"""Binds steps to the memory of peers: mapped here, or reached through the kernel.

`runner` and `variants` run programs on shared memory by it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.transport import Exposure, Pages
from hpccomm.dispatch.execution.program import OWN, Slice, Step
from hpccomm.dtypes import DType
from hpccomm.memory.folding import Folder
from hpccomm.memory.scratch import ScratchBuffer
from hpccomm.memory.views import address

Array = NDArray[Any]
Action = Callable[[], object]
"""Does one step on its bound memory."""


class Peers(dict[int, Array | Pages]):
    """The buffers of peers, by a program's numbers, as they lay when the ranks met.

    Parameters
    ----------
    exposure : Exposure
        Leads to them.
    dtype : dtype
        Of the elements.
    """

    def __init__(self, exposure: Exposure, dtype: DType) -> None:
        super().__init__()
        self._exposure = exposure
        self._dtype = dtype

    def __missing__(self, number: int, /) -> Array | Pages:
        """Reach the buffer of that number, when it is first needed."""
        peer, buffer = divmod(number - len(OWN), len(OWN))
        reached = self[number] = self._exposure.reach(peer, buffer, self._dtype)
        return reached


@dataclass(slots=True, eq=False)
class Reached:
    """The buffers of a rank and of its peers, by a program's numbers.

    Attributes
    ----------
    own : sequence of ndarray
        This rank's.
    peers : Peers
        The others'.
    results : ScratchBuffer
        Where a result is made that a peer gets through the kernel.
    """

    own: Sequence[Array]
    peers: Peers
    results: ScratchBuffer

    def __getitem__(self, number: int, /) -> Array:
        """Return this rank's buffer of that number: transfers have no other."""
        return self.own[number]

    def _part(self, where: Slice) -> Array | Pages:
        number, elements = where
        if number < len(OWN):
            own = self.own[number]
            return own if elements is None else own[elements]
        found = self.peers[number]
        if elements is None:
            return found
        return found[elements] if isinstance(found, np.ndarray) else found.part(elements)

    def _action(self, step: Step[Slice], fold: Folder | None) -> Action | None:
        """Return what does one step, as often as it is called; None if there is nothing to do."""
        sources = [self._part(source) for source in step.sources]
        target = self._part(step.target)
        if step.final is None:
            source = sources[0]
            if not isinstance(source, np.ndarray):
                assert isinstance(target, np.ndarray)  # of the two, one is this rank's
                return partial(source.read, target)
            if not isinstance(target, np.ndarray):
                return partial(target.write, source)
            return None if same(source, target) else partial(np.copyto, target, source)
        assert fold is not None
        if not isinstance(target, np.ndarray):
            return partial(self._folded_far, fold, sources, target, step.final)
        if fold.pair is not None and len(sources) == 2:
            left, right = sources
            if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
                return partial(fold.pair, left, right, target)
        return partial(fold, sources, target, step.final)

    def _folded_far(
        self, fold: Folder, sources: Sequence[Array | Pages], target: Pages, final: bool
    ) -> None:
        """Fold into memory of this rank, and write that to the peer's through the kernel."""
        result = self.results.take(target.size, self.own[-1].dtype)
        fold(sources, result, final)
        target.write(result)

    def actions(self, steps: Iterable[Step[Slice]], fold: Folder | None) -> Iterator[Action]:
        """Return what does local steps, one after the other, each bound when its turn comes."""
        for step in steps:
            action = self._action(step, fold)
            if action is not None:
                yield action


def copy(source: Array, target: Array) -> None:
    """Copy elements, unless the two are the same memory: to copy that would take as long as any."""
    if not same(source, target):
        target[:] = source


def same(source: Array, target: Array) -> bool:
    """Return whether two arrays of the same size are the same memory."""
    return np.may_share_memory(source, target) and address(source) == address(target)
