r"""Single cases beside the MPI library's own call: each figure names what is measured and how it is put.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/side_by_side.py "all_reduce 64M registered speed"
    mpiexec -n 2 python benchmarks/side_by_side.py --calls 2000 "all_reduce 8 plan time" "scan 8 auto time"
    bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 2 --link 1gbit -- \
        python benchmarks/side_by_side.py --link 1gbit "broadcast 16M auto link"

A figure is ``COLLECTIVE SIZE CONTENDER [out-of-place] MEASURE``. Contenders are those of ``over_sizes.py``.
The measures are

speed     speed over that of mpi4py's own call
time      time over that of mpi4py's own call
added     microseconds over those of mpi4py's own call
memcpy    time over that of a copy of the array
link      speed over what the link of a node allows

Contenders take turns. Figures are medians over the rounds, of the slowest rank.
"""

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from contest import contenders, links, program
from contest.cases import Case
from contest.contenders import COPY, LIBRARY, Contender
from contest.figures import Figure
from contest.program import Option, Ranks
from contest.race import no_limit, race
from contest.results import Line, Result
from contest.wanted import wanted


def value(line: Line, result: Result, measure: str) -> float:
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


def says(line: Line, result: Result) -> str:
    """Return the times behind a figure."""
    ours, library = result.times.seconds * 1e6, line.results[LIBRARY].times.seconds * 1e6
    unit, scale = ("µs", 1.0) if library < 1000 else ("ms", 1e-3)
    took = f", {result.took}" if result.took else ""
    wrong = f", WRONG in {result.wrong} elements" if result.wrong else ""
    return f"{ours * scale:.2f} {unit}{took}; mpi4py {library * scale:.2f} {unit}{wrong}"


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures, case by case. Collective."""
    asked = {name: wanted(name) for name in names}
    comm, request = ranks.comm, ranks.request
    measured = {}
    with ExitStack() as stack:
        entered: dict[str, Contender] = {
            LIBRARY: contenders.library(ranks.bare),
            COPY: contenders.copy(),
        }
        for one in asked.values():
            if one.contender not in entered:
                entered[one.contender] = contenders.ours(one.contender, comm, stack)
        through_link = links.limit(comm, request.link)
        for collective, nbytes, apart in dict.fromkeys(one.case for one in asked.values()):
            here = {n: o for n, o in asked.items() if o.case == (collective, nbytes, apart)}
            racing = [LIBRARY, *dict.fromkeys(one.contender for one in here.values())]
            racing += [COPY] * any(one.measure == "memcpy" for one in here.values())
            line = race(
                Case(collective, nbytes, comm.rank, comm.size, apart=apart),
                [entered[name] for name in racing],
                ranks.bare,
                request.rounds,
                calls=request.calls,
                limit=through_link if any(o.measure == "link" for o in here.values()) else no_limit,
            )
            for name, one in here.items():
                result = line.results.get(one.contender)
                if result is not None:
                    number = math.nan if result.wrong else value(line, result, one.measure)
                    measured[name] = Figure(number, says(line, result), result.times.seconds)
                elif comm.rank == 0:
                    print(f"{name}: there is no such call", file=sys.stderr)
    return measured


if __name__ == "__main__":
    program.on_ranks(
        __doc__,
        "all_reduce 8 auto time",
        measure,
        rounds=program.turns(11),
        calls=program.CALLS,
        link=Option(None, "rate of the link of a node, such as 1gbit", links.rate),
    )
