"""The measured arrays, in host or device memory, and the memory that a sweep needs, may take and has used.

All of perf measures through `MemoryKind`: its methods make, fill, time and compare arrays. A sweep refuses sizes that
do not fit into the memory, and reports the used memory at its end. `tune` and `simulate` use the checks, too.
"""

import math
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm import settings
from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.facts import version_text
from hpccomm.errors import BackendUnavailable, CollectiveTimeout, UsageError
from hpccomm.memory.cuda import library, streams
from hpccomm.memory.cuda.library import identify
from hpccomm.results import facts
from hpccomm.results.schema import Config, DeviceInfo
from hpccomm.runtime.service import no_garbage_collection
from hpccomm.runtime.waiting import Gate, wait
from hpccomm.tools import nvml
from hpccomm.tools.doctor.reading import Reading, fields
from hpccomm.tools.doctor.sources.limits import groups
from hpccomm.tools.perf import isolated, patterns
from hpccomm.tools.perf.facts import ON_HOST, DeviceDescription
from hpccomm.tools.perf.isolated import Call, RankTimes
from hpccomm.tools.perf.options import Options
from hpccomm.tools.perf.patterns import DEVICE, HOST, NCCL
from hpccomm.units import grouped

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

SLOTS = 3
"""Arrays of the largest size that a rank needs: input, output, and output of the last repetition."""

STAGING = 1
"""Arrays of the largest size that the library may allocate for itself."""

PAGE = 4096
LARGEST_ITEM = 16


class Need(NamedTuple):
    """The needed memory of one rank.

    Attributes
    ----------
    node : int
        The rank's node.
    where : str
        The place of the memory: the name of the node, or a device of it.
    needed, available : int
        Bytes that the rank will take, and bytes of that place that all ranks together can take.
    """

    node: int
    where: str
    needed: int
    available: int


def require(needs: Sequence[Need], largest: int, batched: int = 1) -> None:
    """Raise unless each node, or device, has the memory that its ranks need.

    Parameters
    ----------
    needs : sequence of Need
        The needs of all ranks.
    largest : int
        The largest size, ``-e``.
    batched : int
        Number of operations that run at the same time, each on its own arrays.

    Raises
    ------
    UsageError
        If memory is lacking; the message says which size would fit.
    """
    for here in grouped(((need.node, need.where), need) for need in needs).values():
        wanted = sum(need.needed for need in here)
        offered = min(need.available for need in here)
        if wanted > offered:
            fits = max(0, offered // (len(here) * (SLOTS + STAGING)) - PAGE) // batched
            times = f" for each of {batched} in a batch" if batched > 1 else ""
            raise UsageError(
                f"-e/--maxbytes {largest}: {len(here)} ranks on {here[0].where} would take "
                f"{spelled(wanted)} ({SLOTS} arrays each, {STAGING} more for the library{times}) and "
                f"{spelled(offered)} are available; "
                f"give at most {fits}, or fewer ranks there"
            )


def available() -> int:
    """Return the bytes available on this node, within the limits of its control groups."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # counts what the kernel can reclaim
        lines = fields(meminfo.read_text())
        free = int(lines["MemAvailable"].split()[0]) << 10 if "MemAvailable" in lines else free
    return max(0, min([free, *left_by_groups(Path("/"))]))


def left_by_groups(system: Path) -> list[int]:
    """Return the bytes that each control group of this process still allows, such as a Slurm job's.

    Parameters
    ----------
    system : Path
        The file system's root.
    """
    try:
        around = groups(Reading(system), "memory")
        limited = [group for group in around if group.limit < math.inf]
        return [int(group.limit - group.number("used")) for group in limited]
    except (LookupError, OSError, ValueError):  # a kernel without control groups
        return []


def report(usages: Sequence[dict[str, int]], title: str) -> str:
    """Return the line that ``-M`` asks for.

    Parameters
    ----------
    usages : sequence of dict of str to int
        For each rank, the bytes that each stage added. The largest of all ranks is printed.
    title : str
        Beginning of the line.
    """
    most = {stage: max(usage[stage] for usage in usages) for stage in usages[0]}
    parts = [f"{stage} {spelled(amount)}" for stage, amount in most.items()]
    parts.append(f"Total  {spelled(sum(most.values()))}")
    return f"# {title:20s} : {' | '.join(parts)}\n"


def spelled(amount: int) -> str:
    """Return bytes as text with three digits and a binary unit, as nccl-tests' memory report has it."""
    units = ((30, " GB"), (20, " MB"), (10, " KB"))
    shift, unit = next((each for each in units if abs(amount) >= 1 << each[0]), (0, " B"))
    value = amount / (1 << shift)
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}{unit}"


Array = Any
"""A 1-D array of NumPy or CuPy."""

_NO_SAMPLES = np.zeros(0)


class HostMemory:
    """Arrays of one rank for one communicator, with methods that make, fill, time and compare them.

    The arrays are NumPy's, and calls on them return when they are done. `DeviceMemory` does the same with
    CuPy's arrays.

    Attributes
    ----------
    name : str
        `HOST` or `DEVICE`.
    usage : str
        Title of the line that reports the memory in use.
    at_once : bool
        Whether the operations of a batch run at the same time, so that each needs its own arrays.
    multiplies : bool
        Whether averages of floats multiply the contributions before they are added (see `CheckedData`).
    module : module
        NumPy or CuPy.
    slots : tuple of array
        The measured memory, as bytes. Another communicator of the same ranks may use it too. Registered
        memory needs its communicator until it is released.
    backend : str
        Name of the backend that moves such arrays, as it is printed.
    barrier : callable
        A barrier of all measuring ranks: of the communicator, or of all groups.
    """

    name = HOST
    usage = "Host memory usage"
    at_once = False
    multiplies = False
    module: Any = np

    def __init__(self, comm: "Communicator", options: Options) -> None:
        self._comm, self._config = comm, options.config
        self.barrier: Call = comm.barrier
        self.backend = comm.backends["host"] or ""
        self.slots: tuple[Array, ...] = ()

    def entered(self) -> AbstractContextManager[None]:
        """Return the context of all other methods."""
        return nullcontext()

    def description(self) -> DeviceDescription:
        """Return this rank's device for the header. Local."""
        return ON_HOST

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that only such arrays need. Local."""
        return {}

    def capacity(self) -> tuple[str, int]:
        """Return the name of the place from which memory is taken, and the bytes available there."""
        return facts.host(), available()

    def in_use(self) -> int:
        """Return the bytes in use, for ``-M``: on the host, the largest memory of this process so far."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    def arena(self, nbytes: int) -> tuple[Array, int]:
        """Return new memory for all slots, full of zeros, and its address. Local."""
        empty = self._comm.empty if self._config.local_register else np.empty
        arena: Array = empty(nbytes, np.uint8)
        arena[:] = 0
        return arena, arena.ctypes.data

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""
        self.slots[slot][:nbytes] = 0

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves, so that there are `times` copies of them."""
        every = self.slots[slot][first : first + times * nbytes].reshape(times, nbytes)
        every[1:] = every[0]

    copy = staticmethod(np.copyto)
    put = staticmethod(patterns.put_block)
    read = staticmethod(patterns.read_block)

    def settle(self) -> None:
        """Do nothing: a call on host arrays is done when it returns."""

    @property
    def after(self) -> Call | None:
        """The function that is called after each operation, within the measured time (``-z``)."""
        return self.barrier if self._config.blocking_collectives == 1 else None

    def time(self, calls: Sequence[Call], samples: bool) -> RankTimes:
        """Time a block of calls, and each of them if `samples` is true. Collective; blocks until all is done."""
        if self._config.blocking_collectives == 3:
            _, seconds = isolated.one_by_one(calls, after=self.barrier)
        else:
            seconds = isolated.back_to_back(calls)
        mean = float(seconds.mean())
        return RankTimes(mean, mean, seconds)


class Marks:
    """Points on a stream, set one after the other. Their events end with the object.

    Parameters
    ----------
    count : int
        Number of points.
    """

    def __init__(self, count: int) -> None:
        cuda = library.cupy().cuda
        self._runtime = cuda.runtime
        self._events = [cuda.Event() for _ in range(count)]

    def set(self, index: int, stream: int) -> None:
        """Set a point after all work that is on the stream so far. Does not block the host."""
        self._runtime.eventRecord(self._events[index].ptr, stream)

    def seconds(self) -> NDArray[np.float64]:
        """Return the seconds from each point to the next, when the stream has passed the last one.

        Returns
        -------
        ndarray of float64, shape (count - 1,)
        """
        elapsed = self._runtime.eventElapsedTime
        between = zip(self._events[:-1], self._events[1:], strict=True)
        return np.array([elapsed(start.ptr, end.ptr) for start, end in between]) * 1e-3


class DeviceMemory:
    """CuPy arrays of one rank; calls on them return when they are on the stream. See `HostMemory`.

    Parameters
    ----------
    comm : Communicator
        The communicator, whose device is used.
    options : Options
        The flags. Their `timeout` is the number of seconds that the host waits for the stream; 0 for
        ``HPCCOMM_TIMEOUT``.

    Raises
    ------
    BackendUnavailable
        If the communicator cannot move device arrays.
    """

    name = DEVICE
    usage = "GPU memory usage"
    at_once = True

    def __init__(self, comm: "Communicator", options: Options) -> None:
        backend = comm.backends["cuda"]
        if backend is None or comm.device is None:
            why = library.unavailable() or "it communicates only host arrays"
            raise BackendUnavailable(
                f"device arrays cannot be measured over {comm.backends['host']}: {why}"
            )
        self._comm, self._config = comm, options.config
        self.barrier: Call = comm.barrier
        self.backend = backend
        self.multiplies = backend == NCCL
        self.slots: tuple[Array, ...] = ()
        self.module = library.cupy()
        self._device = comm.device
        self._timeout = options.timeout or float(str(settings.read("HPCCOMM_TIMEOUT")))
        self._runtime = self.module.cuda.runtime
        with streams.on_device(self._device):
            stream = self.module.cuda.Stream
            self._stream = stream.null if self._config.stream_null else stream(non_blocking=True)
            self._done = streams.make_event()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Return a context in which the device and the stream are current."""
        with streams.on_device(self._device), self._stream:
            yield

    # --- facts ------------------------------------------------------------------------------------

    def description(self) -> DeviceDescription:
        """Return the header's words about this rank's device."""
        device = identify(self._device)
        link = nvml.path(device.uuid)
        more = DeviceInfo(device.uuid) if link is None else DeviceInfo(device.uuid, *link)
        return DeviceDescription(device.number, device.pci, device.name, device.driver, more)

    def versions(self) -> dict[str, str]:
        """Return the versions of CuPy, CUDA and, where it is used, NCCL."""
        device = identify(self._device)
        result = {
            "cupy": str(self.module.__version__),
            "cuda_driver": device.driver,
            "cuda_runtime": device.runtime,
        }
        if self.backend == NCCL:
            result["nccl"] = version_text(libnccl.version())
        return result

    def capacity(self) -> tuple[str, int]:
        """Return this rank's device, and the bytes that are free on it."""
        # CuPy keeps the memory of freed arrays, which would otherwise count as taken.
        self.module.get_default_memory_pool().free_all_blocks()
        free, _ = self._runtime.memGetInfo()
        return f"device {identify(self._device).pci} of {facts.host()}", int(free)

    def in_use(self) -> int:
        """Return the bytes of the device that are in use by all programs."""
        free, total = self._runtime.memGetInfo()
        return int(total - free)

    # --- arrays -----------------------------------------------------------------------------------

    def arena(self, nbytes: int) -> tuple[Array, int]:
        """Return new memory, and its address."""
        if self._config.local_register:
            arena: Array = self._comm.empty(nbytes, np.uint8, device=self._device)
        else:
            arena = self.module.empty(nbytes, np.uint8)
        self._zero(arena.data.ptr, nbytes)
        return arena, arena.data.ptr

    def clear(self, slot: int, nbytes: int) -> None:
        """Put zeros at the start of a slot."""
        self._zero(self.slots[slot].data.ptr, nbytes)

    def spread(self, slot: int, first: int, nbytes: int, times: int) -> None:
        """Repeat bytes of a slot behind themselves, each time twice as many."""
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
        to, kind = array.data.ptr + at * block.itemsize, self._runtime.memcpyHostToDevice
        self._move(to, block.ctypes.data, block.nbytes, kind)
        self._runtime.streamSynchronize(self._stream.ptr)  # the caller reuses the block

    def read(self, array: Array, at: int, count: int) -> NDArray[Any]:
        """Return elements of an array on the host, where they are compared like host arrays."""
        got, kind = np.empty(count, array.dtype), self._runtime.memcpyDeviceToHost
        self._move(got.ctypes.data, array.data.ptr + at * got.itemsize, got.nbytes, kind)
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
        streams.record(self._done, self._stream.ptr)
        ready = partial(streams.ready, self._done)
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
        """The function that is called after each operation, within the measured time."""
        return {1: self._meet, 2: self.settle}.get(self._config.blocking_collectives)

    def time(self, calls: Sequence[Call], samples: bool) -> RankTimes:
        """Time a block by the host's clock, until the stream is done. Samples are timed by CUDA's events."""
        if self._config.blocking_collectives == 3:
            issued, seconds = isolated.one_by_one(calls, settle=self.settle, after=self.barrier)
            return RankTimes(float(seconds.mean()), float(issued.mean()), seconds)
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

    def _meet(self) -> None:
        self.settle()
        self.barrier()

    def recorded(self, calls: Sequence[Call]) -> Call:
        """Record calls into a CUDA graph (``-G``); return a function that launches it."""
        # In this mode, CUDA calls of other threads, such as the watchdog, do not end the capture,
        # and this thread may allocate: each recorded operation keeps its scratch.
        with no_garbage_collection():
            self._stream.begin_capture(self._runtime.streamCaptureModeRelaxed)
            try:
                for call in calls:
                    call()
            except BaseException:
                with suppress(self._runtime.CUDARuntimeError):  # the first error is raised
                    self._stream.end_capture()
                raise
            graph = self._stream.end_capture()
        return lambda: graph.launch(self._stream)


MemoryKind = HostMemory | DeviceMemory
"""Arrays of one kind, as `HostMemory` describes them."""


def allocate(comm: "Communicator", memory: MemoryKind, options: Options) -> None:
    """Make the slots, each at the beginning of a page; raise on all ranks if one lacks the memory. Collective."""
    largest, config = options.sizes.largest, options.config
    batched = config.aggregated_iterations if memory.at_once else 1
    where, available = memory.capacity()
    # The largest size, the shift of -u, and the rest of a page.
    bytes_of_slot = max(batched * largest, LARGEST_ITEM) + LARGEST_ITEM * config.unalign
    size = -(-bytes_of_slot // PAGE) * PAGE
    need = Need(comm.node, where, (SLOTS + STAGING) * size, available)
    require(comm.all_gather_object(need), largest, batched)
    arena, address = memory.arena(SLOTS * size + PAGE)
    start = -address % PAGE
    memory.slots = tuple(arena[start + k * size :][:size] for k in range(SLOTS))


def settings_in_effect(
    comm: "Communicator", memory: MemoryKind, options: Options
) -> tuple[Config, tuple[str, ...]]:
    """Return the settings in effect, and the names of the settings that could not be followed. Collective."""
    config = options.config
    if not config.local_register or memory.name == HOST:
        return config, ()
    registered = comm.explain("all_reduce", memory.slots[0][:1]).registered
    if all(comm.all_gather_object(registered)):
        return config, ()
    # `Communicator.empty` gives ordinary arrays if it has no registered memory.
    return replace(config, local_register=0), ("registered memory (-R)",)
