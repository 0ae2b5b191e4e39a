"""Pseudo-random bits that any rank can compute at any index, without state.

`patterns` draws its data from them.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import DType

Array = NDArray[Any]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def words(seed: int, stream: int, start: int, count: int, width: int) -> Array:
    """Draw unsigned integers of `width` bytes: elements `start` to ``start + count`` of a stream.

    The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, 2014), which is a hash of the position and needs no state. Narrower integers are the
    parts of its 64-bit words.

    Returns
    -------
    ndarray, shape (count,)
    """
    per_word = 8 // width
    first = start // per_word
    last = -(-(start + count) // per_word)
    z = np.arange(first, last, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(_key(seed, stream))
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MULTIPLIERS[0])
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MULTIPLIERS[1])
    z ^= z >> np.uint64(31)
    skipped = start - first * per_word
    parts: Array = z.view(f"u{width}")
    return parts[skipped : skipped + count]


@functools.lru_cache(maxsize=4096)
def _key(seed: int, stream: int) -> int:
    key = (seed * _GOLDEN + stream + 1) & _MASK
    for _ in range(2):
        key = ((key ^ key >> 32) * _MULTIPLIERS[1]) & _MASK
    return key ^ key >> 29


@dataclass(frozen=True, slots=True)
class ElementRange:
    """Elements `start` to ``start + count`` of the data that `seed` gives to `ranks` ranks."""

    seed: int
    ranks: int
    start: int
    count: int

    def bits(self, stream: int, width: int) -> Array:
        """Draw one unsigned integer of `width` bytes for each element."""
        return words(self.seed, stream, self.start, self.count, width)

    def fraction(self, stream: int, width: int, real: DType) -> Array:
        """Draw one number in [0, 1] for each element."""
        numbers: Array = self.bits(stream, width).astype(real)
        numbers *= real.type(2.0 ** (-8 * width))
        return numbers

    def owned_by(self, rank: int) -> slice:
        """Return the elements that `rank` owns: every `ranks`-th, another for each seed."""
        return slice((rank - self.seed - self.start) % self.ranks, None, self.ranks)
