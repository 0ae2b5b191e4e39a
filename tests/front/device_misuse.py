"""Misuse that only device arrays know; what is refused is refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import hpccomm
from front.device_inputs import device_of, filled, stream_of
from front.misuse import refused
from hpccomm import ANY, ReduceOp
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.memory.cuda import arrays
from hpccomm.testing.conformance.case import Behaviours

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

MISUSE = Behaviours("devices.misuse")
REGISTERED = Behaviours("devices.registered")


@MISUSE.behaviour()
def host_and_device_in_one_call(comm: Communicator) -> None:
    """Both x and out lie on the device, or both on the host."""
    with stream_of(comm):
        x, host = filled(comm, 4), np.ones(4, np.float32)
        with refused(comm) as attempt:
            for a, b in ((x, host), (host, x)):
                words = ("out", "host", "device")
                attempt(
                    "all_reduce", UsageError, words, lambda x, y: comm.all_reduce(x, out=y), a, b
                )
                attempt(
                    "send_recv", UsageError, words, lambda x, y: comm.send_recv(x, 0, y, 0), a, b
                )

            def batched() -> None:
                with comm.batch():
                    comm.all_reduce(x)
                    comm.all_reduce(host)

            attempt("batch", UsageError, ("batch", "host", "device"), batched)


@MISUSE.behaviour()
def streams(comm: Communicator) -> None:
    """A stream is CuPy's, a number, or has CUDA's protocol; and it is for device arrays."""
    with stream_of(comm) as stream:
        x = filled(comm, 4)
        with refused(comm) as attempt:
            for wrong in ("0", 1.5, True, -1, 1 << 64, object()):
                words = ("stream", "cuda_stream")
                attempt("stream", UsageError, words, lambda s: comm.all_reduce(x, stream=s), wrong)
            attempt(
                "host array",
                UsageError,
                ("stream", "device"),
                lambda: comm.all_reduce(np.ones(2), stream=stream),
            )
            attempt("barrier", UsageError, ("stream",), lambda: comm.barrier(stream=stream))


@MISUSE.behaviour()
def arrays_on_another_device(comm: Communicator) -> None:
    """Arrays lie on the communicator's device."""
    with device_of(comm) as module:
        count = module.cuda.runtime.getDeviceCount()
        other = (int(comm.device or 0) + 1) % count
        with refused(comm) as attempt:
            if count > 1:
                with module.cuda.Device(other):
                    x = module.ones(4, np.float32)
                words = ("x", "device", str(other), str(comm.device))
                attempt("all_reduce", UsageError, words, comm.all_reduce, x)


@MISUSE.behaviour()
def layouts(comm: Communicator) -> None:
    """An array that is not C-contiguous is refused, not copied."""
    with device_of(comm) as module:
        x = module.ones((4, 4), np.float32)
        with refused(comm) as attempt:
            for wrong in (x.T, x[:, 1], x[::2], x[::-1]):
                attempt("x", UsageError, ("x", "contiguous"), comm.all_reduce, wrong)


@MISUSE.behaviour()
def windows(comm: Communicator) -> None:
    """One-sided communication is of host memory."""
    with device_of(comm) as module:
        x = module.ones(4, np.float32)
        if comm.size == 1:
            with refused(comm) as attempt:
                attempt("window", UsageError, ("x", "device"), comm.window, x)


@MISUSE.behaviour()
def locations(comm: Communicator) -> None:
    """Values with their indices are reduced on the host only."""
    with device_of(comm):
        x = arrays.empty((4,), hpccomm.loc_dtype(np.float64))
        with refused(comm) as attempt:
            for op in (ReduceOp.MINLOC, ReduceOp.MAXLOC):
                words = (op.name, "host")
                attempt("all_reduce", UnsupportedDtype, words, comm.all_reduce, x, op)
                attempt("scan", UnsupportedDtype, words, comm.scan, x, op)


@MISUSE.behaviour()
def any_sender(comm: Communicator) -> None:
    """Only host arrays are received from any sender, or of any tag."""
    with device_of(comm):
        out = filled(comm, 4)
        with refused(comm) as attempt:
            words = ("out", "device", "host")
            attempt("recv", UsageError, words, comm.recv, out, ANY)
            attempt("recv", UsageError, words, comm.recv, out, 0, ANY)


@MISUSE.behaviour()
def tags(comm: Communicator) -> None:
    """NCCL's messages have no tags."""
    with device_of(comm):
        x, out = filled(comm, 4), filled(comm, 4)
        with refused(comm) as attempt:
            words = ("tag", "3", "nccl")
            attempt("send", UsageError, words, comm.send, x, 0, 3)
            attempt("recv", UsageError, words, comm.recv, out, 0, 3)
            attempt("send_recv", UsageError, words, comm.send_recv, x, 0, out, 0, 3)


@REGISTERED.behaviour()
def empty_misused(comm: Communicator) -> None:
    """Another device than the communicator's, or none, is refused. Local."""
    with refused(comm) as attempt:
        for device in (comm.device + 1 if comm.device is not None else 1, -1, 1.5, "0"):
            attempt(
                "empty",
                UsageError,
                ("device", repr(device)),
                lambda number: comm.empty(3, np.float32, device=number),
                device,
            )
        attempt("shape", UsageError, ("shape",), lambda: comm.empty(-1, "f4", device=comm.device))
        attempt("dtype", UsageError, ("dtype",), lambda: comm.empty(3, object, device=comm.device))
