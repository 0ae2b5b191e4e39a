"""Peers' segments, mapped into this process."""

import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpccomm.memory.foreign import AddressedBytes
from hpccomm.memory.shared import libc
from hpccomm.memory.shared.heap import NAME

_ANOTHER = "descriptor {} of process {} is no longer a segment of hpccomm: it was closed there"


class PeerSegments:
    """Peers' segments in this process. Each is mapped once and stays.

    Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def find(self, pid: int, key: int) -> NDArray[np.uint8]:
        """Return a segment's bytes.

        Parameters
        ----------
        pid : int
            Its process.
        key : int
            Its `Segment.key`.

        Raises
        ------
        OSError
            If it cannot be mapped.
        """
        with self._lock:
            found = self._mapped.get((pid, key))
            if found is None:
                found = self._mapped[pid, key] = _map(pid, key)
            return found


def _map(pid: int, key: int) -> NDArray[np.uint8]:
    serial, number = key >> 32, key & 0xFFFFFFFF
    path = f"/proc/{pid}/fd/{number}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # A program may close descriptors that are not its own, and reuse the number for another file.
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not name.startswith(f"/memfd:{NAME.format(serial)} "):
            raise OSError(0, _ANOTHER.format(number, pid))
        size = os.fstat(descriptor).st_size
        at = libc.map_file(descriptor, size)
    finally:
        os.close(descriptor)
    libc.prefer_huge_pages(at, size)
    return AddressedBytes(at, size).array()
