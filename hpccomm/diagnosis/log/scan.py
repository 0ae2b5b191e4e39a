"""Finds all places of many words in bytes, fast enough for logs of gigabytes.

`reading` searches a log's pieces by it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

LENGTH = 6
"""Bytes of a word that are looked for; three pairs."""

GROUPS = 10
"""Groups of words; three bits for each of them fit into a number of 32."""

BLOCK = 1 << 17
"""Bytes scanned at a time: they fit a core's cache."""


class WordScanner:
    """Finds words by looking pairs of bytes up in a table, for all words at once.

    Each group of words has a bit for each of its three pairs. If three pairs in a row have the bits
    of one group, one of its words may be there, and the bytes are compared. This is the idea of the
    Teddy algorithm (Langdale, in Hyperscan), by whole arrays.

    Parameters
    ----------
    words : iterable of str
        Of at least `LENGTH` characters of ASCII.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = defaultdict(list)
        for word in words:
            self._words[word.encode()[:LENGTH]].append(word.encode())
        self._bits = np.zeros(1 << 16, np.uint32)
        starts = sorted(self._words)
        self._starts = np.array(
            sorted(int.from_bytes(start, "little") for start in starts), np.uint64
        )
        for number, start in enumerate(starts):
            group = number * GROUPS // len(starts)
            for pair in range(LENGTH // 2):
                value = int.from_bytes(start[2 * pair : 2 * pair + 2], "little")
                self._bits[value] |= np.uint32(1 << (group + GROUPS * pair))

    def places(self, data: bytes, end: int) -> Iterator[tuple[int, str]]:
        """Yield where words begin before an end, and which, in order."""
        for begin in range(0, end, BLOCK):
            last = min(begin + BLOCK, end)
            block = data[begin : last + LENGTH - 1]
            for at in self._candidates(block):
                for word in self._words.get(block[at : at + LENGTH], ()):
                    if data.startswith(word, begin + at):
                        yield begin + at, word.decode()

    def _candidates(self, block: bytes) -> list[int]:
        """Return where the first `LENGTH` bytes of words stand in a block, in order."""
        parts = []
        for odd in (0, 1):
            pairs = np.frombuffer(block, "<u2", max(len(block) - odd, 0) // 2, odd * bool(block))
            bits = self._bits.take(pairs, mode="clip")  # which needs no check of each index
            fits = bits[1:-1] >> GROUPS
            fits &= bits[:-2]
            fits &= bits[2:] >> 2 * GROUPS
            at = np.flatnonzero(fits != 0)
            first, second, third = (pairs[at + pair].astype(np.uint64) for pair in range(3))
            values = first | (second << np.uint64(16)) | (third << np.uint64(32))
            nearest = np.searchsorted(self._starts, values).clip(max=len(self._starts) - 1)
            parts.append(2 * at[self._starts[nearest] == values] + odd)
        places: list[int] = np.sort(np.concatenate(parts)).tolist()
        return places
