"""One-sided communication."""

from typing import Any

from hpccomm.communicator.face import Face
from hpccomm.communicator.windows import Window


class Windows(Face):
    """Memory that other ranks read and write by themselves."""

    def window(self, x: Any) -> Window:
        """Let all ranks read and write x by themselves. Collective; blocks until all may.

        Parameters
        ----------
        x : array
            This rank's memory, C-contiguous and writable; of any shape and size, also on each rank
            another one, and of the same dtype on all. From `empty` or any other. It lives at least as
            long as the window.

        Returns
        -------
        Window
            To be closed by all ranks; `finalize` closes what is open.

        Raises
        ------
        UsageError
            If x does not fit here, or the backend has no one-sided communication.
        RankMismatch
            On every other rank then, and on all ranks if their dtypes differ.
        CommunicationError
            If the call fails or its deadline passes.

        Examples
        --------
        Each rank writes its number to its right neighbour, and tells it so.

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
        return self._engine.windows.make(x)
