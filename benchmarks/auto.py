"""Whether ``auto`` is as fast as the best fixed choice: against every algorithm, over sizes.

Run it on ranks that have a core each::

    mpiexec -n 2 python benchmarks/auto.py
    mpiexec -n 2 python benchmarks/auto.py --collectives all_reduce -b 1K -e 256M -f 2
    HPCCOMM_TUNING_FILE=tuning.h5 mpiexec -n 2 python benchmarks/auto.py

At each size, every algorithm that applies is timed briefly. The fastest one and the backend's own are then timed in
turns with ``auto``, and timed again if ``auto`` is slower. The exit status is 1 if ``auto`` stays more than 10 % slower
than the best fixed choice at some size. For calls of a few microseconds, a busy machine adds more than 10 %. With ``--registered`` the arrays are
those of `Communicator.empty`, and the calls are planned.
"""

import argparse
import sys

import hpccomm
from hpccomm.bench.perf import readers
from hpccomm.bench.perf.sizes import Sizes
from hpccomm.bench.progress import Progress
from hpccomm.bench.tune import calls
from hpccomm.bench.tune.calls import TunedCall
from hpccomm.bench.tune.measuring import Bench, Effort, spelled
from hpccomm.bench.tune.verifying import SLOWER, Confirmation, verify
from hpccomm.cli.tune import TUNED
from hpccomm.dispatch.policy import AUTO, Pick
from hpccomm.units import size

HEADING = (
    f"#{'bytes':>11}  {'auto takes':<24}{'us':>11}{'native us':>11}{'ratio':>7}"
    f"   {'best fixed choice':<24}{'us':>11}{'ratio':>7}"
)


def line(verdict: Confirmation, takes: str) -> str:
    """Return the line of a size; ratios are of times, ``auto`` over the other."""
    native = verdict.fixed.get(Pick("native"))
    own = f"{'':>11}{'':>7}"
    if native is not None:
        own = f"{native * 1e6:>11.2f}{verdict.seconds / native:>7.2f}"
    best = verdict.fixed[verdict.best]
    return (
        f"{verdict.nbytes:>12}  {takes:<24}{verdict.seconds * 1e6:>11.2f}{own}"
        f"   {spelled(verdict.best):<24}{best * 1e6:>11.2f}{verdict.ratio:>7.2f}"
        f"{'  slower' if verdict.slower else ''}"
    )


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--collectives", type=readers.listed, default=TUNED, help="which (all)")
    parser.add_argument(
        "-b", "--minbytes", type=size, default=8, help="smallest size (%(default)s)"
    )
    parser.add_argument("-e", "--maxbytes", type=size, default=64 << 20, help="largest size (64M)")
    parser.add_argument(
        "-f",
        "--stepfactor",
        type=int,
        default=4,
        help="each is so many times the last (%(default)s)",
    )
    parser.add_argument(
        "--blocks", type=int, default=11, help="how often each is timed (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.004, help="about how long each time (%(default)s)"
    )
    parser.add_argument("--registered", action="store_true", help="on arrays of comm.empty")
    request = parser.parse_args()
    sizes = list(Sizes(request.minbytes, request.maxbytes, request.stepfactor, 0).measured(4))
    effort = Effort(request.blocks, request.seconds)
    slow = total = 0
    with hpccomm.new_comm() as comm:
        largest = TunedCall("all_gather").even(request.maxbytes, comm.size)
        memory = calls.arrays(largest, comm if request.registered else None)
        bench = Bench({0: comm}, memory, effort, every=True)
        if comm.rank == 0:
            policy = calls.policy_of(comm)
            print(f"# {policy.shape}\n# auto goes by {policy.source}")
        collectives = [
            each for each in request.collectives if each != "barrier" or not request.registered
        ]
        for collective in collectives:
            if comm.rank == 0:
                print(f"#\n# {collective}\n{HEADING}", flush=True)
            swept = [0] if collective == "barrier" else sizes
            call = TunedCall(collective, registered=request.registered)
            found = bench.sweep(call, swept, lambda _: None)
            for verdict in verify(bench, comm, call, found, Progress(None)):
                args, keywords = call.arguments(comm, verdict.nbytes, memory, AUTO)
                takes = comm.explain(collective, *args, **keywords).algorithm
                slow += verdict.slower
                total += 1
                if comm.rank == 0:
                    print(line(verdict, takes), flush=True)
        if comm.rank == 0:
            print(f"#\n# within {SLOWER - 1:.0%} of the best at {total - slow} of {total} sizes")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
