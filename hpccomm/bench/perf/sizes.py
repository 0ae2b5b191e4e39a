"""The sizes that a sweep measures, from its flags.

`hpccomm perf` and `hpccomm tune` use it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes, as ``-b``, ``-e``, ``-f`` and ``-i`` give them.

    Attributes
    ----------
    smallest, largest : int
        Bytes.
    factor : int
        Factor between a size and the next; 0 if they grow by `step`.
    step : int
        Bytes between a size and the next; 0 if they grow by `factor`.
    """

    smallest: int
    largest: int
    factor: int
    step: int

    def measured(self, itemsize: int) -> Iterator[int]:
        """Yield the sizes to measure, ascending.

        A size of 0 is followed by one element of `itemsize` bytes, and that by the factor or step.
        """
        size = self.smallest
        while size <= self.largest:
            yield size
            if size == 0:
                size = itemsize
            else:
                size = size * self.factor if self.factor else size + self.step

    def number(self, itemsize: int) -> int:
        """Return how many sizes there are to measure."""
        if self.factor:
            return sum(1 for _ in self.measured(itemsize))
        # By a step there can be billions.
        first = self.smallest or itemsize
        zero = 0 if self.smallest else 1
        return zero + max(0, 1 + (self.largest - first) // self.step)

    def warmups(self, itemsize: int) -> Iterator[int]:
        """Return the sizes to warm up with, as nccl-tests does: doubling."""
        return replace(self, factor=2).measured(itemsize)
