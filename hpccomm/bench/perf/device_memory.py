"""Arrays in device memory, and how perf measures calls on them: all on one stream.

`hpccomm.bench.perf.sources` chooses between it and `HostMemory`; both are a `MemoryKind`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm import settings
from hpccomm.backends.nccl.facts import version_text
from hpccomm.bench.perf import memory_use, timing
from hpccomm.bench.perf.memory_kind import DEVICE, NCCL, Array, DeviceDescription
from hpccomm.bench.perf.timing import Call, RankTimes
from hpccomm.dtypes import DType
from hpccomm.errors import BackendUnavailable, CollectiveTimeout
from hpccomm.memory.cuda import library, nvml, streams
from hpccomm.memory.cuda.identity import identify
from hpccomm.memory.cuda.timing import Marks
from hpccomm.results import origin
from hpccomm.results.schema import Config, DeviceInfo
from hpccomm.runtime.lifetime import no_garbage_collection
from hpccomm.runtime.waiting import Gate, wait

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_NO_SAMPLES = np.zeros(0)


class DeviceMemory:
    """CuPy arrays, and calls that return when they are on the stream.

    Parameters
    ----------
    comm : Communicator
        Whose device it is.
    config : Config
        The flags.
    timeout : float
        Seconds that the host waits for the stream; 0 for ``HPCCOMM_TIMEOUT``.

    Raises
    ------
    BackendUnavailable
        If the communicator has no way for device arrays.
    """

    name = DEVICE
    usage = "GPU memory usage"
    at_once = True

    def __init__(self, comm: "Communicator", config: Config, timeout: float) -> None:
        backend = comm.backends["cuda"]
        if backend is None or comm.device is None:
            why = library.unavailable() or "it communicates only host arrays"
            raise BackendUnavailable(
                f"device arrays cannot be measured over {comm.backends['host']}: {why}"
            )
        self._comm = comm
        self.barrier: Call = comm.barrier
        self._config = config
        self.backend = backend
        self.multiplies = backend == NCCL
        self._device = comm.device
        self._timeout = timeout or float(str(settings.read("HPCCOMM_TIMEOUT")))
        self.slots: tuple[Any, ...] = ()
        self._cupy = library.cupy()
        self._runtime = self._cupy.cuda.runtime
        with streams.on_device(self._device):
            stream = self._cupy.cuda.Stream
            self._stream = stream.null if config.stream_null else stream(non_blocking=True)
            self._done = streams.owned_event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context in which the device and the stream are current."""
        with streams.on_device(self._device), self._stream:
            yield

    def some(self, count: int, dtype: DType) -> Array:
        """Return an array like the measured ones."""
        return self._cupy.empty(count, dtype)

    # --- facts ------------------------------------------------------------------------------------

    def description(self) -> DeviceDescription:
        """Return the header's words about this rank's device."""
        device = identify(self._device)
        link = nvml.fastest_link(device.uuid)
        more = DeviceInfo(device.uuid) if link is None else DeviceInfo(device.uuid, *link)
        return DeviceDescription(device.number, device.pci, device.name, device.driver, more)

    def versions(self) -> dict[str, str]:
        """Return the versions of CuPy, CUDA and, where it is used, NCCL."""
        device = identify(self._device)
        result = {
            "cupy": str(self._cupy.__version__),
            "cuda_driver": device.driver,
            "cuda_runtime": device.runtime,
        }
        if self.backend == NCCL:
            result["nccl"] = version_text(self._cupy.cuda.nccl.get_version())
        return result

    def capacity(self) -> tuple[str, int]:
        """Return this rank's device, and the bytes that are free on it."""
        with streams.on_device(self._device):
            # What CuPy keeps of arrays that are gone counts as taken otherwise.
            self._cupy.get_default_memory_pool().free_all_blocks()
        return f"device {identify(self._device).pci} of {origin.host()}", self._memory()[0]

    def in_use(self) -> int:
        """Return the bytes of the device that are in use by all programs."""
        free, total = self._memory()
        return total - free

    def _memory(self) -> tuple[int, int]:
        with streams.on_device(self._device):
            free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    # --- arrays -----------------------------------------------------------------------------------

    def allocate(self, largest: int) -> None:
        """Make the slots."""
        size = memory_use.slot_bytes(largest, self._config.unalign)
        nbytes = memory_use.arena_bytes(size)
        if self._config.local_register:
            arena: Any = self._comm.empty(nbytes, np.uint8, device=self._device)
        else:
            arena = self._cupy.empty(nbytes, np.uint8)
        self._zero(arena.data.ptr, nbytes)
        self.slots = memory_use.cut(arena, arena.data.ptr, size)

    def release(self) -> None:
        """Release the slots. Registered memory needs its communicator for that."""
        self.slots = ()

    def view(self, slot: int, first: int, count: int, dtype: DType) -> Array:
        """Return elements of a slot."""
        return self.slots[slot][first : first + count * dtype.itemsize].view(dtype)

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""
        self._zero(self.slots[slot].data.ptr, nbytes)

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves, twice as many at a time."""
        pointer = self.slots[slot].data.ptr + first
        done = 1
        while done < times:
            more = min(done, times - done)
            self._move(pointer + done * nbytes, pointer, more * nbytes)
            done += more

    def copy(self, out: Array, x: Array) -> None:
        """Copy an array, on the stream."""
        self._move(out.data.ptr, x.data.ptr, x.nbytes)

    def put(self, array: Array, at: int, block: NDArray[Any]) -> None:
        """Write a block, made on the host, into an array."""
        block = np.ascontiguousarray(block)
        pointer = array.data.ptr + at * block.itemsize
        self._move(pointer, block.ctypes.data, block.nbytes, self._runtime.memcpyHostToDevice)
        self._runtime.streamSynchronize(self._stream.ptr)  # the block is made anew after this

    def read(self, array: Array, at: int, count: int) -> NDArray[Any]:
        """Return elements of an array on the host, where they are compared like host arrays."""
        got = np.empty(count, array.dtype)
        pointer = array.data.ptr + at * got.itemsize
        self._move(got.ctypes.data, pointer, got.nbytes, self._runtime.memcpyDeviceToHost)
        self._runtime.streamSynchronize(self._stream.ptr)
        return got

    def _move(self, to: int, source: int, nbytes: int, kind: int | None = None) -> None:
        if nbytes:
            kind = self._runtime.memcpyDeviceToDevice if kind is None else kind
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._stream.ptr)

    def _zero(self, pointer: int, nbytes: int) -> None:
        if nbytes:
            self._runtime.memsetAsync(pointer, 0, nbytes, self._stream.ptr)

    # --- time -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Block until the stream has done all its work."""
        event = self._done.ptr
        streams.record(event, self._stream.ptr)
        ready = partial(streams.ready, event)
        wait(ready, timeout=self._timeout, gate=Gate(), expired=self._expired)

    def _expired(self, elapsed: float) -> CollectiveTimeout:
        self._comm.abort()
        return CollectiveTimeout(
            f"the measured calls were not done after {elapsed:.1f} s, and their deadline is "
            f"{self._timeout:g} s (-T/--timeout): a rank did not take part, or the block is too long; "
            "look at the other ranks, give a longer deadline, or fewer repetitions (-n)",
            communicator=self._comm.name,
            rank=self._comm.rank,
            elapsed=elapsed,
        )

    @property
    def after(self) -> Call | None:
        """The function called after each operation, in the time."""
        return {1: self._meet, 2: self.settle}.get(self._config.blocking_collectives)

    def time(self, calls: Sequence[Call], samples: bool) -> tuple[RankTimes, Call | None]:
        """Time a block by the host's clock, until the stream is done; samples are CUDA's."""
        if self._config.graph:
            return self._replayed(calls, samples)
        if self._config.blocking_collectives == 3:
            issued, seconds = timing.one_by_one(calls, settle=self.settle, after=self.barrier)
            return RankTimes(float(seconds.mean()), float(issued.mean()), seconds), None
        return self._back_to_back(calls, samples), None

    def _meet(self) -> None:
        self.settle()
        self.barrier()

    def _back_to_back(self, calls: Sequence[Call], samples: bool) -> RankTimes:
        number, stream = len(calls), self._stream.ptr
        # An event between two calls is work for the stream.
        marks = Marks(number + 1) if samples else None
        with no_garbage_collection():
            began = perf_counter()
            if marks is None:
                for call in calls:
                    call()
            else:
                marks.set(0, stream)
                for position, call in enumerate(calls, 1):
                    call()
                    marks.set(position, stream)
            issued = perf_counter()
            self.settle()
            done = perf_counter()
        seconds = _NO_SAMPLES if marks is None else marks.seconds()
        return RankTimes((done - began) / number, (issued - began) / number, seconds)

    def _replayed(self, calls: Sequence[Call], samples: bool) -> tuple[RankTimes, Call]:
        """Record the block into a graph, and time its launches (``-G``)."""
        with no_garbage_collection():
            graph = self._captured(calls)
        self.barrier()  # as after other preparations

        def launch() -> None:
            graph.launch(self._stream)

        times = self._back_to_back([launch] * self._config.graph, samples)
        return times.of_each(len(calls)), launch

    def _captured(self, calls: Sequence[Call]) -> Any:
        # In this mode, CUDA calls of other threads, such as the watchdog, do not end the capture,
        # and this thread may allocate: each recorded operation keeps its scratch.
        self._stream.begin_capture(self._runtime.streamCaptureModeRelaxed)
        try:
            for call in calls:
                call()
        except BaseException:
            with suppress(self._runtime.CUDARuntimeError):  # the first error is raised
                self._stream.end_capture()
            raise
        return self._stream.end_capture()
