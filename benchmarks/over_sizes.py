r"""Collectives over sizes: hpccomm beside the MPI library's own calls, PyTorch's Gloo, and what the hardware allows.

On one node, run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/over_sizes.py
    mpiexec -n 2 python benchmarks/over_sizes.py --collectives all_reduce --sizes 64M,256M --rounds 21
    mpiexec -n 4 python benchmarks/over_sizes.py > node.rst
    mpiexec -n 2 python benchmarks/over_sizes.py --contenders auto,every

On several nodes, on a virtual cluster, as root, and on a real one::

    bash jobs/virtual_cluster.sh --nodes 3 --ranks-per-node 2 --link 1gbit -- \
        python benchmarks/over_sizes.py --link 1gbit --sizes 16M --contenders gloo,auto,hierarchical
    srun -N 4 --ntasks-per-node 8 python benchmarks/over_sizes.py --link 100gbit --sizes 64M,1G

Contenders take turns, so that a change of the machine's or the network's speed affects all of them, and their
results are checked. They are gloo, memcpy, and hpccomm several times:

auto            what a user gets: plain arrays, the algorithm that hpccomm chooses
registered      auto, arrays of comm.empty
pages           shared memory, plain arrays whose pages the kernel copies
staging         shared memory, plain arrays through a staging buffer
plan            auto, decided once
hierarchical    shared memory inside a node and messages between nodes, plain arrays
ring, ...       one of the other algorithms, plain arrays
every           each algorithm that applies, plain arrays: the exit status is 1 if ``auto`` takes more than 10 % longer
                than the best of them somewhere. For calls of a few microseconds, a busy machine adds more than that.

With ``--link`` the limit is the time that a node's link needs for the bytes that must pass it in one direction. All
ranks of a node share one link, which sends and receives at the same time. Else it is memcpy, if that takes part: every
rank copies an array of the size that is measured, all at the same time.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from mpi4py import MPI

import hpccomm
from contest import contenders, links, program, tables
from contest.cases import COLLECTIVES, SHAPES, Case
from contest.contenders import (
    AUTO,
    COPY,
    GLOO,
    LIBRARY,
    OF_EMPTY,
    PEERS,
    PLAN,
    SETTINGS,
    Enter,
)
from contest.gloo import gloo
from contest.jobs import machine
from contest.program import Option
from contest.race import Limit, Line, Results, race
from hpccomm.calls import policy
from hpccomm.tools import flags

EVERY = "every"
"""Stands for every algorithm, the backend's own among them."""
CONTENDERS = (GLOO, COPY, PLAN, *OF_EMPTY, *SETTINGS, *policy.NAMES, EVERY)
SLOWER = 1.1
"""How many times as long as the best ``auto`` may take."""


def _some_of(names: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what reads some of these names."""
    return flags.some_of({name: name for name in names}, "cannot be measured")


def main() -> int:
    """Read the command line, measure, and write; return the exit status on every rank."""
    options = {
        "collectives": Option(",".join(COLLECTIVES), "which", _some_of(SHAPES)),
        "sizes": Option("8,1K,16K,64K,1M,16M,64M", "bytes, with K, M or G", program.sizes),
        "contenders": Option(
            "gloo,memcpy,auto,registered,pages,staging", "beside mpi4py", _some_of(CONTENDERS)
        ),
        "rounds": Option(11, "turns of each contender", flags.integer(1)),
        "link": Option(None, "rate of each node's link, such as 1gbit", links.rate),
        "interface": Option(None, "network of Gloo (default: lo, or eth0 with --link)", str),
        "out-of-place": Option(False, "give all_reduce, reduce and scan an output of its own"),
    }
    request = program.parser(__doc__, options).parse_args()
    bare = MPI.COMM_WORLD.Dup()
    with ExitStack() as stack:
        comm = stack.enter_context(hpccomm.new_comm())
        named = [policy.NAMES[1:] if name == EVERY else (name,) for name in request.contenders]
        entered: dict[str, Enter] = {LIBRARY: contenders.library(bare)}
        missing = ""
        for name in chain(*named):
            if name == GLOO:
                interface = request.interface or ("eth0" if request.link else "lo")
                try:
                    entered[GLOO] = stack.enter_context(gloo(bare, interface))
                except (ImportError, LookupError) as error:
                    missing = str(error)
            else:
                entered[name] = contenders.ours(name, comm, stack)
        limit: Limit = _memcpy if request.link is None else links.limit(comm, request.link)
        said = facts(comm, request.rounds, request.link)
        said |= {"no gloo": missing} if missing else {}
        shown = sys.stdout if comm.rank == 0 else stack.enter_context(Path(os.devnull).open("w"))
        show = partial(print, file=shown, flush=True)
        show("".join(f":{name}: {value}\n" for name, value in said.items()))
        every: list[Line] = []
        for collective in request.collectives:
            lines = []
            for nbytes in request.sizes:
                case = Case(collective, nbytes, comm.rank, comm.size, apart=request.out_of_place)
                lines.append(race(case, entered, bare, request.rounds, limit=limit))
            every += lines
            show(tables.text(lines, list(entered)))
        for finding in findings(every):
            show(f".. {finding}")
    wrong = any(result.wrong for line in every for result in line.results.values())
    return int(wrong or (EVERY in request.contenders and any(map(slower, every))))


def _memcpy(_: Case, results: Results) -> float:
    """Return the seconds of a copy of the array; not a number where it was left out."""
    return results[COPY].times.seconds if COPY in results else math.nan


def facts(comm: hpccomm.Communicator, rounds: int, link: float | None) -> dict[str, str]:
    """Return what a run is made with, in words."""
    name, number = MPI.get_vendor()
    limit = "memcpy" if link is None else f"that of a link of {link * 8 / 1e9:g} Gbit/s a node"
    packages = ["hpccomm", "numpy", "mpi4py", *["torch"] * ("torch" in sys.modules)]
    return {
        "library": f"{name} {'.'.join(map(str, number))} through mpi4py",
        "ranks": f"{comm.size} on nodes: {comm.num_nodes}",
        "machine": machine(),
        "date": f"{datetime.now().astimezone():%Y-%m-%d}",
        "with": ", ".join(f"{package} {version(package)}" for package in packages),
        "figures": f"medians of {rounds} rounds, slowest rank; the limit is {limit}",
    }


def best(line: Line) -> str:
    """Return the fastest of hpccomm's on plain arrays."""
    plain = [name for name in line.results if name not in (*PEERS, *OF_EMPTY)]
    return min(plain, key=lambda name: line.results[name].times.seconds)


def slower(line: Line) -> bool:
    """Tell whether ``auto`` is slower than the best, by more than the clock's noise."""
    if AUTO not in line.results:
        return False
    auto, other = line.results[AUTO].times, line.results[best(line)].times
    return auto.over(other) > SLOWER and auto.seconds - other.seconds > 1e-6


def findings(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence on each wrong result, and where ``auto`` could have been faster."""
    for line in lines:
        where = f"{line.case.collective} of {line.case.nbytes} B"
        for name, result in line.results.items():
            if result.wrong:
                yield f"WRONG: {where}: {result.wrong} elements by {name}"
        if slower(line):
            auto, name = line.results[AUTO], best(line)
            longer = auto.times.over(line.results[name].times)
            yield f"{where}: auto ({auto.took}) takes {longer:.2f} times as long as {name}"
    quick = len(lines) - sum(map(slower, lines))
    yield f"auto is within {SLOWER - 1:.0%} of the best at {quick} of {len(lines)} sizes"


if __name__ == "__main__":
    sys.exit(main())
