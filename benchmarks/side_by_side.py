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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from contest import contenders, links, program
from contest.cases import Case
from contest.contenders import COPY, LIBRARY, Enter
from contest.program import Option, Ranks
from contest.promises import Figure
from contest.race import Line, no_limit, race
from contest.rounds import duration
from hpccomm.units import size

OUT_OF_PLACE = "out-of-place"
MEASURES = ("speed", "time", "added", "memcpy", "link")


class Wanted(NamedTuple):
    """The name of a figure, taken apart."""

    collective: str
    nbytes: int
    apart: bool
    contender: str
    measure: str


def wanted(name: str) -> Wanted:
    """Read the name of a figure."""
    collective, nbytes, contender, *rest = name.split()
    measure = rest[-1] if rest else ""
    if measure not in MEASURES:
        raise SystemExit(f"{name!r} ends with no measure; give one of {', '.join(MEASURES)}")
    return Wanted(collective, size(nbytes), OUT_OF_PLACE in rest, contender, measure)


def figure(line: Line, contender: str, measure: str) -> Figure:
    """Return a figure of one line, with the times behind it."""
    times = {name: result.times for name, result in line.results.items()}
    result, ours, library = line.results[contender], times[contender], times[LIBRARY]
    values: dict[str, Callable[[], float]] = {
        "speed": lambda: line.faster(contender),
        "time": lambda: ours.over(library),
        "added": lambda: ours.beyond(library) * 1e6,
        "memcpy": lambda: ours.over(times[COPY]),
        "link": lambda: line.share(contender),
    }
    took = f", {result.took}" if result.took else ""
    wrong = f", WRONG in {result.wrong} elements" if result.wrong else ""
    says = f"{duration(ours.seconds)}{took}; mpi4py {duration(library.seconds)}{wrong}"
    return Figure(math.nan if result.wrong else values[measure](), says, ours.seconds)


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures, case by case. Collective."""
    asked = {name: wanted(name) for name in names}
    comm, request = ranks.comm, ranks.request
    measured = {}
    with ExitStack() as stack:
        entered: dict[str, Enter] = {LIBRARY: contenders.library(ranks.bare)}
        for name in dict.fromkeys([COPY, *(one.contender for one in asked.values())]):
            entered[name] = contenders.ours(name, comm, stack)
        through_link = links.limit(comm, request.link)
        for case in dict.fromkeys(one[:3] for one in asked.values()):
            here = {name: one for name, one in asked.items() if one[:3] == case}
            measures = {one.measure for one in here.values()}
            racing = [LIBRARY, *dict.fromkeys(one.contender for one in here.values())]
            racing += [COPY] * ("memcpy" in measures)
            line = race(
                Case(*case[:2], comm.rank, comm.size, apart=case[2]),
                {name: entered[name] for name in racing},
                ranks.bare,
                request.rounds,
                calls=request.calls,
                limit=through_link if "link" in measures else no_limit,
            )
            for name, one in here.items():
                if one.contender in line.results:
                    measured[name] = figure(line, one.contender, one.measure)
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
