"""Memory that the peers of a node reach."""

import logging
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpccomm.communicator.core import Core
from hpccomm.dtypes import is_native
from hpccomm.errors import BackendUnavailable, UsageError
from hpccomm.memory.views import check_dtype
from hpccomm.settings import check_int

logger = logging.getLogger("hpccomm")


class Memory(Core):
    """Arrays in registered memory."""

    _told_ordinary = False

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> Any:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it move no data but once. It belongs to the process: all its
        communicators reach it, it outlives them, and it is given back when the last view of it
        goes, on any rank at any time. Its elements are undefined. A process that is forked sees the
        same memory, not a copy. Local. Never blocks; with `device` it may wait for what is under way
        there, where it frees memory that nobody holds any more.

        Where ranks share no memory (one rank a node, or ``shared_memory="off"``) it is an ordinary
        array, which is logged once.

        Parameters
        ----------
        shape : int or sequence of int
            Of the array. It may differ between ranks, and so may who calls.
        dtype : dtype
            Of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None is the host. The number of this rank's device gives device memory from NCCL's allocator,
            registered with this communicator: calls on it, and on views of it, may go without copies
            in between. Where the library has no such memory it is an ordinary CuPy array, which
            `explain` tells.

        Returns
        -------
        ndarray or cupy.ndarray, of `shape` and `dtype`
            C-contiguous; on the host it begins at a cache line.

        Raises
        ------
        UsageError
            If an argument does not fit.
        MemoryError
            If there is no such memory.
        """
        extents = _shape(shape)
        kind = _dtype(dtype)
        if device is not None:
            return self._empty_on_device(extents, kind, check_int("device", device))
        with self._one_call():
            shared = self._backend.collectives.shared
            if shared is None:
                if not self._told_ordinary:
                    self._told_ordinary = True
                    logger.info(
                        "communicator %r: the ranks of a node share no memory; empty() gives ordinary "
                        "arrays",
                        self._calls.name,
                    )
                return np.empty(extents, kind)
            return shared.empty(prod(extents) * kind.itemsize).view(kind).reshape(extents)

    def _empty_on_device(
        self, shape: tuple[int, ...], dtype: np.dtype[np.generic], device: int
    ) -> Any:
        devices = self._devices
        if isinstance(devices, str):
            raise BackendUnavailable(
                f"device is {device}, and communicator {self._calls.name!r} takes no device arrays: "
                f"{devices}. Or leave it out, for an array of the host"
            )
        if device != devices.device:
            raise UsageError(
                f"device is {device}; give {devices.device}, which is this rank's, or None"
            )
        with self._one_call():
            return devices.empty(shape, dtype)


def _shape(shape: object) -> tuple[int, ...]:
    if isinstance(shape, str | bytes):
        raise UsageError(f"shape is {shape!r}; give an integer or a tuple of them")
    if not isinstance(shape, Sequence | np.ndarray):
        shape = (shape,)
    extents = tuple(check_int("shape", extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise UsageError(f"shape is {extents}; give extents of at least 0")
    return extents


def _dtype(dtype: DTypeLike) -> np.dtype[np.generic]:
    if dtype is None:  # which NumPy takes for float64
        raise UsageError("dtype is None; give a dtype, such as numpy.float32")
    try:
        kind: np.dtype[np.generic] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"dtype is {dtype!r}: {error}; give one, such as numpy.float32") from None
    if not is_native(kind):
        raise UsageError(f"dtype is {dtype!r}; give native byte order: dtype.newbyteorder('=')")
    check_dtype("the array", kind)
    return kind
