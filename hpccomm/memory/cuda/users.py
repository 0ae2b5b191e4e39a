"""The library that communicates from a device's memory in this process: NCCL or a CUDA-aware MPI.

The two never use one device at the same time, because each could wait for work that the other delays.

The NCCL backend and the CUDA-aware dispatch claim the device here.
"""

import threading
from collections import Counter

NCCL = "NCCL"
MPI = "CUDA-aware MPI"


_communicators: Counter[tuple[int, str]] = Counter()
"""By device and library, the communicators that use them."""

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
    other = MPI if user == NCCL else NCCL
    with _lock:
        if _communicators[device, other]:
            return (
                f"device {device} is in use by {other} in another communicator of this process, "
                f"and {user} must not use it at the same time; finalize that communicator first"
            )
        _communicators[device, user] += 1
        return ""


def release(device: int, user: str) -> None:
    """Note that a communicator no longer uses the device that it claimed."""
    with _lock:
        if _communicators[device, user]:
            _communicators[device, user] -= 1
