"""NCCL's and CUDA's errors as hpccomm's. `backend` and its callers translate by it."""

from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.libnccl import binding
from hpccomm.errors import CommunicationError, HpccommError, PeerLost
from hpccomm.memory.cuda.library import cupy

REMOTE = 6
"""ncclRemoteError: the connection to a rank broke, mostly because its process ended."""

UNKNOWN_TO_CUPY = {7: "is still in progress", 8: "timed out"}
"""Statuses for which CuPy raises a KeyError instead of its own error."""


def translate(error: Exception) -> HpccommError | None:
    """Return an error of NCCL or CUDA as one of hpccomm's; None for other errors."""
    if isinstance(error, binding().NcclError):
        detail = libnccl.last_error()
        text = f"NCCL has failed: {error}{f' ({detail})' if detail else ''}"
        if error.status == REMOTE:
            return PeerLost(f"{text}; a rank has ended: look at its own report")
        return CommunicationError(f"{text}; NCCL_DEBUG=WARN shows where")
    if isinstance(error, KeyError) and error.args and error.args[0] in UNKNOWN_TO_CUPY:
        return CommunicationError(
            f"NCCL reports that the call {UNKNOWN_TO_CUPY[error.args[0]]} (status {error.args[0]}), "
            "which a blocking communicator should not; unset NCCL_COMM_BLOCKING"
        )
    if isinstance(error, cupy().cuda.runtime.CUDARuntimeError):
        return CommunicationError(
            f"CUDA has failed: {error}; the device's memory and streams may be lost to this process"
        )
    return None
