"""One-sided communication."""

from typing import Any

from hpccomm.communicator import windows
from hpccomm.communicator.face import Face
from hpccomm.communicator.windows import Window


class Windows(Face):
    """Memory that other ranks read and write by themselves."""

    def window(self, x: Any) -> Window:
        """Let all ranks read and write x without this rank taking part. Collective; blocks.

        Parameters
        ----------
        x : array
            This rank's memory, C-contiguous and writable, from `empty` or any other. Shape and size may
            differ between ranks; the dtype must be the same. The window keeps it alive.

        Returns
        -------
        Window
            All ranks must close it; `finalize` closes the windows that are still open.

        Raises
        ------
        UsageError
            If x does not fit here, or the backend has no one-sided communication.
        RankMismatch
            On the other ranks in that case, and on all ranks if their dtypes differ.
        CommunicationError
            If the call fails or its deadline passes.

        Examples
        --------
        Each rank writes its number to its right neighbour and signals it.

        >>> import hpccomm
        >>> import numpy as np
        >>> with hpccomm.new_comm("loopback") as comm:
        ...     mine = np.full(1, -1)
        ...     right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        ...     with comm.window(mine) as window:
        ...         window.put(np.array([comm.rank]), right)
        ...         window.signal(right)
        ...         window.wait_signal(left)
        ...         print(mine)
        [0]
        """
        return windows.make(self._core, x)
