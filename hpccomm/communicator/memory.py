"""Memory that the peers of a node reach."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import DTypeLike

from hpccomm.communicator.face import Face


class RegisteredMemory(Face):
    """Arrays in registered memory."""

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> Any:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it move no data but once. It belongs to the process: all its
        communicators reach it, it outlives them, and it is given back when the last view of it
        goes, on any rank at any time. Its elements are undefined. A process that is forked sees the
        same memory, not a copy. Local. Never blocks; with `device` it may wait for what is under way
        there, where it frees memory that nobody holds any more.

        Where ranks share no memory (one rank a node, or ``shared_memory="off"``) it is an ordinary
        array, which is logged once.

        Parameters
        ----------
        shape : int or sequence of int
            Of the array. It may differ between ranks, and so may who calls.
        dtype : dtype
            Of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None is the host. The number of this rank's device gives device memory from NCCL's allocator,
            registered with this communicator: calls on it, and on views of it, may go without copies
            in between. Where the library has no such memory it is an ordinary CuPy array, which
            `explain` tells.

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
