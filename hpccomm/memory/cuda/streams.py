"""Streams and events, by their CUDA handles. Everything that orders device work uses them."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeGuard

from hpccomm.contracts.transport import Steps
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda.arrays import CUPY, INTERFACE, TORCH, Queue, kind_of
from hpccomm.memory.cuda.library import cupy, driver_library

NOT_READY = 600
"""cudaErrorNotReady."""

CAPTURE_ERRORS = range(900, 909)
"""cudaErrorStreamCaptureUnsupported and similar: CUDA does not answer while a graph is captured."""

CAPTURED_EVENT = 907
"""cudaErrorCapturedEvent: the event was recorded into a graph, so that the device never reaches it."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class _Foreign:
    """A stream known only by its number, with the protocol that CuPy accepts."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


LEGACY = (0, 1)
"""Numbers of the legacy default stream, which never ends."""

_POINTERS = 1 << 64
"""Pointers are less than this."""

PER_THREAD = 2
"""Number of the per-thread default stream. It is another stream in each thread."""


def user_stream(stream: object) -> Queue:
    """Return the stream that the user passed as `stream=`.

    Parameters
    ----------
    stream : object
        A CuPy stream, an integer, or an object with ``__cuda_stream__`` (or PyTorch's
        ``cuda_stream``).

    Raises
    ------
    UsageError
        If it is not a stream.
    """
    if _is_number(stream):
        return stream, "default" if stream in LEGACY else None
    protocol = getattr(stream, "__cuda_stream__", None)
    if callable(protocol):
        answer = protocol()
        if isinstance(answer, tuple) and len(answer) == 2 and _is_number(answer[1]):
            return _queue(answer[1], stream)
    for attribute in ("ptr", "cuda_stream"):
        pointer = getattr(stream, attribute, None)
        if _is_number(pointer):
            return _queue(pointer, stream)
    raise UsageError(
        f"stream is {stream!r}; give a CuPy stream, its pointer as an integer, or an object with "
        "__cuda_stream__"
    )


def _is_number(stream: object) -> TypeGuard[int]:
    """Return whether it can be a stream's pointer. True equals a number of the default stream."""
    return isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < _POINTERS


def _queue(pointer: int, stream: object) -> Queue:
    """Return a stream that its object keeps alive. A per-thread stream must not be used later."""
    return pointer, None if pointer == PER_THREAD else stream


def current(x: Any, device: int, kind: int | None = None) -> Queue:
    """Return the current stream of the framework of `x`, a device array on `device`.

    `kind` is that of `DeviceArray`, where it is known.
    """
    return _current(kind, device) if kind in (CUPY, TORCH) else finder(x, device)()


def finder(x: Any, device: int) -> Callable[[], Queue]:
    """Return a function that returns the current stream of the framework of `x`."""
    kind = kind_of(x)
    number = x.__cuda_array_interface__.get("stream") if kind == INTERFACE else None
    if number is None:
        return partial(_current, kind, device)
    queue = user_stream(int(number))  # 1 is the legacy default stream, as 0 is to CUDA
    return lambda: queue


def _current(kind: int | None, device: int) -> Queue:
    """Return the current stream of PyTorch, or of CuPy."""
    if kind == TORCH:
        stream = sys.modules["torch"].cuda.current_stream(device)
        return _queue(stream.cuda_stream, stream)
    stream = cupy().cuda.get_current_stream(device)
    return _queue(stream.ptr, stream)


@contextmanager
def used(stream: int, device: int) -> Iterator[None]:
    """Make a stream, and its device, CuPy's current ones."""
    with on_device(device), cupy().cuda.Stream.from_external(_Foreign(stream)):
        yield


@contextmanager
def used_for(x: Any, stream: int, device: int) -> Iterator[None]:
    """Make a stream the current one of the framework of `x`, so that new memory is ready on it."""
    if kind_of(x) != TORCH:
        with used(stream, device):
            yield
        return
    cuda = sys.modules["torch"].cuda
    with cuda.stream(cuda.ExternalStream(stream, device=device)):
        yield


def undisturbed(stream: int) -> bool:
    """Return whether another thread may record an event on the stream without ending a capture.

    It may not while a graph is captured from the stream, because the event would become a part of it.
    The default stream waits for other streams, so it may not be used while one of them is captured.
    """
    runtime = cupy().cuda.runtime
    try:
        return not any(runtime.streamIsCapturing(each) for each in (runtime.streamLegacy, stream))
    except RuntimeError:  # CUDA's, for the default stream then; CuPy's, of a capture that failed
        return False


def capture_query(device: int) -> Callable[[int], bool]:
    """Return the fastest function that tests whether a graph is captured from a stream of a device.

    On another device it would make a context, and ask about that one's default stream.
    """
    runtime = cupy().cuda.runtime
    current, query = runtime.getDevice, runtime.streamIsCapturing

    def capturing(stream: int) -> bool:
        if current() == device:
            return bool(query(stream))
        with on_device(device):
            return bool(query(stream))

    return capturing


def look_from_here(device: int) -> None:
    """Prepare this thread, which is hpccomm's own, to query events of a device at any time.

    The device stays current in this thread, because setting another one back would make a context there.
    If another thread captures a graph in the mode "global", PyTorch's default, a query would end the
    capture unless the mode of this thread is "relaxed".
    """
    if cupy().cuda.runtime.getDevice() != device:
        _make_current(device)
    _exchange_mode(ctypes.c_int(_RELAXED))


def _make_current(device: int) -> None:
    """Make a device this thread's current one as ``setDevice`` does, in which CuPy holds the interpreter.

    The driver may keep that call waiting for a thread that is stuck in a launch.
    """
    context = _context(device)
    if context is None or driver_library().cuCtxSetCurrent(ctypes.c_void_p(context)):
        cupy().cuda.runtime.setDevice(device)


@cache
def _context(device: int) -> int | None:
    """Return a device's primary context, which is the runtime's, and is kept from now on; or None."""
    context = ctypes.c_void_p()
    driver_library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    return context.value


def _exchange_mode(mode: ctypes.c_int) -> None:
    """Exchange this thread's capture mode and `mode`."""
    driver_library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@contextmanager
def relaxed() -> Iterator[None]:
    """Let this thread do in the block what a capture under way forbids, such as to load a kernel."""
    mode = ctypes.c_int(_RELAXED)
    _exchange_mode(mode)
    try:
        yield
    finally:
        _exchange_mode(mode)


def polled(device: int, start: Callable[[], Steps]) -> Steps:
    """Return steps that use a device, for whichever thread moves them on.

    Each step runs with the device current: in a thread without one, a call of CUDA makes a context on
    device 0. And it ends no capture that another thread, or this one, has begun: its queries are allowed
    in the mode "relaxed" alone. `start` is called at once.
    """

    def moved(step: Callable[[], Any]) -> Any:
        with on_device(device), relaxed():
            return step()

    steps = moved(start)

    def each() -> Steps:
        while (progress := moved(lambda: next(steps, None))) is not None:
            yield progress

    return each()


def _has_context(device: int) -> bool:
    """Return whether this process has used a device; True if the driver does not tell."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    state = driver_library().cuDevicePrimaryCtxGetState(
        device, ctypes.byref(flags), ctypes.byref(active)
    )
    return state != 0 or bool(active.value)


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make a device the current one in this thread during the block.

    The former device becomes current again, unless this process has never used it. From CUDA 12 on,
    that would take some hundred MiB of its memory, on device 0 for every rank.
    """
    runtime = cupy().cuda.runtime
    before = runtime.getDevice()
    if before == device:
        yield
        return
    runtime.setDevice(device)
    try:
        yield
    finally:
        if _has_context(before):
            runtime.setDevice(before)


def make_event() -> Any:
    """Return a new event without time, which ends with the object. `ptr` is its number."""
    return cupy().cuda.Event(disable_timing=True)


def record(event: Any, stream: int) -> None:
    """Record the event after all work that is on the stream so far."""
    cupy().cuda.runtime.eventRecord(event.ptr, stream)


def marked(stream: int) -> Any:
    """Return a new event behind all work that is on the stream so far. CUDA ends it once it has come."""
    event = make_event()
    record(event, stream)
    return event


def order(event: Any, stream: int) -> None:
    """Make all later work on the stream wait for the event."""
    cupy().cuda.runtime.streamWaitEvent(stream, event.ptr)


def follow(stream: int, leader: int, device: int) -> None:
    """Make all later work on a stream of a device wait for the present work of another stream."""
    with on_device(device):  # the stream may be this device's default stream
        order(marked(leader), stream)


def event_status(event: Any) -> int:
    """Return CUDA's answer about an event: 0 once it has come. Ends no capture of any thread.

    The driver is asked directly, because CuPy holds the interpreter during the question: if another
    thread waits in the driver for room on a stream, the question may wait for that thread.
    """
    driver, mode = driver_library(), ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    status: int = driver.cuEventQuery(ctypes.c_void_p(event.ptr))
    if status not in (0, NOT_READY, CAPTURED_EVENT):  # a thread without a context may get no answer
        status = cupy().cuda.runtime.eventQuery(event.ptr)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    return status


def ready(event: Any) -> bool:
    """Return whether an event has come. Never blocks.

    Raises
    ------
    CommunicationError
        If CUDA has failed; the event would never come.
    """
    return come(event_status(event))


def come(status: int) -> bool:
    """Return whether an event of that status has come; raises as `ready`."""
    if status == 0:
        return True
    if status == NOT_READY or status in CAPTURE_ERRORS:
        return False
    error = cupy().cuda.runtime.CUDARuntimeError(status)
    raise CommunicationError(
        f"CUDA has failed while a call was under way: {error}; the device's memory and streams are "
        "lost to this process"
    )


def make_stream(device: int, *, high_priority: bool) -> Any:
    """Return a new CuPy stream that does not wait for the default one. It ends with the object."""
    cuda = cupy().cuda
    with on_device(device):
        # CUDA clamps the priority to its range. Smaller numbers run first.
        return cuda.Stream(non_blocking=True, priority=-100 if high_priority else None)


def passed(stream: int, device: int) -> Callable[[], bool]:
    """Return a test whether a device has done all work put on a stream before this call."""
    with on_device(device):  # the stream may be this device's default stream
        event = marked(stream)
    return lambda: ready(event)
