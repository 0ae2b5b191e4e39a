"""The common part of every call on a window: checks, a label, and the wait.

`window` and `atomic` use it.
"""

from contextlib import AbstractContextManager
from typing import Any

from hpccomm.communicator.core import Core
from hpccomm.communicator.windows.access import Access, Array, bounds
from hpccomm.contracts.fingerprint import with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.foreign_names import Hinting
from hpccomm.memory.views import check_dtype, check_layout, flat, host_view
from hpccomm.runtime.operation import Operation
from hpccomm.settings import check_int
from hpccomm.topology import check_rank


class WindowCalls(Hinting):
    """The state that calls on a window share, and how they are carried out."""

    _mpi4py = "Win."

    def __init__(self, core: Core, array: Array, sizes: tuple[int, ...], access: Access) -> None:
        self.sizes = sizes
        self.dtype = array.dtype
        self._core = core
        self._array = array
        self._access = access
        self._closed = False
        self._counters: dict[tuple[int, int, int], Any] = {}  # by rank, element and reduction
        self._least, self._most = bounds(self.dtype)

    def _call(self, name: str) -> AbstractContextManager[None]:
        if self._closed:
            raise UsageError(f"{name}: the window is closed; make another one")
        return self._core.outside_batch(name)

    def _issue(
        self,
        name: str,
        nbytes: int,
        steps: Steps,
        keep: tuple[object, ...],
        timeout: float | None,
        *peers: int,
        ordered: bool = False,
    ) -> None:
        """Run a call and wait for it; it may wait for `peers`, or for all ranks."""
        label = with_peers(name, nbytes, peers)
        operation = Operation(label, lambda: steps, keep, ordered)
        self._core.calls.run_operation(operation, self._core.limit(timeout))

    def _checked(self, x: Any, name: str, *, written: bool) -> Array:
        array = host_view(x, name)
        check_dtype(name, array.dtype)
        check_layout(array, name, written=written)
        if array.dtype != self.dtype:
            raise BufferMismatch(
                f"{name} has dtype {array.dtype} and the window {self.dtype}; "
                f"give an array of dtype {self.dtype}"
            )
        return flat(array)

    def _place(self, name: str, rank: object, offset: object, count: int) -> tuple[int, int]:
        """Return rank and first element, if `count` elements lie in its memory from there on."""
        peer = check_rank(name, rank, len(self.sizes))
        start, size = check_int("offset", offset), self.sizes[peer]
        if start < 0 or start + count > size:
            raise BufferMismatch(
                f"offset is {offset!r} and the array has {count} elements; the window of rank {peer} "
                f"has {size}, so give at most {size} elements and an offset from 0 to "
                f"{max(size - count, 0)}"
            )
        return peer, start
