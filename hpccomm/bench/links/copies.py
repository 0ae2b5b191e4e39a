"""Bandwidth of copies between the host and its devices, within a device, and between devices.

The definitions are nvbandwidth's (https://github.com/NVIDIA/nvbandwidth, copies by copy engines).
CUDA's events time copies that are back to back on a stream, after some untimed copies. For both
directions at once, a second stream copies in the other direction at the same time, and the figure
is that of one direction. Copies to peers are writes: the stream is the source's.

`hpccomm.cli.copies` has `hpccomm.bench.links.measuring` run and print them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.links.measuring import Rate, Repeated
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda import nvml
from hpccomm.memory.cuda.identity import identify
from hpccomm.memory.cuda.library import cupy, visible_devices
from hpccomm.memory.cuda.pinned import PinnedBlock
from hpccomm.memory.cuda.streams import make_stream, on_device, passed
from hpccomm.memory.cuda.timing import Marks
from hpccomm.results.rates import path_fact
from hpccomm.runtime.lifetime import no_garbage_collection
from hpccomm.runtime.waiting import Gate, wait
from hpccomm.units import numbers

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_WARM = 4
"""Untimed copies before the timed ones."""

_POISON = 255
"""Is in no pattern."""

_DEADLINE = 120.0


class CopyEnds(NamedTuple):
    """Where a copy begins and ends: device numbers, None for the host."""

    source: int | None
    target: int | None
    pinned: bool = True
    both: bool = False

    @property
    def peers(self) -> bool:
        """Whether these are two devices."""
        return None not in self[:2] and self.source != self.target

    @property
    def device(self) -> int:
        """Whose stream it is on."""
        return self.source if self.source is not None else self.target or 0


def plan(comm: "Communicator", sizes: Sequence[int]) -> tuple[list[Rate], dict[str, str]]:
    """Return the rates to measure, and the path of each copy. Collective.

    Raises
    ------
    UsageError
        If there are several ranks on a node, or nodes do not have equally many devices.
    """
    gpus = [identify(number) for number in range(visible_devices())]
    if comm.local_size > 1 or len(set(comm.all_gather_object(len(gpus)))) > 1:
        raise UsageError(
            "perf copy is for one rank a node, on nodes with equally many GPUs; start it with srun --ntasks-per-node=1"
        )
    allowed, rates = os.sched_getaffinity(0), []
    facts = {f"GPU {gpu.number}": f"{gpu.name} {gpu.pci}, CUDA {gpu.driver}" for gpu in gpus}
    for what, where, ends in _all(len(gpus)):
        uuids = [gpus[end].uuid for end in ends[:2] if end is not None]
        link = nvml.path(uuids[0], uuids[1] if len(uuids) > 1 else None)
        if ends.peers and not cupy().cuda.runtime.deviceCanAccessPeer(*ends[:2]):
            link = nvml.GpuLink("through the host's memory", 0.0)
        if link is not None:
            peak = f": {link.peak:.4g} GB/s" if link.peak else ""
            facts[path_fact(what, where)] = f"{link.name}{peak}"
        near = allowed
        with suppress(OSError, ValueError):  # sysfs may not say it
            local = Path("/sys/bus/pci/devices", gpus[ends.device].pci, "local_cpulist")
            near = allowed.intersection(numbers(local.read_text().strip())) or allowed
        rates += [Rate(what, where, size, partial(_repeat, ends, near, size)) for size in sizes]
    return rates, facts


def _all(number: int) -> Iterator[tuple[str, str, CopyEnds]]:
    """Yield each rate's name, its place, and the two ends of its copies."""
    kinds = ("pinned", True, False), ("pinned, both ways", True, True), ("pageable", False, False)
    for gpu in range(number):
        for how, *kind in kinds:
            yield "host_to_device", f"GPU {gpu}, {how}", CopyEnds(None, gpu, *kind)
            yield "device_to_host", f"GPU {gpu}, {how}", CopyEnds(gpu, None, *kind)
        yield "device_copy", f"GPU {gpu}", CopyEnds(gpu, gpu)
        for other in (each for each in range(number) if each != gpu):
            where, ends = f"GPU {gpu} to GPU {other}", CopyEnds(gpu, other)
            yield "device_to_device", where, ends
            yield "device_to_device", f"{where}, both ways", ends._replace(both=True)


class _Copying:
    """One direction: its memory at both ends, and its stream."""

    def __init__(self, ends: CopyEnds, pattern: NDArray[np.uint8]) -> None:
        self._runtime, self._ends, self._pattern = cupy().cuda.runtime, ends, pattern
        self.stream = make_stream(ends.device, high_priority=False)
        (self._from, *self._kept), (self._to, *self._more) = map(self._memory, ends[:2])
        poison = np.full_like(pattern, _POISON)
        self._move(ends.source, self._from, pattern.ctypes.data)
        self._move(ends.target, self._to, poison.ctypes.data)
        if ends.peers:  # without access, or if there is access already, it raises; copies work
            with on_device(ends.device), suppress(self._runtime.CUDARuntimeError):
                self._runtime.deviceEnablePeerAccess(ends.target)

    def _memory(self, end: int | None) -> tuple[int, object]:
        """Return the address of new memory, and what keeps it."""
        nbytes = self._pattern.size
        if end is not None:
            with on_device(end):
                memory = cupy().cuda.alloc(nbytes)
            return memory.ptr, memory
        pinned, device = self._ends.pinned, self._ends.device
        host = PinnedBlock(nbytes, device).bytes if pinned else np.empty(nbytes, np.uint8)
        return host.ctypes.data, host

    def _move(self, end: int | None, to: int, source: int) -> None:
        """Copy to or from the memory at an end, and wait for it."""
        size, kind = self._pattern.size, self._runtime.memcpyDefault
        with on_device(self._ends.device if end is None else end):
            self._runtime.memcpy(to, source, size, kind)

    def put(self) -> None:
        """Put a copy on the stream."""
        size, kind = self._pattern.size, self._runtime.memcpyDefault
        self._runtime.memcpyAsync(self._to, self._from, size, kind, self.stream.ptr)

    def wrong(self) -> int:
        """Return in how many bytes target and source differ, after all copies."""
        done = passed(self.stream.ptr, self._ends.device)
        wait(done, timeout=_DEADLINE, gate=Gate(), expired=_expired)
        came = np.empty_like(self._pattern)
        self._move(self._ends.target, came.ctypes.data, self._to)
        return int(np.count_nonzero(came != self._pattern))


def _repeat(ends: CopyEnds, cores: set[int], nbytes: int, times: int) -> Repeated:
    """Measure copies, with the host's memory next to these cores."""
    os.sched_setaffinity(0, cores)
    pattern = np.tile(np.arange(251, dtype=np.uint8), nbytes // 251 + 1)[:nbytes]
    back = ends._replace(source=ends.target, target=ends.source)
    with on_device(ends.device), no_garbage_collection():
        try:
            ways = [_Copying(each, pattern) for each in (ends, back)[: 1 + ends.both]]
        except MemoryError as error:
            raise UsageError(f"{nbytes} bytes: {error}; give a smaller size by -b") from error
        marks = Marks(times + 1)
        for number in range(-_WARM, 2 * times):
            if 0 <= number <= times:
                marks.set(number, ways[0].stream.ptr)
            for way in ways[number >= times :]:  # the other one lasts longer, however fast it is
                way.put()
        wrong = sum(way.wrong() for way in ways)
        return marks.seconds(), wrong


def _expired(elapsed: float) -> CommunicationError:
    return CommunicationError(
        f"copies were not done after {elapsed:.0f} s: a device or its link does not answer; look for its Xid in the "
        "kernel's log, or give fewer repetitions (-n) or smaller sizes (-b)"
    )
