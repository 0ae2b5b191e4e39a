"""Steps on the memory of peers: mapped here, or reached through the kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """The buffers of a rank, and those of its peers, by a program's numbers.

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

    def carry_out(self, step: Step[Slice], fold: Folder | None) -> None:
        """Do one local step."""
        sources = [self._part(source) for source in step.sources]
        target = self._part(step.target)
        if step.final is None:
            source = sources[0]
            if not isinstance(source, np.ndarray):
                assert isinstance(target, np.ndarray)  # of the two, one is this rank's
                source.read(target)
            elif isinstance(target, np.ndarray):
                copy(source, target)
            else:
                target.write(source)
            return
        assert fold is not None
        if isinstance(target, np.ndarray):
            fold(sources, target, step.final)
        else:
            result = self.results.take(target.size, self.own[-1].dtype)
            fold(sources, result, step.final)
            target.write(result)


def copy(source: Array, target: Array) -> None:
    """Copy elements, unless the two are the same memory: to copy that would take as long as any."""
    if not np.may_share_memory(source, target) or address(source) != address(target):
        target[:] = source
