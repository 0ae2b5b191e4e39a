"""The threads in which NCCL's communicators end.

What ends one can block in NCCL: as long as a captured graph with one of its calls is there, without
end. So each has a thread of its own for that, which is made with it: at the end of the process Python
may not start any.
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
        self._asked: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()
        self._why: str | None = None
        threading.Thread(target=self._run, name="hpccomm-nccl-end", daemon=True).start()

    def begin(self, end: Callable[[Any], None], communicator: Any) -> None:
        """Have ``end(communicator)`` done, with the device current. Once; does not block."""
        self._asked.put((end, communicator))

    def outcome(self) -> str | None:
        """Return None while it is not done, '' once it is, or why it failed. From any thread."""
        return self._why

    def _run(self) -> None:
        end, communicator = self._asked.get()
        why = ""
        try:
            streams.look_from_here(self._device)
        except Exception as error:  # noqa: BLE001 (a device that is lost: NCCL is told all the same)
            why = f"{type(error).__name__}: {error}"
        try:
            end(communicator)
        except Exception as error:  # noqa: BLE001 (told to who waits)
            why = f"{type(error).__name__}: {error}"
        self._why = why
