"""Misuse that only device arrays know; what is refused is refused before anything is sent."""

from functools import partial
from typing import Any

import numpy as np

from front.device_inputs import device_of, filled, stream_of
from front.misuse import each_is_refused
from hpccomm import ANY, Communicator
from hpccomm.errors import UsageError
from hpccomm.testing.conformance.case import Behaviours

MISUSE = Behaviours("devices.misuse")


@MISUSE.behaviour()
def arguments(comm: Communicator) -> None:
    """Arrays lie on one side, are C-contiguous and of dtypes that devices reduce; streams are streams."""
    with stream_of(comm) as stream:
        x, host, square = filled(comm, 4), np.ones(4, np.float32), filled(comm, 16).reshape(4, 4)

        def batched() -> None:
            with comm.batch():
                comm.all_reduce(x)
                comm.all_reduce(host)

        on_host = partial(comm.all_reduce, host, stream=stream)
        rows: list[tuple[Any, ...]] = [
            (UsageError, ("batch", "host", "device"), batched),
            (UsageError, ("stream", "device"), on_host),
            (UsageError, ("stream",), partial(comm.barrier, stream=stream)),
            (UsageError, ("out", "device", "host"), comm.recv, x, ANY),
            (UsageError, ("out", "device", "host"), comm.recv, x, 0, ANY),
            (UsageError, ("shape",), partial(comm.empty, -1, "f4", device=comm.device)),
            (UsageError, ("dtype",), partial(comm.empty, 3, object, device=comm.device)),
        ]
        rows += [
            (UsageError, ("x", "contiguous"), comm.all_reduce, each)
            for each in (square.T, square[:, 1], square[::2], square[::-1])
        ]
        if comm.size == 1:
            rows.append((UsageError, ("x", "device"), comm.window, x))
        for a, b in ((x, host), (host, x)):
            rows.append((UsageError, ("out", "host", "device"), partial(comm.all_reduce, a, out=b)))
            rows.append((UsageError, ("out", "host", "device"), comm.send_recv, a, 0, b, 0))
        for wrong in ("0", 1.5, True, -1, 1 << 64, object()):
            call = partial(comm.all_reduce, x, stream=wrong)
            rows.append((UsageError, ("stream", "cuda_stream"), call))
        for device in (-1 if comm.device is None else comm.device + 1, -1, 1.5, "0"):
            make = partial(comm.empty, 3, np.float32, device=device)
            rows.append((UsageError, ("device", repr(device)), make))
        each_is_refused(comm, rows)


@MISUSE.behaviour()
def arrays_on_another_device(comm: Communicator) -> None:
    """Arrays lie on the communicator's device."""
    with device_of(comm) as module:
        count = module.cuda.runtime.getDeviceCount()
        other = (int(comm.device or 0) + 1) % count
        with module.cuda.Device(other):
            x = module.ones(4, np.float32)
        words = ("x", "device", str(other), str(comm.device))
        each_is_refused(comm, [(UsageError, words, comm.all_reduce, x)] if count > 1 else [])


@MISUSE.behaviour()
def tags(comm: Communicator) -> None:
    """NCCL's messages have no tags."""
    with device_of(comm):
        x, out, words = filled(comm, 4), filled(comm, 4), ("tag", "3", "nccl")
        rows = (
            (UsageError, words, comm.send, x, 0, 3),
            (UsageError, words, comm.recv, out, 0, 3),
            (UsageError, words, comm.send_recv, x, 0, out, 0, 3),
        )
        each_is_refused(comm, rows)
