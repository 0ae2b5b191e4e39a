"""The threads in which NCCL's communicators end.

Ending a communicator blocks in NCCL while a captured graph with one of its calls exists, possibly for
ever. Each communicator therefore has a thread for its end. The thread starts with the communicator,
because Python may refuse to start threads at the end of the process.

`communicators` ends them by it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from hpccomm.memory.cuda import streams


class TeardownThread:
    """A thread that waits until one communicator is to be ended.

    Parameters
    ----------
    device : int
        CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._requests: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._why: str | None = None
        threading.Thread(target=self._run, name="hpccomm-nccl-end", daemon=True).start()

    def begin(self, end: Callable[[Any], None], communicator: Any) -> None:
        """Run ``end(communicator)`` with the device current. Once; does not block."""
        self._requests.put((end, communicator))

    def outcome(self) -> str | None:
        """Return None until it is done, then '' or the reason of its failure. From any thread."""
        return self._why

    def _run(self) -> None:
        end, communicator = self._requests.get()
        why = ""
        try:
            streams.look_from_here(self._device)
        except Exception as error:  # noqa: BLE001 (the device is lost; NCCL must still end)
            why = f"{type(error).__name__}: {error}"
        try:
            end(communicator)
        except Exception as error:  # noqa: BLE001 (the waiter gets it)
            why = f"{type(error).__name__}: {error}"
        self._why = why
