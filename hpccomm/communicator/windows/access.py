"""The access of one window to each rank's memory. `window` and `calls` call it.

On a node, ranks reach each other's memory directly, while the target does nothing. Between nodes, the
backend's one-sided communication is used.
"""

import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.backend import OneSided
from hpccomm.contracts.transport import Pages, Steps
from hpccomm.dtypes import DType, is_integer, is_reducible
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory.folding import Folder, premultiply, try_out
from hpccomm.memory.views import ScratchBuffer, as_bytes
from hpccomm.reductions import Op, PremulSum, ReduceOp, WindowOp, check, recognised

Array = NDArray[Any]

Watched = Callable[[str], AbstractContextManager[None]]
"""Returns a context manager under which the watchdog observes a block that may wait in a library; takes its name."""

Counting = Callable[[Any, Any], Steps]
"""Returns the steps that fold an integer into one element; see `Access.counting`."""

PAGES_BLOCK = 512 << 10
"""Bytes that are fetched, folded and written back at a time through the kernel; a block of this size stays in cache."""

REMOTE_BLOCK = 4 << 20
"""Bytes that are fetched, folded and written back at a time over a network; many, to hide the latency of each block."""

_COUNTED: dict[object, Callable[[int, int], int]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.MIN: min,
    ReduceOp.MAX: max,
    WindowOp.REPLACE: lambda _, number: number,
    WindowOp.NO_OP: lambda number, _: number,
}
"""Functions that fold integers without NumPy, whose functions take half a microsecond."""

MAPPED, PAGES, REMOTE = "memory", "pages", "one-sided"
"""The ways to a rank's memory; see `Window.way`."""


def bounds(dtype: DType) -> tuple[int, int]:
    """Return the least and the greatest number of an integer dtype; for other dtypes (1, 0), which no number fits."""
    if not is_integer(dtype):
        return 1, 0
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


_ORDER = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}
"""Rank of a dtype's kind. A number fits a dtype whose kind has at least the rank of its own; ml_dtypes has kind V."""


def element(number: Any, name: str, dtype: DType) -> Array:
    """Return an array of one element that holds a number.

    Raises
    ------
    UsageError
        If the dtype cannot hold the number. Rounding to a float is allowed.
    """
    kind = np.dtype(number.__class__).kind
    fits = is_reducible(dtype) and _ORDER[kind] <= _ORDER[dtype.kind]
    if fits and is_integer(dtype):
        least, most = bounds(dtype)
        fits = least <= int(number) <= most
    if fits:
        try:
            with np.errstate(over="ignore"):
                return np.array([number]).astype(dtype)
        except OverflowError:  # an integer too large for any float
            pass
    raise UsageError(
        f"{name} is {number!r}, which dtype {dtype} does not hold; give a number that it holds, "
        f"or an array of dtype {dtype}"
    )


def reduction(op: Op | WindowOp, dtype: DType) -> Op | WindowOp:
    """Return the reduction of an atomic call; raise if it has no meaning for the window's dtype."""
    op = recognised(op, dtype)
    if isinstance(op, WindowOp):
        return op
    if op is ReduceOp.AVG:
        raise UnsupportedDtype(
            "op is ReduceOp.AVG, which has no meaning here: how many ranks will accumulate "
            "is not known; use ReduceOp.SUM or premul_sum, and divide after a fence"
        )
    check(op, dtype)
    try_out(op, dtype)
    return op


class Access:
    """One rank's access to the memory of all ranks, in polled steps.

    Parameters
    ----------
    reached : mapping of int to ndarray or Pages
        The memory of the ranks whose memory is reached directly, in elements; also this rank's.
    onesided : OneSided
        Reaches the memory of the other ranks, and holds the locks of all ranks.
    dtype : dtype
        Dtype of the elements.
    watched : callable
        The watchdog's observation of a block that waits in the library.

    Attributes
    ----------
    unfinished : set of int
        The ranks with puts that may be unfinished.
    """

    def __init__(
        self,
        reached: Mapping[int, Array | Pages],
        onesided: OneSided,
        dtype: DType,
        watched: Watched,
    ) -> None:
        self._reached = reached
        self._onesided = onesided
        self._dtype = dtype
        self._watched = watched
        self._blocks = ScratchBuffer()
        self._products = ScratchBuffer()
        self._folds = ScratchBuffer()
        self._folders: dict[ReduceOp, Folder] = {}
        self.unfinished: set[int] = set()

    def way(self, rank: int) -> str:
        """Return how the memory of `rank` is reached."""
        there = self._reached.get(rank)
        if there is None:
            return REMOTE
        return MAPPED if isinstance(there, np.ndarray) else PAGES

    def put(self, data: Array, dst: int, start: int) -> Steps:
        """Write elements from `start` on. The steps end when `data` may be changed."""
        if not data.size:
            return
        there = self._reached.get(dst)
        if there is None:
            self.unfinished.add(dst)
            at = start * self._dtype.itemsize
            yield from iter(self._onesided.put(as_bytes(data), dst, at), True)
        elif isinstance(there, np.ndarray):
            there[start : start + data.size] = data
        else:
            there.part(slice(start, start + data.size)).write(data)

    def get(self, into: Array, src: int, start: int) -> Steps:
        """Read elements from `start` on. The steps end when they have arrived in `into`."""
        if not into.size:
            return
        there = self._reached.get(src)
        if there is None:
            at = start * self._dtype.itemsize
            yield from iter(self._onesided.get(as_bytes(into), src, at), True)
        elif isinstance(there, np.ndarray):
            into[:] = there[start : start + into.size]
        else:
            there.part(slice(start, start + into.size)).read(into)

    def fold(
        self, data: Array, dst: int, start: int, op: Op | WindowOp, old: Array | None = None
    ) -> Steps:
        """Fold `data` into the elements from `start` on, under the lock of `dst`. The steps end when that is done.

        `old` gets the previous values; it may be `data`.
        """
        if data.size:
            fold = None if isinstance(op, WindowOp) else self._folder(op)
            if isinstance(op, PremulSum):
                product = self._products.take(data.size, self._dtype)
                premultiply(op, data, product)
                data = product
            writes = op is not WindowOp.NO_OP
            yield from self._locked(dst, self._folded(fold, data, dst, start, writes, old))

    def counting(self, dst: int, start: int, op: Op | WindowOp) -> Counting | None:
        """Return a fast function that folds an integer into one element, as `fold` does; None if there is none.

        ``counting(number, old)`` returns the steps, for an integer of the window's dtype. They put the
        previous value into the list `old`, as its entry 0.
        """
        memory, fold = self._reached.get(dst), _COUNTED.get(op)
        if memory is None or fold is None or not is_integer(self._dtype):
            return None
        where, locks, pages = slice(start, start + 1), self._onesided, None
        if isinstance(memory, np.ndarray):
            element = memory[where]
        else:
            element, pages = np.empty(1, self._dtype), memory.part(where)
        cell, (low, high) = element.data, bounds(self._dtype)

        def steps(number: int, old: list[Any]) -> Steps:
            yield from iter(locks.acquire(dst), True)
            if pages is not None:
                pages.read(element)
            old[0] = element[0]
            total = fold(cell[0], number)
            cell[0] = total if low <= total <= high else (total - low) % (high - low + 1) + low
            if pages is not None:
                pages.write(element)
            yield from iter(locks.release(dst), True)

        return steps

    def compare_and_swap(
        self, data: Array, expected: Array, old: Array, dst: int, start: int
    ) -> Steps:
        """Write an element if the present one has the bytes of `expected`, under the lock of `dst`.

        `old` gets the previous value; it may be `data`.
        """
        yield from self._locked(dst, self._swapped(data, expected, old, dst, start))

    def _locked(self, dst: int, steps: Steps) -> Steps:
        """Carry out steps under the lock of `dst`."""
        yield from iter(self._onesided.acquire(dst), True)
        try:
            yield from steps
        except Exception:  # of the user's function, say: other ranks must get the lock
            yield from iter(self._onesided.release(dst), True)
            raise
        yield from iter(self._onesided.release(dst), True)

    def _swapped(self, data: Array, expected: Array, old: Array, dst: int, start: int) -> Steps:
        current = self._blocks.take(1, self._dtype)
        yield from self.get(current, dst, start)
        if current.tobytes() == expected.tobytes():
            yield from self.put(data, dst, start)
            yield from self.flush(dst)
        old[:] = current

    def _folded(
        self,
        fold: Folder | None,
        data: Array,
        dst: int,
        start: int,
        writes: bool,
        old: Array | None,
    ) -> Steps:
        """Fold or write `data` block by block, and read the previous values into `old`, if given."""
        there, reads = self._reached.get(dst), fold is not None or old is not None
        if fold is not None and old is None and isinstance(there, np.ndarray):
            target = there[start : start + data.size]
            fold((target, data), target)
            return
        block = REMOTE_BLOCK if there is None else PAGES_BLOCK
        step = max(1, block // self._dtype.itemsize) if reads else data.size
        for begin in range(0, data.size, step):
            piece = data[begin : begin + step]
            current = self._blocks.take(piece.size if reads else 0, self._dtype)
            yield from self.get(current, dst, start + begin)
            if fold is not None:
                folded = self._folds.take(piece.size, self._dtype)
                fold((current, piece), folded)
                piece = folded
            if writes:
                yield from self.put(piece, dst, start + begin)
            if old is not None:
                old[begin : begin + step] = current
        yield from self.flush(dst)

    def _folder(self, op: Op) -> Folder:
        if not isinstance(op, ReduceOp):
            return Folder(op, self._dtype)
        found = self._folders.get(op)
        if found is None:
            found = self._folders[op] = Folder(op, self._dtype)
        return found

    def flush(self, *ranks: int) -> Steps:
        """Wait until the puts to `ranks` are complete there. It blocks in the backend's library."""
        for rank in ranks:
            if rank in self.unfinished:
                with self._watched("flush"):
                    self._onesided.flush(rank)
                self.unfinished.discard(rank)
                yield True

    def free(self) -> None:
        """End the one-sided communication. Collective; blocks."""
        with self._watched("closing a window"):
            self._onesided.free()
