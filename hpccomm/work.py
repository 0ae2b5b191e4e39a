"""What an asynchronous call gives back."""

from collections.abc import Callable
from typing import Any

from hpccomm.errors import CommunicationError, UsageError
from hpccomm.progress import Engine, Task
from hpccomm.settings import check_seconds


class Work:
    """An operation under way, which keeps its arrays alive until it is done.

    It goes on by itself. `wait`, `done` and `exception` may be called from any thread, any number
    of times.
    """

    __slots__ = ("_engine", "_gave_up", "_keep", "_result", "_task", "_timeout")

    def __init__(
        self,
        engine: Engine,
        task: Task,
        *,
        result: Any,
        keep: tuple[object, ...],
        timeout: float,
        gave_up: Callable[[float], CommunicationError],
    ) -> None:
        self._engine = engine
        self._task = task
        self._result = result
        self._keep: tuple[object, ...] = keep
        self._timeout = timeout
        self._gave_up = gave_up

    def wait(self, timeout: float | None = None, block: bool | None = None) -> Any:
        """Wait until the operation is done and return its result. Blocks the host.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None is the call's.
        block : bool, optional
            For device arrays; a host array's result is there when this returns, whatever it is.

        Returns
        -------
        object
            What the synchronous call returns.

        Raises
        ------
        CollectiveTimeout
            If the deadline passes. The communicator has failed then.
        HpccommError
            Whatever ended the operation.
        """
        if block is not None and not isinstance(block, bool):
            raise UsageError(f"block is {block!r}; give True, False or None")
        limit = self._timeout if timeout is None else check_seconds("timeout", timeout)
        if not self._task.over:
            self._engine.wait(self._task, limit, lambda _: self._gave_up(limit))
        if self._task.error is not None:
            raise self._task.error
        self._keep = ()
        return self._result

    def done(self) -> bool:
        """Return whether the operation is over, for good or ill. Does not block."""
        if not self._task.over:
            self._engine.turn()
        return self._task.over

    def exception(self) -> BaseException | None:
        """Return what ended the operation, or None if nothing did so far. Does not block."""
        return self._task.error if self.done() else None

    def __repr__(self) -> str:
        state = "under way" if not self._task.over else "failed" if self._task.error else "done"
        return f"<hpccomm.Work {state}>"
