"""Bandwidth of a node's memory: STREAM's Copy and Add, and updates in place.

It is measured for growing numbers of cores, and for each NUMA node. Arrays are larger than the
caches. A write to memory that was not read makes the cache read it first; STREAM does not count
these reads. An update in place has no such reads, like an all-reduce in shared memory. Each core
has a bound thread, and arrays of its own, whose pages lie in the NUMA node of the core that first
writes to them. The threads run at the same time, because NumPy releases the interpreter lock while
it copies and adds.

`hpccomm.cli.memory` has `hpccomm.bench.links.measuring` run and print it.
"""

import math
import mmap
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import cycle, islice, product, repeat
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.links.measuring import Rate, Repeated
from hpccomm.bench.perf.memory_use import PAGE, available, spelled
from hpccomm.doctor.reading import read
from hpccomm.doctor.sources import cpu
from hpccomm.errors import UsageError
from hpccomm.runtime.lifetime import no_garbage_collection
from hpccomm.units import counted, numbers

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

KERNELS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "memory_copy": (lambda a, _, c: np.copyto(c, a), lambda a, *_: a),
    "memory_add": (lambda a, b, c: np.add(a, b, out=c), lambda a, b, _: a + b),
    "memory_update": (lambda _a, _b, c: np.add(c, 1.0, out=c), lambda _a, _b, passes: passes - 1.0),
}
"""Operations on three arrays, and the values that the third one, filled with -1, has afterwards."""

_BEYOND = 4
"""Size of an array over the size of the caches: STREAM's rule."""

_LEAST = 8 << 20
"""Bytes that each core has of an array at least."""

_LONG = 0.05
"""Seconds that a repetition takes at least, since threads do not start together to the microsecond."""

_DEADLINE = 60.0


def plan(comm: "Communicator", nbytes: int | None) -> tuple[list[Rate], dict[str, str]]:
    """Return the rates that these ranks measure. Collective.

    One process measures 1, 2, 4, ... and all cores that it may use, with memory of their own NUMA
    node. With several NUMA nodes, it then measures the cores of each with the memory of each.
    Several ranks measure their cores at once; ranks that may use the same cores share them out.

    Parameters
    ----------
    comm : Communicator
        Of the ranks.
    nbytes : int or None
        Size of an array over all cores of a rank; by default four times the caches of the cores.

    Raises
    ------
    UsageError
        If the arrays do not fit into the memory that is available.
    """
    nodes = numa_nodes(os.sched_getaffinity(0))
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
        for what in KERNELS:
            measure = partial(_repeat, comm, what, team, owners, each)
            rates.append(Rate(what, where, each * len(team), measure))
    return rates, {}


def numa_nodes(allowed: set[int], root: Path = Path("/")) -> dict[int, list[int]]:
    """Return the CPUs that may be used, one of each core, by NUMA node. `root` is the file system's."""
    facts = read(cpu.gather, root)
    threads = (allowed.intersection(numbers(core)) for core in facts.get("cores", ()))
    cores = {min(core) for core in threads if core} or allowed
    nodes = {each["node"]: cores & {*numbers(each["cpus"])} for each in facts.get("nodes", ())}
    return {node: sorted(its) for node, its in nodes.items() if its} or {0: sorted(cores)}


def caches(cores: Iterable[int], root: Path = Path("/")) -> int:
    """Return the bytes of all caches that some cores have; 0 if the kernel does not list them."""
    sizes, names = dict[str, int](), ("level", "type", "shared_cpu_list")
    for core in cores:
        for size in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*/size"):
            key = [size.with_name(name).read_text() for name in names]
            sizes[str(key)] = int(size.read_text().strip().removesuffix("K")) << 10
    return sum(sizes.values())


def _repeat(
    comm: "Communicator", what: str, cores: list[int], owners: list[int], nbytes: int, times: int
) -> Repeated:
    """Measure the cores of all ranks, from the first that begins to the last that ends on the node. Collective."""
    begun, ended = np.zeros((2, len(cores), times + 1))
    gate, passes = Barrier(len(cores) + 1, timeout=_DEADLINE), 1
    kernel, expected = KERNELS[what]

    def work(number: int, arrays: NDArray[np.float64]) -> None:
        os.sched_setaffinity(0, {cores[number]})
        for turn in range(times + 1):
            gate.wait()
            begun[number, turn] = perf_counter()
            for _ in range(passes):
                kernel(*arrays)
            ended[number, turn] = perf_counter()
            gate.wait()

    with ThreadPoolExecutor(len(cores)) as pool, no_garbage_collection():
        parts = list(pool.map(_arrays, owners, repeat(nbytes)))
        for number, arrays in enumerate(parts):
            pool.submit(work, number, arrays)
        for turn in range(times + 1):
            comm.barrier()
            gate.wait()
            gate.wait()
            if turn == 0:  # which warms up, and shows how long one pass takes
                took = ended[:, 0].max() - begun[:, 0].min()
                passes = math.ceil(_LONG / max(comm.all_gather_object(float(took))))
    stamps = comm.all_gather_object((comm.node, begun.min(axis=0), ended.max(axis=0)))
    begun, ended = np.stack([its for node, *its in stamps if node == comm.node], axis=1)
    done = 1 + times * passes
    wrong = sum(int(np.count_nonzero(c != expected(a, b, done))) for a, b, c in parts)
    return (ended.max(axis=0) - begun.min(axis=0))[1:] / passes, wrong


def _arrays(owner: int, nbytes: int) -> NDArray[np.float64]:
    """Return three new arrays of float64, ``(3, nbytes // 8)``, whose pages lie where the core `owner` is."""
    os.sched_setaffinity(0, {owner})
    memory = mmap.mmap(-1, 3 * nbytes)  # new pages: malloc's pages may lie elsewhere already
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    arrays = np.frombuffer(memory, np.float64).reshape(3, -1)
    arrays[0] = np.arange(nbytes // 8) % 1021
    arrays[1:] = [[3.0], [-1.0]]
    return arrays
