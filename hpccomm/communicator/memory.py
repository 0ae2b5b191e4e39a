"""Memory that the peers of a node reach."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import DTypeLike

from hpccomm.communicator.face import Face


class Allocation(Face):
    """Arrays in registered memory."""

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> Any:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it copy the data only once. It belongs to the process: all
        communicators of the process can use it, and it outlives them. It is freed when its last view is
        gone, on any rank at any time. Its elements are undefined. A forked process sees the same memory,
        not a copy. Local; does not block, except with `device`: then it may wait for work on the device,
        if it frees memory that is no longer used.

        If ranks share no memory (one rank per node, or ``shared_memory="off"``), the result is an ordinary
        array. This is logged once.

        Parameters
        ----------
        shape : int or sequence of int
            Of the array. Ranks may pass different shapes, and not all ranks need to call.
        dtype : dtype
            Of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None is host memory. The number of this rank's device gives device memory from NCCL's allocator,
            registered with this communicator. Calls on it, and on views of it, may need no intermediate
            copies. If the library has no such memory, the result is an ordinary CuPy array, which
            `explain` reports.

        Returns
        -------
        ndarray or cupy.ndarray, of `shape` and `dtype`
            C-contiguous; on the host it begins at a cache line.

        Raises
        ------
        UsageError
            If an argument does not fit.
        MemoryError
            If there is no such memory.
        """
        return self._engine.allocator.empty(shape, dtype, device)
