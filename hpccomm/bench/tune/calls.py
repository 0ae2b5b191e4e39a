"""The calls that tuning measures: float32 sums, as programs make them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import DESCRIPTIONS, Collective
from hpccomm.dispatch.policy import Policy
from hpccomm.dispatch.policy.table import NATIVE_CASE, ORDERED_CASE, OWN_CASE, REGISTERED_CASE

Array = NDArray[Any]
Call = Callable[[], object]

DTYPE = np.dtype(np.float32)
ROOT = 0


def arrays(nbytes: int, comm: Communicator | None = None) -> tuple[Array, Array]:
    """Return memory for calls of up to `nbytes`. It is written to, so that the system has provided it.

    It is registered memory of a communicator, if there is one.
    """
    count = nbytes // DTYPE.itemsize
    empty = np.empty if comm is None else comm.empty
    memory = tuple(empty((count,), DTYPE) for _ in range(2))
    for each in memory:
        each.fill(0)
    return memory[0], memory[1]


def policy_of(comm: Communicator) -> Policy:
    """Return what decides the calls of a communicator on host arrays without an algorithm."""
    return comm._core.lanes.host.dispatch.policy  # noqa: SLF001 (tuning makes the tables that it reads)


@dataclass(frozen=True, slots=True)
class TunedCall:
    """A call that is tuned.

    Attributes
    ----------
    collective : str
        Its name.
    deterministic : bool
        Whether contributions are folded in rank order.
    registered : bool
        Whether the arrays are in registered memory.
    """

    collective: str
    deterministic: bool = False
    registered: bool = False

    @property
    def what(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.collective]

    @property
    def how(self) -> str:
        """Its difference from other calls of the collective, in words; empty for plain ones."""
        if self.deterministic:
            return "contributions in rank order"
        return "registered arrays" if self.registered else ""

    def case(self, *, native: bool) -> str:
        """Return its case in tables, where the backend has its own way or not."""
        if self.deterministic:
            return ORDERED_CASE
        if self.registered:
            return REGISTERED_CASE
        return NATIVE_CASE if native else OWN_CASE

    def even(self, nbytes: int, ranks: int) -> int:
        """Return the largest size that the call can have, up to `nbytes`."""
        unit = DTYPE.itemsize * (ranks if self.what.blockwise else 1)
        return nbytes // unit * unit

    def arguments(
        self, comm: Communicator, nbytes: int, memory: tuple[Array, Array], algorithm: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, by position and by keyword.

        All arrays hold zeros, and sums of zeros are zeros. All-reduce, reduce, broadcast and scan are in
        place, the others out of place.

        Parameters
        ----------
        comm : Communicator
            Makes the call.
        nbytes : int
            Size of the larger array of a rank, as `even` returns it.
        memory : tuple of two ndarray
            As `arrays` returns it.
        algorithm : str
            Carries the call out.
        """
        what, (x, y) = self.what, memory
        keywords: dict[str, Any] = {"algorithm": algorithm}
        if self.deterministic and what.reduces:
            keywords["deterministic"] = True
        if not what.moves:
            return (), keywords
        if what.rooted:
            keywords["root"] = ROOT
        count = nbytes // DTYPE.itemsize
        if not what.blockwise:
            return (x[:count],), keywords
        block = count // comm.size
        lengths = {"block": block, "blocks": block * comm.size}
        sends, receives = what.uses(comm.rank, ROOT)
        keywords["out"] = y[: lengths[what.receives]] if receives else None
        return (x[: lengths[what.sends]] if sends else None,), keywords
