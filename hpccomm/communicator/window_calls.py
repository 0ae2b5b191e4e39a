"""One-sided communication."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpccomm.communicator import windows
from hpccomm.communicator.core import Core
from hpccomm.communicator.windows import Window
from hpccomm.contracts.backend import Start
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dispatch import sharing
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import HpccommError, UsageError
from hpccomm.memory.views import check_dtype, check_layout, flat, host_view
from hpccomm.runtime.engine import CallEngine, Operation
from hpccomm.settings import check_seconds

_BARRIER = Signature("barrier", np.dtype(np.bool_), (0,))


class _Caller:
    """Carries out a window's calls as calls of its communicator."""

    def __init__(self, calls: CallEngine, barrier: Start, in_batch: Callable[[], bool]) -> None:
        self._calls = calls
        self._barrier = barrier
        self._in_batch = in_batch

    @property
    def failed(self) -> bool:
        """Whether the communicator has failed."""
        return self._calls.gate.error is not None

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the communicator for one call."""
        self._calls.enter()
        try:
            if self._in_batch():
                raise UsageError(f"{name} does not go into a batch; call it before or after")
            yield
        finally:
            self._calls.leave()

    def issue(self, operation: Operation, timeout: float | None) -> None:
        """Run an operation and wait for it."""
        calls = self._calls
        limit = calls.timeout if timeout is None else check_seconds("timeout", timeout)
        calls.operate(operation, limit)

    def barrier(self) -> Steps:
        """Wait, polled, until every rank has come."""
        return self._barrier(None, None)


class Windows(Core):
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
        error, array = None, np.empty(0, np.uint8)
        mine: dict[str, object] = {}
        try:
            given = host_view(x, "x")
            check_dtype("x", given.dtype)
            check_layout(given, "x", written=True)
            array = flat(given)
            mine = {"dtype": str(array.dtype)}
        except HpccommError as refused:
            error = refused
            mine = {"error": str(error)}
        barrier = self._path.decide(_BARRIER, AUTO, False).start
        caller = _Caller(self._calls, barrier, lambda: self._batch is not None)
        with caller.hold("window"):
            self._agree("window", mine, error)
            made = windows.make(
                array,
                self._backend,
                self._control,
                sharing(self._backend, self._settings),
                caller,
                self._calls.beside_watchdog,
            )
        self._windows = [each for each in self._windows if not each.closed]
        self._windows.append(made)
        return made
