"""The calls that tuning measures: float32 sums, as programs make them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.policy import Policy
from hpccomm.calls.policy.table import NATIVE_CASE, ORDERED_CASE, OWN_CASE, REGISTERED_CASE
from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import DESCRIPTIONS, REDUCTIONS, Collective
from hpccomm.tools.perf.options import Sizes

Array = NDArray[Any]
Call = Callable[[], object]

DTYPE = np.dtype(np.float32)
ROOT = 0

_FORMS = {ORDERED_CASE: "contributions in rank order", REGISTERED_CASE: "registered arrays"}
"""The differences from plain calls that have cases of their own in tables."""


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
    form : str
        `ORDERED_CASE` or `REGISTERED_CASE`; empty for plain calls.
    """

    collective: str
    form: str = ""

    @property
    def what(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.collective]

    @property
    def how(self) -> str:
        """Its difference from other calls of the collective, in words; empty for plain ones."""
        return _FORMS.get(self.form, "")

    def case(self, *, native: bool) -> str:
        """Return its case in tables, where the backend has its own way or not."""
        return self.form or (NATIVE_CASE if native else OWN_CASE)

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
        if self.form == ORDERED_CASE:
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


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The request of a tuning run.

    Attributes
    ----------
    collectives : tuple of str
        The collectives.
    sizes : Sizes
        Bytes of the larger array of a rank.
    blocks : int
        How often each candidate is timed at a size.
    seconds : float
        The approximate duration of each of these times.
    segments : tuple of int
        Bytes that algorithms move at a time, in addition to the built-in table's segments.
    deterministic : bool
        Whether reductions are measured with contributions in rank order as well.
    registered : bool
        Whether calls on registered arrays are measured as well.
    every : bool
        Whether to try every algorithm, or only those with short estimated times.
    verify : bool
        Whether `auto` is measured by the new table.
    output : Path
        The results file.
    """

    collectives: tuple[str, ...]
    sizes: Sizes
    blocks: int
    seconds: float
    segments: tuple[int, ...]
    deterministic: bool
    registered: bool
    every: bool
    verify: bool
    output: Path

    def calls(self) -> list[TunedCall]:
        """Return the calls: the collectives, then those in rank order, and those on registered arrays."""
        plain = [TunedCall(name) for name in self.collectives]
        ordered = [TunedCall(name, ORDERED_CASE) for name in self.collectives if name in REDUCTIONS]
        registered = [
            TunedCall(each.collective, REGISTERED_CASE) for each in plain if each.what.moves
        ]
        return plain + ordered * self.deterministic + registered * self.registered

    def first_sizes(self, call: TunedCall) -> list[int]:
        """Return the sizes of the first round."""
        return list(self.sizes.measured(DTYPE.itemsize)) if call.what.moves else [0]
