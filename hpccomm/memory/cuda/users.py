"""The library that communicates from a device's memory in this process: NCCL or a CUDA-aware MPI.

The two never use one device at the same time, because each could wait for work that the other delays.
"""

import threading
from dataclasses import dataclass

NCCL = "NCCL"
MPI = "CUDA-aware MPI"


@dataclass(slots=True)
class _Use:
    user: str
    communicators: int


_uses: dict[int, _Use] = {}
_lock = threading.Lock()


def claim(device: int, user: str) -> str:
    """Note that a communicator uses a device; `release` must follow. Local, from any thread.

    Parameters
    ----------
    device : int
        CUDA device.
    user : str
        `NCCL` or `MPI`.

    Returns
    -------
    str
        Empty if it may. Otherwise the reason and the remedy, and nothing is noted.
    """
    with _lock:
        use = _uses.get(device)
        if use is None:
            use = _uses[device] = _Use(user, 0)
        if use.user != user:
            return (
                f"device {device} is in use by {use.user} in another communicator of this process, "
                f"and {user} must not use it at the same time; finalize that communicator first"
            )
        use.communicators += 1
        return ""


def release(device: int, user: str) -> None:
    """Note that a communicator no longer uses the device that it claimed."""
    with _lock:
        use = _uses.get(device)
        if use is None or use.user != user:
            return
        use.communicators -= 1
        if use.communicators == 0:
            del _uses[device]
