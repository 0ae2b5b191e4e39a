"""Ranges of NVIDIA's profilers (NVTX) around calls, by CuPy, where ``HPCCOMM_NVTX`` asks for them.

A call that blocks its thread is a range there. One that does not is a mark where it begins.
"""

import logging

from hpccomm.memory.cuda.library import cupy, unavailable
from hpccomm.runtime.recorder import BLOCKING, MODE, POLLED
from hpccomm.runtime.reports import CallInfo
from hpccomm.runtime.state import CallState

logger = logging.getLogger("hpccomm")


def observe(calls: CallState) -> None:
    """Have the calls of a communicator be ranges from now on. Without a device, a warning is logged."""
    if why := unavailable():
        logger.warning("HPCCOMM_NVTX has no effect: %s", why)
        return
    nvtx, begun = cupy().cuda.nvtx, 0

    def begin(info: CallInfo) -> None:
        nonlocal begun
        words = f"{info.operation} {info.nbytes} bytes, {info.communicator}"
        entry = calls.current
        if entry is not None and entry[MODE] in (BLOCKING, POLLED):
            begun = info.sequence
            nvtx.RangePush(words)
        else:
            nvtx.Mark(words)

    def end(info: CallInfo) -> None:
        nonlocal begun
        if info.sequence == begun:
            begun = 0
            nvtx.RangePop()

    calls.reports.pre_hooks.register(begin)
    calls.reports.post_hooks.register(end)
