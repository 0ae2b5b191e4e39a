"""Which parts of a stretch of memory are free, and which of those hold pages that are idle."""

from bisect import bisect_left, insort
from math import inf


class FreeRanges:
    """The free parts of the bytes from 0 to `size`: best fit, with neighbours merged.

    D. E. Knuth, "The Art of Computer Programming", volume 1, section 2.5.

    Parameters
    ----------
    size : int
        Bytes, all of them free at first.
    """

    def __init__(self, size: int) -> None:
        self._by_size = [(size, 0)]  # ascending
        self._size_at = {0: size}
        self._start_before = {size: 0}  # the start of the range that ends there

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
            self._remove(start)
            if at > start:
                self._insert(start, at - start)
            if left:
                self._insert(at + size, left)
            return at
        return None

    def give(self, start: int, size: int) -> None:
        """Make `size` bytes from `start` on free, which were not."""
        end = start + size
        if end in self._size_at:
            size += self._remove(end)
        before = self._start_before.get(start)
        if before is not None:
            size += self._remove(before)
            start = before
        self._insert(start, size)

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start

    def _remove(self, start: int) -> int:
        """Forget a range; return its size."""
        size = self._size_at.pop(start)
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._start_before[start + size]
        return size


class IdlePages:
    """Parts that are free, but were written and hold memory, and since when (seconds)."""

    def __init__(self) -> None:
        self._parts: list[tuple[float, int, int]] = []  # since, start, end; disjoint

    def add(self, start: int, end: int, now: float) -> None:
        """Note a part that became free at time `now`."""
        self._parts.append((now, start, end))

    def take(self, start: int, end: int) -> None:
        """Forget what lies between the two: it is in use again."""
        left = []
        for since, first, last in self._parts:
            if last <= start or end <= first:
                left.append((since, first, last))
                continue
            left += [(since, *part) for part in ((first, start), (end, last)) if part[0] < part[1]]
        self._parts = left

    def expired(self, before: float) -> list[tuple[int, int]]:
        """Return start and end of the parts that have been idle since before, and forget them."""
        found = [(start, end) for since, start, end in self._parts if since < before]
        self._parts = [part for part in self._parts if part[0] >= before]
        return found

    def oldest(self) -> float:
        """Return since when the first has been idle; infinity if there is none."""
        return min((since for since, _, _ in self._parts), default=inf)
