"""One node: hpccomm beside the MPI library's own calls, Gloo and memcpy, in one run.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/node.py
    mpiexec -n 2 python benchmarks/node.py --collectives all_reduce --sizes 64M,256M --rounds 21
    mpiexec -n 4 python benchmarks/node.py --output node.h5 --plot node.svg --rst node.rst

Contenders take turns, so that a change of the machine's speed affects all of them, and their results are
checked. hpccomm takes part several times:

auto         what a user gets: plain arrays, the algorithm that hpccomm chooses
registered   auto, arrays of comm.empty
pages        shared memory, plain arrays whose pages the kernel copies
staging      shared memory, plain arrays through a staging buffer
plan         auto, decided once
ring, ...    one of the other algorithms, plain arrays

The limit is memcpy: every rank copies an array of the size that is measured, all at the same time.
"""

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mpi4py import MPI

import hpccomm
from contest import command, contenders
from contest.cases import COLLECTIVES
from contest.contenders import COPY, GLOO

if TYPE_CHECKING:
    from contest.cases import Case
    from contest.results import Result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_arguments(
        parser,
        collectives=",".join(COLLECTIVES),
        names="gloo,memcpy,auto,registered,pages,staging",
        sizes="8,1K,16K,64K,1M,16M,64M",
        rounds=11,
    )
    request = parser.parse_args()
    bare = MPI.COMM_WORLD.Dup()
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        comm = stack.enter_context(hpccomm.new_comm())
        entered = [contenders.library(bare)]
        for name in request.contenders:
            if name == GLOO:
                entered += command.gloo_where_it_is(stack, bare, "lo", skipped)
            elif name == COPY:
                entered.append(contenders.copy())
            else:
                entered.append(contenders.ours(name, comm, stack))
        return command.Contest(comm, bare, entered, memcpy, "memcpy", request, skipped).run()


def memcpy(_case: "Case", results: "dict[str, Result]") -> float:
    """Return the seconds of a copy of the array; not a number where it was left out."""
    copied = results.get(COPY)
    return float("nan") if copied is None else copied.times.seconds


if __name__ == "__main__":
    sys.exit(main())
