"""Which parts of a stretch of memory are free: best fit, with neighbours merged.

D. E. Knuth, "The Art of Computer Programming", volume 1, section 2.5.
"""

from bisect import bisect_left, insort
from math import inf


class FreeRanges:
    """The free parts of the bytes from 0 to `size`.

    It knows of each since when it has been free, so that what has not been asked for again for long
    can be given back to the system.

    Parameters
    ----------
    size : int
        Bytes, all of them free at first, and none of them ever used.
    """

    def __init__(self, size: int) -> None:
        self._by_size = [(size, 0)]  # ascending
        self._size_at = {0: size}
        self._start_before = {size: 0}  # the start of the range that ends there
        self._used_since = {0: inf}

    def take(self, size: int, alignment: int) -> int | None:
        """Return the start of `size` bytes that are no longer free; None if there are not as many.

        Parameters
        ----------
        size : int
            Bytes, at least 1.
        alignment : int
            The start is a multiple of it.
        """
        for index in range(bisect_left(self._by_size, (size, 0)), len(self._by_size)):
            length, start = self._by_size[index]
            at = -(-start // alignment) * alignment
            left = start + length - at - size
            if left < 0:
                continue
            since = self._remove(start)
            if at > start:
                self._insert(start, at - start, since)
            if left:
                self._insert(at + size, left, since)
            return at
        return None

    def give(self, start: int, size: int, now: float) -> None:
        """Make `size` bytes from `start` on free, at time `now` (seconds)."""
        since = now
        end = start + size
        if end in self._size_at:
            size += self._size_at[end]
            since = min(since, self._remove(end))
        before = self._start_before.get(start)
        if before is not None:
            size += start - before
            since = min(since, self._remove(before))
            start = before
        self._insert(start, size, since)

    def unused(self, before: float, least: int) -> list[tuple[int, int]]:
        """Return start and size of the ranges that nobody has asked for since, and forget that.

        Parameters
        ----------
        before : float
            Those that were given back before then, in part at least, in seconds.
        least : int
            Those of at least so many bytes.
        """
        found = [
            (start, self._size_at[start])
            for start, since in self._used_since.items()
            if since < before and self._size_at[start] >= least
        ]
        for start, _ in found:
            self._used_since[start] = inf
        return found

    def oldest(self, least: int) -> float:
        """Return since when the first of the ranges of at least `least` bytes has been free."""
        return min(
            (since for start, since in self._used_since.items() if self._size_at[start] >= least),
            default=inf,
        )

    def _insert(self, start: int, size: int, since: float) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start
        self._used_since[start] = since

    def _remove(self, start: int) -> float:
        """Forget a range; return since when it has been free."""
        size = self._size_at.pop(start)
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._start_before[start + size]
        return self._used_since.pop(start)
