"""Device arrays over a CUDA-aware MPI, which gets their addresses.

Such a library supports messages on device memory and, of the collectives, only blocking ones.
hpccomm never waits without a deadline, so its own algorithms run, over messages. An MPI call does
not wait for the stream that fills an array, and a stream does not wait for MPI: so the host orders the two.

`hpccomm.communicator.creation` chooses this dispatch if `open_aware` finds that MPI really takes device memory. It
tries that once for a communicator, before the first use.
"""

from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.bootstrap import cuda_aware, mpi
from hpccomm.backends.control import Control
from hpccomm.calls.on_device import DeviceProgram, OnDevice
from hpccomm.calls.policy import NATIVE
from hpccomm.calls.runner import FIRST_TAG
from hpccomm.calls.staged import SendOrder, StagedDispatch
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.device import DeviceImplementation, Piece, Pieces, Span, message_name
from hpccomm.contracts.signature import Choice
from hpccomm.contracts.transport import CALLS, CHANNELS, Request, Steps
from hpccomm.errors import CollectiveTimeout
from hpccomm.memory.cuda import memory
from hpccomm.memory.cuda.arrays import aliased, landing
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.cuda.streams import on_device, passed, used
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.service import keep
from hpccomm.runtime.waiting import completed, drive
from hpccomm.settings import Settings


def _memory(piece: Piece) -> Any:
    return aliased(piece.data.pointer, piece.data.nbytes)


class CudaAwareDispatch(OnDevice):
    """The dispatch of device arrays over a CUDA-aware MPI.

    The host takes part, so that calls cannot be captured in a graph. MPI's own collectives are not called: with
    device memory a library may support only blocking collectives, which no deadline can end.

    Parameters
    ----------
    backend : Backend
        The backend over MPI.
    device : int
        CUDA device of this rank.
    settings : Settings
        The settings of the communicator.
    reason : str
        Why MPI is given device memory, for `Choice`.
    staged : StagedDispatch
        The dispatch of calls that cannot be folded on the device.
    """

    name = "mpi"

    def __init__(
        self,
        backend: Backend,
        device: int,
        settings: Settings,
        reason: str,
        staged: StagedDispatch,
    ) -> None:
        super().__init__(backend.rank, backend.topology, device, settings, staged)
        self.over = f"MPI is given device memory, since {reason}"
        self._transport = backend.collectives
        # Ranks count alike, since they run the same calls.
        self._tags = cycle(range(FIRST_TAG, CHANNELS * CALLS, CHANNELS))
        self._claimed = True

    def running(self, program: DeviceProgram) -> DeviceImplementation:
        """Return the implementation of a program by steps. Once they end, the result is ordered on the stream."""
        return DeviceImplementation(start=partial(self._steps, program))

    def _steps(self, program: DeviceProgram, send: int, recv: int, stream: int) -> Steps:
        """Run a program, polled: messages begin once the stream has reached them, and local steps run on the stream.

        Raises
        ------
        BufferMismatch
            If a peer sends a message of another size, or of another call.
        CommunicationError
            If CUDA has failed.
        """
        tag, device = next(self._tags), self._device
        isend, irecv = self._transport.isend, self._transport.irecv
        with used(stream, device):
            at, alive = program.buffers(send, recv)
        requests: list[Request] = []
        try:
            for receives, sends, local in program.turns:
                coming, going = program.pieces(receives, at), program.pieces(sends, at)
                if coming or going:
                    # Receives wait too: the device may still read the old contents of that memory.
                    ready = passed(stream, device)
                    while not ready():
                        yield False
                    requests = [irecv(_memory(piece), piece.peer, tag) for piece in coming]
                    requests += [isend(_memory(piece), piece.peer, tag) for piece in going]
                    yield from completed(requests)
                with used(stream, device):
                    program.carry_out(local, at, stream)
        except BaseException:  # the call failed, or was abandoned
            keep(requests, alive)
            raise

    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the choice and the implementation of a user's point-to-point call; its addresses are in the pieces.

        A message of another size than its array raises `BufferMismatch`, as on the host.
        """
        if any(out.data.overlaps(come.data) for out in sends for come in receives):
            why = "one message would overwrite another one"
            return self._staged.message(receives, sends, tag, why)
        name = message_name(receives, sends)
        choice = Choice(name, "cuda", self.name, NATIVE, None, False, self.over)
        return choice, DeviceImplementation(
            start=lambda _send, _recv, stream: self._message(receives, sends, tag, stream)
        )

    def close(self) -> None:
        """Let NCCL use the device again. Local; idempotent."""
        super().close()
        if self._claimed:
            self._claimed = False
            memory.release(self._device, memory.MPI)

    def _message(self, receives: Pieces, sends: Pieces, tag: int, stream: int) -> Steps:
        coming = [(each, landing(each.data.pointer, each.data.nbytes)) for each in receives]
        going = [(each, _memory(each)) for each in sends]
        begin = partial(passed, stream, self._device)
        return self._staged.order.exchange(coming, going, tag, begin)


SIZES = (64, 1 << 20)
"""Bytes of the messages of the trial: libraries send small and large messages by different protocols."""

SECONDS = 60.0
"""Most seconds for the trial."""

TAG = 0
"""The tag of the trial's messages; no others are sent at this time."""

_explained = False
"""Whether this process has survived a trial, so that the next one needs no shell that explains a crash."""


def open_aware(
    backend: Backend,
    control: Control,
    calls: CallEngine,
    device: int,
    settings: Settings,
    staged: StagedDispatch,
) -> tuple[CudaAwareDispatch | None, str]:
    """Return the dispatch over a CUDA-aware MPI, or None, and the reason. Collective; blocks.

    The result is the same on all ranks. There is a dispatch if three conditions hold: every rank's MPI, or the user,
    says that MPI is CUDA-aware; NCCL uses no rank's device; messages between device memory arrive unchanged.

    Parameters
    ----------
    backend : Backend
        The backend of the messages.
    control : Control
        The control plane of the ranks.
    calls : CallEngine
        The engine of the communicator that is being made.
    device : int
        CUDA device of this rank.
    settings : Settings
        The settings of that communicator, which include ``HPCCOMM_CUDA_AWARE``.
    staged : StagedDispatch
        The dispatch of calls that cannot be folded on the device.

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
        refused = memory.claim(device, memory.MPI)
        claimed = not refused
        aware, why = claimed, refused or why
    unfit = control.objections("" if aware else why)
    if not unfit:
        unfit = control.objections(_tried(backend, staged.order, calls, device, why))
    if unfit:
        if claimed:
            memory.release(device, memory.MPI)
        return None, unfit
    return CudaAwareDispatch(backend, device, settings, why, staged), why


def _tried(backend: Backend, order: SendOrder, calls: CallEngine, device: int, reason: str) -> str:
    """Exchange messages from device memory, and return the fault in words; empty without one."""
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
        steps = trial(order, backend.rank, backend.size, device, wrong)
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


def trial(order: SendOrder, rank: int, size: int, device: int, wrong: list[str]) -> Steps:
    """Send messages round the ranks from device memory to device memory, polled.

    A message that arrived changed is noted in `wrong`.
    """
    right, left = (rank + 1) % size, (rank - 1) % size

    def message(peer: int, array: Any) -> tuple[Piece, Any]:
        span = Span(array.data.ptr, array.size, array.dtype)
        return Piece(peer, span), aliased(span.pointer, span.nbytes, array)

    for nbytes in SIZES:
        with on_device(device):
            module = cupy()
            sent, came = module.asarray(_pattern(rank, nbytes)), module.zeros(nbytes, np.uint8)
            stream = module.cuda.get_current_stream(device).ptr
        coming, going = [message(left, came)], [message(right, sent)]
        yield from order.exchange(coming, going, TAG, partial(passed, stream, device))
        with on_device(device):
            got: NDArray[Any] = came.get()
        if not np.array_equal(got, _pattern(left, nbytes)):
            wrong.append(f"of {nbytes} bytes from rank {left} others arrived than were sent")


def _pattern(rank: int, nbytes: int) -> NDArray[np.uint8]:
    """Return bytes that differ between consecutive ranks."""
    numbers = np.arange(nbytes, dtype=np.uint32) * np.uint32(31) + np.uint32(7 * rank + 1)
    return (numbers % np.uint32(251)).astype(np.uint8)
