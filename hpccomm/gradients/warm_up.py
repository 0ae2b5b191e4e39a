"""The first steps of ``adaptive=``: what is measured in them, and what all ranks choose from it."""

from collections.abc import Mapping, Sequence
from time import perf_counter

from hpccomm.gradients.adaptive import BucketChoice, Measurements, choose, merge, typical
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import Bucket, Parameter
from hpccomm.gradients.record import Span
from hpccomm.gradients.settings import ReductionSettings


class WarmUp:
    """Measures steps of one layout on one rank.

    Parameters
    ----------
    filled : sequence of Parameter
        In the order in which buckets are filled, see `ordered`.
    buckets : sequence of Bucket
        Of the layout.
    steps : int
        Number of steps to measure.
    """

    def __init__(self, filled: Sequence[Parameter], buckets: Sequence[Bucket], steps: int) -> None:
        self._filled, self._buckets, self._left = filled, buckets, steps
        self._ready: list[list[float]] = []
        self._wire: list[tuple[int, float]] = []

    def step(self, moments: Mapping[str, float], spans: Sequence[Span | None]) -> bool:
        """Take note that a step is over. Return whether all steps are measured.

        Parameters
        ----------
        moments : mapping of str to float
            When gradients became ready.
        spans : sequence of (float, float) or None
            When each bucket was reduced.
        """
        now = perf_counter()
        first = min(moments.values(), default=now)
        self._ready.append([moments.get(each.name, now) - first for each in self._filled])
        for bucket, span in zip(self._buckets, spans, strict=True):
            if span is not None:
                self._wire.append((bucket.nbytes, span[1] - span[0]))
        self._left -= 1
        return not self._left

    def choose(self, group: RankGroup, settings: ReductionSettings) -> BucketChoice:
        """Choose the sizes of buckets from what all ranks measured. Collective; blocks."""
        sizes = [each.nbytes for each in self._filled]
        ready = tuple(zip(sizes, typical(self._ready), strict=True))
        measured = merge(group.exchange(Measurements(ready, tuple(self._wire))))
        # The choice of rank 0 counts, because other processors may round differently.
        choice: BucketChoice = group.exchange(choose(measured, settings))[0]
        return choice
