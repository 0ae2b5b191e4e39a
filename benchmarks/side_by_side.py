r"""Single cases beside the MPI library's own call: each figure names what is measured and how it is put.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/side_by_side.py "all_reduce 64M registered speed"
    mpiexec -n 2 python benchmarks/side_by_side.py --calls 2000 "all_reduce 8 plan time" "scan 8 auto time"
    bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 2 --link 1gbit -- \
        python benchmarks/side_by_side.py --link 1gbit "broadcast 16M auto link"

A figure is ``COLLECTIVE SIZE CONTENDER [out-of-place] MEASURE``. Contenders are those of ``node.py``.
The measures are

speed     speed over that of mpi4py's own call
time      time over that of mpi4py's own call
added     microseconds over those of mpi4py's own call
memcpy    time over that of a copy of the array
link      speed over what the link of a node allows

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import argparse
import math
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mpi4py import MPI

import hpccomm
from contest import contenders, figures, links
from contest.cases import Case
from contest.contenders import COPY, LIBRARY
from contest.figures import Figure
from contest.race import no_limit, race
from contest.wanted import wanted

if TYPE_CHECKING:
    from contest.contenders import Contender
    from contest.results import Line, Result


def value(line: "Line", result: "Result", measure: str) -> float:
    """Return a figure of one line."""
    if measure == "speed":
        return line.faster(result)
    if measure == "time":
        return result.times.over(line.results[LIBRARY].times)
    if measure == "added":
        return result.times.beyond(line.results[LIBRARY].times) * 1e6
    if measure == "memcpy":
        return result.times.over(line.results[COPY].times)
    return line.share(result)


def says(line: "Line", result: "Result") -> str:
    """Return the times behind a figure."""
    ours, library = result.times.seconds * 1e6, line.results[LIBRARY].times.seconds * 1e6
    unit, scale = ("µs", 1.0) if library < 1000 else ("ms", 1e-3)
    took = f", {result.took}" if result.took else ""
    wrong = f", WRONG in {result.wrong} elements" if result.wrong else ""
    return f"{ours * scale:.2f} {unit}{took}; mpi4py {library * scale:.2f} {unit}{wrong}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures.add_arguments(parser, "all_reduce 8 auto time")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each (%(default)s)")
    parser.add_argument("--calls", type=int, help="of a turn (default: a few milliseconds' worth)")
    parser.add_argument("--link", type=links.rate, metavar="RATE", help="of a node, such as 1gbit")
    request = parser.parse_args()
    names = {name: wanted(name) for name in request.figures}
    bare = MPI.COMM_WORLD.Dup()
    measured: dict[str, Figure] = {}
    with ExitStack() as stack:
        comm = stack.enter_context(hpccomm.new_comm())
        on_node = max(comm.all_gather_object(comm.local_size))
        entered: dict[str, Contender] = {LIBRARY: contenders.library(bare), COPY: contenders.copy()}
        for one in names.values():
            if one.contender not in entered:
                entered[one.contender] = contenders.ours(one.contender, comm, stack)

        def limit(case: Case, _results: "dict[str, Result]") -> float:
            return links.least_seconds(case, comm.num_nodes, on_node, request.link)

        for collective, nbytes, apart in dict.fromkeys(one.case for one in names.values()):
            here = {n: o for n, o in names.items() if o.case == (collective, nbytes, apart)}
            racing = [LIBRARY, *dict.fromkeys(one.contender for one in here.values())]
            racing += [COPY] * any(one.measure == "memcpy" for one in here.values())
            line = race(
                Case(collective, nbytes, comm.rank, comm.size, apart=apart),
                [entered[name] for name in racing],
                bare,
                request.rounds,
                calls=request.calls,
                limit=limit if any(one.measure == "link" for one in here.values()) else no_limit,
            )
            for name, one in here.items():
                result = line.results.get(one.contender)
                if result is None:
                    if comm.rank == 0:
                        print(f"{name}: there is no such call", file=sys.stderr)
                    continue
                number = math.nan if result.wrong else value(line, result, one.measure)
                measured[name] = Figure(number, says(line, result), result.times.seconds)
        rank = comm.rank
    if rank == 0:
        figures.show(measured, request.json)


if __name__ == "__main__":
    main()
