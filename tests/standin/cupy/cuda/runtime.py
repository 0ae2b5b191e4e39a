"""The functions of the CUDA runtime that CuPy gives, with its names and arguments."""

from typing import NamedTuple

import numpy as np

from standin import control, devices, events, graphs, heap, streams
from standin.errors import CUDARuntimeError as CUDARuntimeError

eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
streamDefault, streamNonBlocking = 0, 1
streamLegacy, streamPerThread = streams.LEGACY, streams.PER_THREAD
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 0, 1, 2, 3
memcpyDefault = 4
getDeviceCount = devices.count
eventElapsedTime = events.elapsed


class PointerAttributes(NamedTuple):
    """What CUDA knows of an address."""

    device: int
    devicePointer: int
    hostPointer: int
    type: int = -1


def driverGetVersion():
    return 12080


def runtimeGetVersion():
    return 12090


def getDevice():
    control.seen("getDevice")
    return devices.current()


def setDevice(device):
    control.seen("setDevice", device)
    if not devices.used(device):
        # CuPy 14.2, runtime.pyx:417, has no nogil. Whether CUDA waits there is not known: a thread's first may.
        streams.await_driver(devices.device(device), "setDevice")
    devices.use(device)


def deviceSynchronize():
    graphs.forbid_while_capturing()
    streams.synchronize(devices.device())


def deviceGetPCIBusId(device):
    return devices.device(device).bus


def deviceCanAccessPeer(device, peerDevice):
    return int(device < peerDevice)


def deviceEnablePeerAccess(peerDevice):
    control.seen("deviceEnablePeerAccess", peerDevice, devices.current())
    # cudaErrorPeerAccessAlreadyEnabled, or unsupported
    raise CUDARuntimeError(704 if deviceCanAccessPeer(devices.current(), peerDevice) else 217)


def getDeviceProperties(device):
    there = devices.device(device)
    return {
        "name": b"Stand-in for a GPU",
        "uuid": there.uuid.partition(b"\0")[0],  # as a C string, which ends at a zero
        "major": 9,
        "minor": 0,
    }


def memGetInfo():
    total = control.MEMORY
    return total - heap.used(devices.current()), total


def pointerGetAttributes(ptr):
    devices.count()
    block = heap.find(ptr)
    if block is None:
        return PointerAttributes(-2, 0, 0, 0)
    if block.device < 0:
        return PointerAttributes(devices.current(), ptr, ptr, 1)
    return PointerAttributes(block.device, ptr, 0, 2)


_SIDES = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True), 4: (None, None)}
"""Whether destination and source are on a device, by the kind of a copy."""


def _copy(dst, src, size, kind):
    to, of = _SIDES[kind]

    def run():
        np.copyto(heap.view(dst, size, to), heap.view(src, size, of))

    return run


def _pageable(address):
    return heap.find(address) is None


def memcpy(dst, src, size, kind):
    graphs.forbid_while_capturing()
    stream = streams.find(0)
    stream.put(_copy(dst, src, size, kind))
    stream.synchronize()


def memcpyAsync(dst, src, size, kind, stream):
    control.seen("memcpyAsync", dst, src, size, kind, stream)
    there = streams.find(stream)
    if size == 0 or control.on("STANDIN_NO_COPIES"):
        return
    if there.capture is None and _pageable(src):
        # The host's pageable memory is read before the call returns.
        copied = heap.view(src, size, None if kind == memcpyDefault else False).copy()
        there.put(lambda: np.copyto(heap.view(dst, size, _SIDES[kind][0]), copied))
        return
    there.put(_copy(dst, src, size, kind))
    if there.capture is None and _pageable(dst):
        there.synchronize()  # and written before it returns


def _rows(ptr, pitch, width, height, device):
    data = heap.view(ptr, pitch * (height - 1) + width, device)
    return np.ndarray((height, width), np.uint8, data, 0, (pitch, 1))


def memcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, stream):
    if width > dpitch or width > spitch:
        raise CUDARuntimeError(12)
    there = streams.find(stream)
    if not width or not height:
        return
    to, of = _SIDES[kind]

    def run():
        np.copyto(_rows(dst, dpitch, width, height, to), _rows(src, spitch, width, height, of))

    there.put(run)
    if there.capture is None and (_pageable(src) or _pageable(dst)):
        there.synchronize()


def memsetAsync(ptr, value, size, stream):
    streams.find(stream).put(lambda: heap.view(ptr, size).fill(value & 255))


def streamCreateWithPriority(flags, priority):
    control.seen("streamCreateWithPriority", flags, priority)
    graphs.forbid_beside_others()
    return streams.create(flags, min(0, max(-5, priority))).pointer


def _not_captured(stream):
    there = streams.find(stream)
    if there.capture is not None:
        there.capture.invalid = True
        raise CUDARuntimeError(900)
    graphs.forbid_while_capturing()
    return there


def streamSynchronize(stream):
    control.seen("streamSynchronize", stream)
    _not_captured(stream).synchronize()


def streamQuery(stream):
    try:
        return _not_captured(stream).query()
    except CUDARuntimeError as error:
        return error.status


def streamWaitEvent(stream, event, flags=0):
    events.order(streams.find(stream), event)


def launchHostFunc(stream, callback, arg):
    streams.find(stream).put(lambda: callback(arg))


def streamIsCapturing(stream):
    control.seen("streamIsCapturing", stream)
    return graphs.capturing(streams.find(stream))


def eventQuery(event):
    return events.query(event)


def eventRecord(event, stream):
    events.record(event, streams.find(stream))
