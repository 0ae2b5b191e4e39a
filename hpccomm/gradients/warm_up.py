"""What the first steps are measured for: when gradients become ready, and how long reductions take."""

from collections.abc import Sequence
from time import perf_counter

from hpccomm.gradients.adaptive import Measurements, typical
from hpccomm.gradients.layout import Bucket
from hpccomm.gradients.parameters import Parameter
from hpccomm.gradients.record import Span


class WarmUp:
    """Measures steps of one layout on one rank.

    Parameters
    ----------
    parameters : sequence of Parameter
        In the order in which buckets are filled, see `ordered`.
    buckets : sequence of Bucket
        Of the layout.
    steps : int
        How many steps are measured.
    """

    def __init__(
        self, parameters: Sequence[Parameter], buckets: Sequence[Bucket], steps: int
    ) -> None:
        self._parameters, self._buckets, self._left = parameters, buckets, steps
        self._moments: dict[str, float] = {}
        self._ready: list[list[float]] = []
        self._wire: list[tuple[int, float]] = []

    def ready(self, name: str) -> None:
        """Take note that a gradient is ready."""
        self._moments[name] = perf_counter()

    def step(self, spans: Sequence[Span | None]) -> bool:
        """Take note that a step is over, with the times of its buckets. Return whether all steps are measured."""
        now = perf_counter()
        first = min(self._moments.values(), default=now)
        self._ready.append([self._moments.get(each.name, now) - first for each in self._parameters])
        for bucket, span in zip(self._buckets, spans, strict=True):
            if span is not None:
                self._wire.append((bucket.nbytes, span[1] - span[0]))
        self._moments.clear()
        self._left -= 1
        return not self._left

    def measured(self) -> Measurements:
        """Return what was measured."""
        sizes = [each.nbytes for each in self._parameters]
        times = typical(self._ready)
        return Measurements(tuple(zip(sizes, times, strict=True)), tuple(self._wire))
