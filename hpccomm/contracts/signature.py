"""A collective call without its memory: sizes, dtype, reduction, root; and the decision for it.

The communicator makes the signature of the arguments; backends, dispatch and algorithms read it. The dispatches decide;
`Communicator.explain`, records, hooks and messages show it.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import DESCRIPTIONS, Collective, Extent
from hpccomm.dtypes import DType
from hpccomm.reductions import Deterministic, Op, PremulSum, ReduceOp, accumulator


class Signature(NamedTuple):
    """A collective call without its memory. What a call is decided by, and nothing else.

    Each call has at most two flat arrays on a rank, `send` and `recv`. Their contents follow from
    the collective's description in ``hpccomm.contracts.collectives``: nothing, the whole array, the
    own block, or a block for (or from) each rank. A broadcast has one array, `recv`, on every rank.

    Attributes
    ----------
    collective : str
        One of ``hpccomm.contracts.collectives.COLLECTIVES``.
    dtype : dtype
        Of all arrays.
    counts : tuple of int
        Elements: one number where every rank has the same (all_reduce, broadcast, reduce, scan:
        the whole array), else the block of each rank. Where ranks have numbers of their own
        (all_to_all), the blocks that this rank sends.
    recv_counts : tuple of int
        Where ranks have numbers of their own, the blocks that this rank receives; else empty.
    peers : tuple of int
        For calls with listed peers, the peer of each block, or `NOBODY`; else empty.
    uniform : bool
        Whether all blocks, on all ranks, have one size.
    op : ReduceOp, PremulSum, callable or None
        The reduction.
    root : int
        The root, or -1.
    exclusive : bool
        Of a scan.
    in_place : bool
        Whether `send` and `recv` lie in the same memory on this rank.
    registered : bool
        The kind of memory: whether the arrays of all ranks are in registered memory.
    deterministic : bool or "any ranks"
        Whether contributions are folded in rank order; or summed so that the number of ranks does not matter.
    """

    collective: str
    dtype: DType
    counts: tuple[int, ...]
    recv_counts: tuple[int, ...] = ()
    peers: tuple[int, ...] = ()
    uniform: bool = True
    op: Op | None = None
    root: int = -1
    exclusive: bool = False
    in_place: bool = False
    registered: bool = False
    deterministic: Deterministic = False

    @property
    def description(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.collective]

    @property
    def name(self) -> str:
        """Name of the call."""
        return self.description.calls[0 if self.uniform else -1]

    @property
    def individual(self) -> bool:
        """Whether each rank has counts (and peers) of its own, which others do not know."""
        return self.description.individual and not self.uniform

    @property
    def elements(self) -> int:
        """Elements of the larger array of this rank."""
        return max(sum(self.counts), sum(self.recv_counts))

    @property
    def nbytes(self) -> int:
        """Bytes of the larger array."""
        return self.elements * self.dtype.itemsize

    @property
    def accumulator(self) -> DType:
        """Dtype in which contributions are folded; without a reduction, the arrays' dtype."""
        return self.dtype if self.op is None else accumulator(self.op, self.dtype)

    @property
    def summed(self) -> "Signature":
        """The call that is left once contributions are multiplied by their factor beforehand."""
        if isinstance(self.op, PremulSum):
            return self._replace(op=ReduceOp.SUM, in_place=False, registered=False)
        return self

    def lengths(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the elements of `send` and `recv` on each of `ranks`."""
        what = self.description
        at_root = ranks == self.root
        own = np.array(self.counts, np.int64)[ranks % len(self.counts)] if self.counts else 0

        def elements(extent: Extent, total: int, root_only: bool) -> NDArray[np.int64]:
            count = own if extent == "block" else total
            held = np.ones(len(ranks), np.int64) if not root_only else at_root.astype(np.int64)
            return held * (0 if extent == "nothing" else count)

        sends: Extent = "nothing" if what.in_place == "always" else what.sends
        received = sum(self.recv_counts if what.individual else self.counts)
        return (
            elements(sends, sum(self.counts), what.root_sends),
            elements(what.receives, received, what.root_receives),
        )

    def lengths_of(self, rank: int) -> tuple[int, int]:
        """Return the elements of `send` and `recv` on a rank."""
        # As `lengths`, which takes four times as long for one rank.
        what = self.description
        own = self.counts[rank % len(self.counts)] if self.counts else 0
        sends, receives = what.uses(rank, self.root)
        sent = own if what.sends == "block" else sum(self.counts)
        received = sum(self.recv_counts if what.individual else self.counts)
        return sent * sends, (own if what.receives == "block" else received) * receives


RAISES, ENDS_JOB, WAITS_ON = "raises", "ends the job", "waits on"


@dataclass(frozen=True, slots=True)
class Choice:
    """How a call is carried out. It prints as a sentence.

    Attributes
    ----------
    collective : str
        The call.
    path : str
        ``"host"``; for device arrays ``"cuda"``, or ``"staged"`` through host memory.
    backend : str
        Name of the backend that moves the data.
    algorithm : str
        ``"native"``, or the name of one of hpccomm's own, of another package's, or of the function that
        the call gives.
    segment : int or None
        Bytes that are moved at a time, where the algorithm cuts the array.
    registered : bool
        Whether this rank's arrays lie in memory of ``comm.empty``, which the peers, or the library, know. In a
        plan, whether the arrays of all ranks are registered.
    reason : str
        Why.
    schedule : str
        What tells the schedule of an algorithm that is not hpccomm's own from others: 8 hexadecimal
        digits, equal on all ranks; else empty.
    channels : int
        Pieces under way at the same time, where a table says so; else 0.
    other : object
        What carries the call out, where the name of the algorithm does not say it: an `Algorithm` of another package,
        or a function of hpccomm's; else None.
    at_deadline : str
        What the call does when its deadline passes: ``"raises"`` `CollectiveTimeout`; ``"ends the
        job"``, since it is blocked in a library and cannot be left, or by
        ``CommOptions.on_timeout``; or ``"waits on"``.
    """

    collective: str
    path: str
    backend: str
    algorithm: str
    segment: int | None
    registered: bool
    reason: str
    schedule: str = ""
    at_deadline: str = RAISES
    channels: int = 0
    other: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        cut = f" in segments of {self.segment} bytes" if self.segment is not None else ""
        known = ", in registered memory" if self.registered else ""
        return (
            f"{self.collective} takes the {self.path} path over {self.backend} "
            f"by algorithm {self.algorithm}{cut}{known}: {self.reason}"
        ) + (f"; at its deadline it {self.at_deadline}" if self.at_deadline != RAISES else "")
