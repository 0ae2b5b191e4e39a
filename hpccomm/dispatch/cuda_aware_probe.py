"""Tries whether MPI really takes device memory, once a communicator, before its first use.

`hpccomm.communicator.making` asks before it chooses `aware`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.bootstrap import cuda_aware, mpi
from hpccomm.backends.control import Control
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.transport import Request, Steps, Transport
from hpccomm.dispatch.aware import CudaAwareDispatch
from hpccomm.dtypes import DType
from hpccomm.errors import CollectiveTimeout
from hpccomm.memory.cuda import users
from hpccomm.memory.cuda.aliases import aliased
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import drop_event, make_event, on_device, ready, record
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.lifetime import keep
from hpccomm.runtime.waiting import completed, drive
from hpccomm.settings import Settings

SIZES = (64, 1 << 20)
"""Bytes of the messages that are tried: libraries send small ones and large ones by different ways."""

SECONDS = 60.0
"""How long they may take."""

TAG = 0
"""The tag of its messages; no others are sent at this time."""

_explained = False
"""Whether this process has lived through a trial: the next one needs no explanation."""


def open_aware(
    backend: Backend,
    control: Control,
    calls: CallEngine,
    device: int,
    settings: Settings,
    wire: Callable[[int, DType], int],
) -> tuple[CudaAwareDispatch | None, str]:
    """Return the way over a CUDA-aware MPI, or None, and why. Collective; blocks.

    The same on all ranks: it is there if every rank's MPI says that it is CUDA-aware, or the user
    does, NCCL uses no rank's device, and messages between device memory arrive as they were sent.

    Parameters
    ----------
    backend : Backend
        The ranks.
    control : Control
        Their control plane.
    calls : CallEngine
        Of the communicator that is being made.
    device : int
        CUDA device of this rank.
    settings : Settings
        Of that communicator; ``HPCCOMM_CUDA_AWARE`` is among them.
    wire : callable
        ``wire(tag, dtype)`` gives the transport's tag for a user's, as for host arrays.

    Raises
    ------
    CommunicationError
        If a rank does not take part.
    """
    if backend.name != "mpi":
        return None, f"the ranks are connected by {backend.name}, not by MPI"
    aware, why = cuda_aware.aware(mpi.start(), settings.cuda_aware)
    claimed = False
    if aware:
        refused = users.claim(device, users.MPI)
        claimed = not refused
        aware, why = claimed, refused or why
    unfit = control.objections("" if aware else why)
    if not unfit:
        unfit = control.objections(_tried(backend, calls, device, why))
    if unfit:
        if claimed:
            users.release(device, users.MPI)
        return None, unfit
    return CudaAwareDispatch(backend, device, settings, wire, why), why


def _tried(backend: Backend, calls: CallEngine, device: int, reason: str) -> str:
    """Exchange messages from device memory; return what went wrong, or ''."""
    global _explained
    timeout = min(calls.timeout, SECONDS)

    def expired(elapsed: float) -> CollectiveTimeout:
        return CollectiveTimeout(
            f"a message from device memory had not arrived after {elapsed:.3g} s",
            communicator=calls.name,
            rank=backend.rank,
            elapsed=elapsed,
        )

    wrong: list[str] = []
    try:
        steps = trial(backend.collectives, device, wrong)
        with nullcontext() if _explained else cuda_aware.explain_crash(reason):
            drive(steps, timeout=timeout, gate=calls.gate, expired=expired)
        _explained = True
    except CollectiveTimeout as error:
        wrong.append(str(error))
    except Exception as error:
        translated = backend.translate(error)
        if translated is None:
            raise
        wrong.append(str(translated))
    if not wrong:
        return ""
    return (
        f"MPI does not take device memory ({'; '.join(wrong)}), although {reason}; "
        f"set {cuda_aware.VARIABLE}=0"
    )


def trial(transport: Transport, device: int, wrong: list[str]) -> Steps:
    """Send messages round the ranks from device memory to device memory, polled.

    What arrived otherwise than it was sent is noted in `wrong`.
    """
    rank, size = transport.rank, transport.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for nbytes in SIZES:
        with on_device(device):
            module = cupy()
            sent, came = module.asarray(_pattern(rank, nbytes)), module.zeros(nbytes, np.uint8)
            event = make_event()
            record(event, module.cuda.get_current_stream(device).ptr)
        while not ready(event):
            yield False
        drop_event(event)
        requests: list[Request] = []
        try:
            requests.append(transport.irecv(aliased(came.data.ptr, nbytes), left, TAG))
            requests.append(transport.isend(aliased(sent.data.ptr, nbytes), right, TAG))
            yield from completed(requests)
        except BaseException:
            keep(requests, sent, came)
            raise
        with on_device(device):
            got: NDArray[Any] = came.get()
        if not np.array_equal(got, _pattern(left, nbytes)):
            wrong.append(f"of {nbytes} bytes from rank {left} others arrived than were sent")


def _pattern(rank: int, nbytes: int) -> NDArray[np.uint8]:
    """Return bytes that differ between consecutive ranks."""
    numbers = np.arange(nbytes, dtype=np.uint32) * np.uint32(31) + np.uint32(7 * rank + 1)
    return (numbers % np.uint32(251)).astype(np.uint8)
