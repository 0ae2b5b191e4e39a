"""The bandwidths of memory and links without communication: ``hpccomm perf memory`` and ``perf copy``.

All ranks measure a bandwidth at the same time; each is stored as a row, and the table is printed.

Memory: STREAM's Copy and Add, and updates in place, for growing numbers of cores, and for each NUMA node. Arrays are
larger than the caches. A write to memory that was not read makes the cache read it first; STREAM does not count these
reads. An update in place has no such reads, like an all-reduce in shared memory. Each core has a bound thread and
arrays of its own. A page lies in the NUMA node of the core that first writes to it. The threads run at the same time,
because NumPy releases the interpreter lock while it copies and adds.

Copies between the host and its devices, within a device, and between devices: the definitions are nvbandwidth's
(https://github.com/NVIDIA/nvbandwidth, copies by copy engines). CUDA's events time copies that are back to back on a
stream, after some untimed copies. For both directions at once, a second stream copies in the other direction at the
same time, and the figure is that of one direction. Copies to peers are writes: they are on the source's stream.
"""

import math
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle, islice, product, repeat
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hpccomm
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.communicator import Communicator
from hpccomm.errors import CommunicationError, UsageError
from hpccomm.memory.cuda.library import cupy, identify, visible_devices
from hpccomm.memory.cuda.memory import PinnedBlock
from hpccomm.memory.cuda.streams import make_stream, on_device, passed
from hpccomm.results.schema import Config, Row
from hpccomm.results.table import COUNTED, path_fact, rates_text
from hpccomm.results.writer import Writer
from hpccomm.runtime.service import no_garbage_collection
from hpccomm.runtime.waiting import Gate, wait
from hpccomm.tools import nvml
from hpccomm.tools.doctor.reading import read
from hpccomm.tools.doctor.sources import host
from hpccomm.tools.output import Progress, terminal
from hpccomm.tools.perf import facts
from hpccomm.tools.perf.arrays import PAGE, Marks, available, spelled
from hpccomm.tools.perf.facts import figures, on_root
from hpccomm.units import counted, numbers

Repeated = tuple[NDArray[np.float64], int]
"""Seconds of each repetition on this rank, and the number of wrong elements."""


class Rate(NamedTuple):
    """One bandwidth that is measured; every rank takes part in it.

    Attributes
    ----------
    what : str
        Its name, one of `hpccomm.results.table.COUNTED`.
    where : str
        The cores, memory or devices that are measured.
    nbytes : int
        Size of this rank's arrays.
    repeat : callable
        Measures the given number of repetitions.
    """

    what: str
    where: str
    nbytes: int
    repeat: Callable[[int], Repeated]


def run(
    plan: Callable[[Communicator], tuple[Sequence[Rate], Mapping[str, str]]],
    pick: Callable[[NDArray[np.float64]], Any],
    iterations: int,
    output: Path | None,
    write: Callable[[str], None],
) -> int:
    """Measure, store and print. Collective; blocks.

    Parameters
    ----------
    plan : callable
        Returns the rates to measure, the same on all ranks, and facts of this node for the record.
    pick : callable
        Returns the time that counts, from the times of all repetitions, each that of the slowest rank.
    iterations : int
        Number of repetitions of each rate.
    output : Path or None
        A results file that gets the run.
    write : callable
        Prints a text, on rank 0.

    Returns
    -------
    int
        The exit status: 1 if anything was wrong.
    """
    place, rows, samples = launched(), list[Row](), list[NDArray[np.float64]]()
    backend = "loopback" if place is None or place.size == 1 else "mpi"  # one process needs no MPI
    with hpccomm.new_comm(backend, name="perf-links") as comm, ExitStack() as opened:
        opened.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))  # rates bind the process
        rates, machine = plan(comm)
        sizes = [rate.nbytes for rate in rates]
        config = Config(min(sizes), max(sizes), 0, 0, iterations, 1)
        info = facts.run_info(comm, config, machine=machine)
        rest, writer = facts.rested(comm.barrier), None
        if output is not None:
            opening = partial(Writer, output, info, expected_rows=len(rates))
            writer = on_root(comm, lambda: opened.enter_context(opening()))
        progress = Progress(terminal(), len(rates))
        opened.callback(progress.close)
        for rate in rates:
            progress.show(f"{rate.what}: {rate.where}")
            of_ranks = comm.gather_object((rate.nbytes, *rate.repeat(iterations)))
            if of_ranks is not None:
                samples.append(np.stack([seconds for _, seconds, _ in of_ranks], axis=1))
                seconds = float(pick(samples[-1].max(axis=1)))
                nbytes = sum(size for size, *_ in of_ranks) // comm.num_nodes
                wrong = sum(wrong for *_, wrong in of_ranks)
                rows.append(_row(rate, nbytes, seconds, wrong, iterations))
            on_root(comm, lambda: writer and writer.append(rows[-1], samples[-1]))
            progress.advance()

        others = facts.others(comm, rest)

        def end() -> None:
            others.store(writer)
            opened.close()  # here, so that a file that cannot be completed is an error on every rank
            write(rates_text(info, rows, samples.__getitem__) + others.line)

        on_root(comm, end)
        return int(comm.broadcast_object(any(row.wrong for row in rows)))


def _row(rate: Rate, nbytes: int, seconds: float, wrong: int, iterations: int) -> Row:
    """Return the row of a rate; its bytes are those of a node."""
    host = rate.what.startswith("memory")
    backend, dtype, itemsize = ("numpy", "double", 8) if host else ("cupy", "uint8", 1)
    case = rate.what, backend, rate.where, dtype, "none", -1, nbytes, nbytes // itemsize, False
    times = figures(nbytes, seconds, COUNTED[rate.what])
    return Row(*case, *times, wrong, iterations, time.time())


Kernel = tuple[Callable[..., object], Callable[..., object]]
"""An operation on three arrays, and the values that the third one, filled with -1, has afterwards."""

KERNELS: Mapping[str, Kernel] = {
    "memory_copy": (lambda a, _, c: np.copyto(c, a), lambda a, *_: a),
    "memory_add": (lambda a, b, c: np.add(a, b, out=c), lambda a, b, _: a + b),
    "memory_update": (lambda _a, _b, c: np.add(c, 1.0, out=c), lambda _a, _b, passes: passes - 1.0),
}

_BEYOND = 4
"""Ratio of the size of an array to the size of the caches: STREAM's rule."""

_LEAST = 8 << 20
"""Least bytes of an array for each core."""

_LONG = 0.05
"""Least seconds of a repetition, since threads do not start at the same microsecond."""

_DEADLINE = 60.0


def memory_rates(
    comm: Communicator,
    nbytes: int | None,
    kernels: Mapping[str, Kernel] = KERNELS,
    nodes: Mapping[int, list[int]] | None = None,
) -> tuple[list[Rate], dict[str, str]]:
    """Return the rates that these ranks measure. Collective.

    One process measures 1, 2, 4, ... and all cores that it may use, with memory of their own NUMA
    node. With several NUMA nodes, it then measures the cores of each with the memory of each.
    Several ranks measure their cores at the same time; ranks that may use the same cores share them out.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    nbytes : int or None
        Size of an array over all cores of a rank; by default four times the caches of the cores.
    kernels : mapping of str to Kernel
        The operations to measure, by their names.
    nodes : mapping of int to list of int, optional
        The cores that may be used, by NUMA node; by default those of this process.

    Raises
    ------
    UsageError
        If the arrays do not fit into the memory that is available.
    """
    nodes = nodes or numa_nodes(os.sched_getaffinity(0))
    cores = [core for node in nodes.values() for core in node]
    of_ranks = comm.all_gather_object((comm.node, {*cores}))
    sharing = [k for k, (node, its) in enumerate(of_ranks) if node == comm.node and its & {*cores}]
    turn = sharing.index(comm.rank)
    own = cores[turn :: len(sharing)] or [cores[turn % len(cores)]]
    most = max(comm.all_gather_object(len(own)))
    counts = sorted({min(most, 2**power) for power in range(most.bit_length() + 1)})
    ranks = f"{comm.local_size} ranks of " if comm.size > 1 else ""
    teams = {f"{ranks}{counted(count, 'core')}": (own[:count],) * 2 for count in counts}
    for one, other in product(nodes, nodes) if comm.size == 1 < len(nodes) else ():
        owners = list(islice(cycle(nodes[other]), len(nodes[one])))
        teams[f"cores of node {one}, memory of node {other}"] = nodes[one], owners
    rates, free = [], min(comm.all_gather_object(available() // comm.local_size))
    room = free // 3 // PAGE * PAGE
    for where, (team, owners) in teams.items():
        size = nbytes or max(_BEYOND * caches(team), _LEAST * len(team))
        each = size // len(team) // PAGE * PAGE or PAGE
        if each * len(team) > room:
            raise UsageError(
                f"a rank has room for three arrays of {spelled(room)}, and they would be larger: give -b {room} or less, "
                "or fewer ranks a node"
            )
        for what, kernel in kernels.items():
            measure = partial(_repeat_kernel, comm, kernel, team, owners, each)
            rates.append(Rate(what, where, each * len(team), measure))
    return rates, {}


def numa_nodes(allowed: set[int], root: Path = Path("/")) -> dict[int, list[int]]:
    """Return the CPUs that may be used, one of each core, by NUMA node. `root` is the root of the file system."""
    facts = read(host.processors, root)
    threads = (allowed.intersection(numbers(core)) for core in facts.get("cores", ()))
    cores = {min(core) for core in threads if core} or allowed
    nodes = {each["node"]: cores & {*numbers(each["cpus"])} for each in facts.get("nodes", ())}
    return {node: sorted(its) for node, its in nodes.items() if its} or {0: sorted(cores)}


def caches(cores: Iterable[int], root: Path = Path("/")) -> int:
    """Return the bytes of all caches of some cores; 0 if the kernel does not list them."""
    sizes, names = dict[str, int](), ("level", "type", "shared_cpu_list")
    for core in cores:
        for size in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*/size"):
            key = [size.with_name(name).read_text() for name in names]
            sizes[str(key)] = int(size.read_text().strip().removesuffix("K")) << 10
    return sum(sizes.values())


def _repeat_kernel(
    comm: Communicator, kernel: Kernel, cores: list[int], owners: list[int], nbytes: int, times: int
) -> Repeated:
    """Time a kernel on the cores of all ranks: from the first begin to the last end on the node. Collective."""
    begun, ended = np.zeros((2, len(cores), times + 1))
    gate, passes = Barrier(len(cores) + 1, timeout=_DEADLINE), 1
    operate, expected = kernel

    def work(number: int, turn: int) -> None:
        gate.wait()  # here, so that each has a thread of its own
        os.sched_setaffinity(0, {cores[number]})
        begun[number, turn] = perf_counter()
        for _ in range(passes):
            operate(*parts[number])
        ended[number, turn] = perf_counter()

    with ThreadPoolExecutor(len(cores)) as pool, no_garbage_collection():
        parts = list(pool.map(_arrays, owners, repeat(nbytes)))
        for turn in range(times + 1):
            works = [pool.submit(work, number, turn) for number in range(len(cores))]
            comm.barrier()
            gate.wait()
            for each in works:
                each.result()
            if turn == 0:  # the first turn warms up, and shows how long one pass takes
                took = ended[:, 0].max() - begun[:, 0].min()
                passes = math.ceil(_LONG / max(comm.all_gather_object(float(took))))
    stamps = comm.all_gather_object((comm.node, begun.min(axis=0), ended.max(axis=0)))
    begun, ended = np.stack([its for node, *its in stamps if node == comm.node], axis=1)
    done = 1 + times * passes
    wrong = sum(int(np.count_nonzero(c != expected(a, b, done))) for a, b, c in parts)
    return (ended.max(axis=0) - begun.min(axis=0))[1:] / passes, wrong


def _arrays(owner: int, nbytes: int) -> NDArray[np.float64]:
    """Return three new arrays of float64, ``(3, nbytes // 8)``, whose pages are in the NUMA node of core `owner`."""
    os.sched_setaffinity(0, {owner})
    memory = mmap.mmap(-1, 3 * nbytes)  # new pages: malloc's pages may lie elsewhere already
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    arrays = np.frombuffer(memory, np.float64).reshape(3, -1)
    arrays[0] = np.arange(nbytes // 8) % 1021
    arrays[1:] = [[3.0], [-1.0]]
    return arrays


_WARM = 4
"""Untimed copies before the timed ones."""

_POISON = 255
"""A byte that the pattern does not contain."""

_COPY_DEADLINE = 120.0


class CopyEnds(NamedTuple):
    """The ends of a copy: device numbers, None for the host; whether host memory is pinned; whether it is both ways."""

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
        """The device that has the stream of the copy."""
        return self.source if self.source is not None else self.target or 0


def copy_rates(comm: Communicator, sizes: Sequence[int]) -> tuple[list[Rate], dict[str, str]]:
    """Return the rates to measure, and facts for the record: the devices, and the path of each copy. Collective.

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
        rates += [
            Rate(what, where, size, partial(_repeat_copies, ends, near, size)) for size in sizes
        ]
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
    """The copies in one direction: the memory at both ends, and the stream."""

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
        """Return the address of new memory, and the object that keeps it alive."""
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
        """Return the number of bytes in which target and source differ after all copies."""
        done = passed(self.stream.ptr, self._ends.device)
        wait(done, timeout=_COPY_DEADLINE, gate=Gate(), expired=_expired)
        copied = np.empty_like(self._pattern)
        self._move(self._ends.target, copied.ctypes.data, self._to)
        return int(np.count_nonzero(copied != self._pattern))


def _repeat_copies(ends: CopyEnds, cores: set[int], nbytes: int, times: int) -> Repeated:
    """Time copies, with the host's memory next to the cores `cores`."""
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
            # Beyond the timed copies, only the other direction copies on, so that it lasts longer.
            for way in ways[number >= times :]:
                way.put()
        wrong = sum(way.wrong() for way in ways)
        return marks.seconds(), wrong


def _expired(elapsed: float) -> CommunicationError:
    return CommunicationError(
        f"copies were not done after {elapsed:.0f} s: a device or its link does not answer; look for its Xid in the "
        "kernel's log, or give fewer repetitions (-n) or smaller sizes (-b)"
    )
