r"""Collectives over sizes: hpccomm beside the MPI library's own calls, PyTorch's Gloo, and what the hardware allows.

On one node, run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/over_sizes.py
    mpiexec -n 2 python benchmarks/over_sizes.py --collectives all_reduce --sizes 64M,256M --rounds 21
    mpiexec -n 4 python benchmarks/over_sizes.py --output node.h5 --plot node.svg --rst node.rst
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

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from mpi4py import MPI

import hpccomm
from contest import contenders, links, picture, program, record, results, tables
from contest.cases import COLLECTIVES, SHAPES, Case
from contest.contenders import COPY, GLOO, OF_EMPTY, PLAN, SETTINGS, Contender
from contest.gloo import gloo
from contest.machine import machine
from contest.program import Option
from contest.race import Limit, race
from contest.results import Line, Result
from hpccomm.calls import policy
from hpccomm.results import facts as origin
from hpccomm.results.schema import RunInfo
from hpccomm.tools import drawing, flags
from hpccomm.tools.drawing import check_place, save
from hpccomm.tools.perf import facts

EVERY = "every"
"""Stands for every algorithm, the backend's own among them."""
CONTENDERS = (GLOO, COPY, PLAN, *OF_EMPTY, *SETTINGS, *policy.NAMES, EVERY)


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
        "output": Option(None, "results file (.h5) that the run is added to", Path),
        "plot": Option(None, "picture, SVG or PNG", Path),
        "rst": Option(None, "tables as reStructuredText", Path),
    }
    request = program.parser(__doc__, options).parse_args()
    bare = MPI.COMM_WORLD.Dup()
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        comm = stack.enter_context(hpccomm.new_comm())
        entered = [contenders.library(bare)]
        named = [policy.NAMES[1:] if name == EVERY else (name,) for name in request.contenders]
        for name in chain(*named):
            if name == GLOO:
                interface = request.interface or ("eth0" if request.link else "lo")
                entered += _gloo_where_it_is(stack, bare, interface, skipped)
            elif name == COPY:
                entered.append(contenders.copy())
            else:
                entered.append(contenders.ours(name, comm, stack))
        limit: tuple[str, Limit] = "memcpy", _memcpy
        if request.link is not None:
            rate = f"that of a link of {request.link * 8 / 1e9:g} Gbit/s a node"
            limit = rate, links.limit(comm, request.link)
        return Contest(comm, bare, entered, *limit, request, skipped).run()


def _memcpy(_: Case, results: dict[str, Result]) -> float:
    """Return the seconds of a copy of the array; not a number where it was left out."""
    return results[COPY].times.seconds if COPY in results else math.nan


def _gloo_where_it_is(
    stack: ExitStack, bare: MPI.Intracomm, interface: str, skipped: dict[str, str]
) -> list[Contender]:
    """Return Gloo as a contender until the stack is left, or note why not. Collective."""
    try:
        return [stack.enter_context(gloo(bare, interface))]
    except ImportError as error:
        skipped[GLOO] = f"PyTorch cannot be loaded ({error})"
    except LookupError as error:
        skipped[GLOO] = str(error)
    return []


@dataclass(frozen=True, slots=True)
class Contest:
    """A run: who measures what, and where it is written. Every rank makes one.

    Attributes
    ----------
    comm : Communicator
        Names the ranks and nodes.
    bare : MPI.Intracomm
        For what is not measured.
    contenders : sequence of Contender
        The same on all ranks, the library's own calls among them.
    limit_name : str
        What the limit is.
    limit : callable
        ``limit(case, results)``.
    request : Namespace
        The command line.
    skipped : mapping of str to str
        Contenders that are missing, and why.
    """

    comm: hpccomm.Communicator
    bare: MPI.Intracomm
    contenders: Sequence[Contender]
    limit_name: str
    limit: Limit
    request: argparse.Namespace
    skipped: dict[str, str]

    def run(self) -> int:
        """Measure everything, and write it. Collective; returns the exit status on every rank."""
        request, root = self.request, self.comm.rank == 0
        info = self._info()
        with ExitStack() as stack:
            writer: Any = None
            if root:
                if request.plot is not None:
                    check_place(request.plot)
                    drawing.library()  # raises before the work where it is missing
                if request.output is not None:
                    from hpccomm.results.writer import Writer

                    writer = stack.enter_context(Writer(request.output, info))
                print("".join(f"# {name}: {value}\n" for name, value in self._facts().items()))
            done: list[list[Line]] = []
            for name in request.collectives:
                lines = [self._measure(name, nbytes) for nbytes in request.sizes]
                done.append(lines)
                if root:
                    print(tables.text(lines, self.contenders), flush=True)
                    if writer is not None:
                        record.write(writer, lines, self.contenders)
        every = [line for lines in done for line in lines]
        if root:
            for finding in results.findings(every):
                print(f"# {finding}")
            self._draw(done)
        wrong = any(result.wrong for line in every for result in line.results.values())
        slow = EVERY in request.contenders and any(line.slower for line in every)
        return int(wrong or slow)

    def _info(self) -> RunInfo:
        """Return what a results file says of the run. Collective."""
        config = record.config(self.request.sizes, self.request.rounds)
        skipped = tuple(f"{name}: {why}" for name, why in self.skipped.items())
        info = facts.run_info(self.comm, config, skipped)
        peers = {one.backend: one.algorithm for one in self.contenders if one.name == GLOO}
        return replace(info, arguments=tuple(sys.argv), versions={**info.versions, **peers})

    def _facts(self) -> dict[str, str]:
        """Return what the run is made with, in words."""
        comm = self.comm
        library, version = MPI.get_vendor()
        gloos = [one.algorithm for one in self.contenders if one.name == GLOO]
        said = {
            "library": f"{library} {'.'.join(map(str, version))} through mpi4py",
            "ranks": f"{comm.size} rank{'s' * (comm.size > 1)} on "
            f"{comm.num_nodes} node{'s' * (comm.num_nodes > 1)}",
            "machine": machine(),
            "date": f"{datetime.now().astimezone():%Y-%m-%d}",
            "with": ", ".join([*(f"{n} {v}" for n, v in origin.versions().items()), *gloos]),
            "figures": f"medians of {self.request.rounds} rounds, slowest rank; the limit is "
            f"{self.limit_name}",
        }
        said |= {f"no {name}": why for name, why in self.skipped.items()}
        return said

    def _measure(self, collective: str, nbytes: int) -> Line:
        """Check and measure every contender on one case. Collective."""
        apart, rounds = self.request.out_of_place, self.request.rounds
        case = Case(collective, nbytes, self.comm.rank, self.comm.size, apart=apart)
        return race(case, self.contenders, self.bare, rounds, limit=self.limit)

    def _draw(self, done: Sequence[Sequence[Line]]) -> None:
        """Write the page and the picture that the command line names. On rank 0."""
        request, said = self.request, self._facts()
        if request.rst is not None:
            body = tables.restructured(done, self.contenders)
            request.rst.write_text(f"{tables.fields(said)}\n{body}")
        if request.plot is not None:
            title = ", ".join(said[name] for name in ("library", "ranks", "machine", "date"))
            save(drawing.svg(picture.draw(done, self.contenders, title)), request.plot)


if __name__ == "__main__":
    sys.exit(main())
