"""One-sided memory: makes windows, and carries their calls out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpccomm.communicator import windows
from hpccomm.communicator.engine.core import Core
from hpccomm.communicator.windows import Window
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dispatch import sharing
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import HpccommError
from hpccomm.memory.views import check_dtype, check_layout, flat, host_view
from hpccomm.runtime.operation import Operation
from hpccomm.settings import check_seconds

_BARRIER = Signature("barrier", np.dtype(np.bool_), (0,))


class WindowCalls:
    """Carries out a window's calls as calls of its communicator."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._barrier = core.lanes.host.dispatch.decide(_BARRIER, AUTO, False).start

    @property
    def failed(self) -> bool:
        """Whether the communicator has failed."""
        return self._core.calls.gate.error is not None

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the communicator for one call."""
        with self._core.calls.one_call():
            self._core.intake.refuse_batch(name, "; call it before or after")
            yield

    def issue(self, operation: Operation, timeout: float | None) -> None:
        """Run an operation and wait for it."""
        calls = self._core.calls
        limit = calls.timeout if timeout is None else check_seconds("timeout", timeout)
        calls.operate(operation, limit)

    def barrier(self) -> Steps:
        """Wait, polled, until every rank has come."""
        return self._barrier(None, None)


class WindowMaker:
    """Makes the windows of one communicator, and closes them at its end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._windows: list[Window] = []  # in the order in which all ranks made them

    def make(self, x: Any) -> Window:
        """Return a window over x. Collective; blocks."""
        core, error, array = self._core, None, np.empty(0, np.uint8)
        mine: dict[str, object] = {}
        try:
            seen = host_view(x, "x")
            check_dtype("x", seen.dtype)
            check_layout(seen, "x", written=True)
            array = flat(seen)
            mine = {"dtype": str(array.dtype)}
        except HpccommError as refused:
            error = refused
        calls = WindowCalls(core)
        with calls.hold("window"):
            core.agree("window", mine, error)
            made = windows.make(
                array,
                core.backend,
                core.control,
                sharing(core.backend, core.settings),
                calls,
                core.calls.beside_watchdog,
            )
        self._windows = [each for each in self._windows if not each.closed]
        self._windows.append(made)
        return made

    def close(self) -> None:
        """Close what is open. Collective; blocks."""
        for window in self._windows:
            window.close()
