"""Memory that the peers of a node reach."""

import logging
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hpccomm.buffers import check_dtype
from hpccomm.communicator.core import Core
from hpccomm.dtypes import is_native
from hpccomm.errors import UsageError
from hpccomm.settings import check_int

logger = logging.getLogger("hpccomm")


class Memory(Core):
    """Arrays in registered memory."""

    _told_ordinary = False

    def empty(
        self, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
    ) -> NDArray[np.generic]:
        """Return an array in registered memory, which the ranks of its node read and write directly.

        Collectives on it and on views of it move no data but once. It belongs to the process: all its
        communicators reach it, it outlives them, and it is given back when the last view of it
        goes, on any rank at any time. Its elements are undefined. A process that is forked sees the
        same memory, not a copy. Local; never blocks.

        Where ranks share no memory (one rank a node, or ``shared_memory="off"``) it is an ordinary
        array, which is logged once.

        Parameters
        ----------
        shape : int or sequence of int
            Of the array. It may differ between ranks, and so may who calls.
        dtype : dtype
            Of its elements, in the machine's byte order, without references to Python objects.
        device : int, optional
            None, which is the host.

        Returns
        -------
        ndarray of `shape` and `dtype`
            C-contiguous; it begins at a cache line.

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
            raise UsageError(
                f"device is {device!r}, and this communicator has no memory of devices; "
                "leave it out, or give None, for an array of the host"
            )
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
