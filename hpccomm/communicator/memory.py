"""Methods for memory that other ranks reach: `Communicator.empty` and `window`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpccomm.calls.core import HasCore
from hpccomm.communicator import windows
from hpccomm.dtypes import REDUCIBLE, is_native
from hpccomm.errors import HpccommError, UsageError, did_you_mean
from hpccomm.memory.views import check_dtype, check_layout, flat, host_view
from hpccomm.settings import check_int


def empty(
    self: HasCore, shape: int | Sequence[int], dtype: DTypeLike, *, device: int | None = None
) -> Any:
    """Return an array in registered memory, which the ranks of its node read and write directly.

    Collectives on it and on views of it copy the data only once. In a collective call the arrays are
    registered on all ranks or on none: a mixture is a `RankMismatch`. A rank's call is on registered
    arrays if all arrays that it gives and uses, x and `out`, are. It belongs to the process: all
    communicators of the process can use it, and it outlives them. It is freed when its last view is
    gone, on any rank at any time. Its elements are undefined. A forked process sees the same memory,
    not a copy. Local; does not block, except with `device`: then it may wait for work on the device,
    if it frees memory that is no longer used.

    If ranks share no memory (one rank per node, or ``shared_memory="off"``), the result is an ordinary
    array. This is logged once.

    Parameters
    ----------
    shape : int or sequence of int
        Of the array. Ranks may pass different shapes, and not all ranks need to call.
    dtype : dtype
        Of its elements, in the machine's byte order, without references to Python objects.
    device : int, optional
        None is host memory. The number of this rank's device gives device memory from NCCL's allocator.
        A plan of this communicator registers it, and needs no intermediate copies then, where the
        arrays of all ranks lie at the same place in equal arrays of `empty`, or in views of them. In all
        other calls it is used on no rank: they take it as an ordinary array, and it mixes with any, also in a
        CUDA graph unless ``NCCL_GRAPH_REGISTER`` is 1. If the library has no such memory, the result is an
        ordinary CuPy array, which `explain` reports.

    Returns
    -------
    ndarray or cupy.ndarray, of `shape` and `dtype`
        C-contiguous; on the host it begins at a cache line.

    Raises
    ------
    UsageError
        If an argument does not fit.
    MemoryError
        If no such memory is available.
    """
    extents, kind = _shape(shape), _dtype(dtype)
    if device is not None:
        lane = self._core.lanes.device
        return lane.empty_on(check_int("device", device), extents, kind)
    with self._core.calls.one_call():
        return self._core.lanes.host.empty(extents, kind)


def window(self: HasCore, x: Any) -> windows.Window:
    """Let all ranks read and write x without this rank taking part. Collective; blocks.

    Parameters
    ----------
    x : array
        This rank's memory, C-contiguous and writable, from `empty` or any other. Shape and size may
        differ between ranks; the dtype must be the same. The window keeps it alive.

    Returns
    -------
    Window
        All ranks must close it; `finalize` closes the windows that are still open.

    Raises
    ------
    UsageError
        If x does not fit here, or the backend has no one-sided communication.
    RankMismatch
        On the other ranks in that case, and on all ranks if their dtypes differ.
    CommunicationError
        If the call fails or its deadline passes.

    Examples
    --------
    Each rank writes its number to its right neighbor and signals it.

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
    core = self._core
    array, mine, error = np.empty(0, np.uint8), dict[str, object](), None
    try:
        seen = host_view(x, "x")
        check_dtype("x", seen.dtype)
        check_layout(seen, "x", written=True)
        array = flat(seen)
        mine = {"dtype": str(array.dtype)}
    except HpccommError as refused:
        error = refused
    with core.outside_batch("window"):
        core.agree("window", mine, error)
        made = windows.make(core, array)
        core.windows.append(made)
    return made


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
        known = [each.name for each in REDUCIBLE]
        advice = did_you_mean(str(dtype), known, "give one, such as numpy.float32")
        raise UsageError(f"dtype is {dtype!r}: {error}; {advice}") from None
    if not is_native(kind):
        raise UsageError(f"dtype is {dtype!r}; give native byte order: dtype.newbyteorder('=')")
    check_dtype("the array", kind)
    return kind
