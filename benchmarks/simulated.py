r"""What the simulator says of a cluster, beside what was measured there.

On a virtual cluster, as root, and on a real one::

    bash jobs/virtual_cluster.sh --nodes 3 --ranks-per-node 2 --link 1gbit -- \
        python benchmarks/simulated.py --cluster lab1g
    srun -N 4 --ntasks-per-node 8 python benchmarks/simulated.py --cluster ethernet100

Measures collectives by ``hpccomm perf``, fits the description of the cluster to that run as ``hpccomm
simulate --like`` does, simulates the largest size on the fitted description, and prints the ratios. The
description that is given says how many ports a node has; all its speeds are fitted.

Exit status: 0, or 1 where a simulated time is further off than ``--within``.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpccomm.bench.simulated.like import like
from hpccomm.bench.simulated.measured import measurements
from hpccomm.cli.main import main as hpccomm
from hpccomm.results import reader
from hpccomm.results.run import choose
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network_files import dump, load
from hpccomm.schedules.schedule import world
from hpccomm.schedules.simulate import simulate

if TYPE_CHECKING:
    from hpccomm.results.run import Run
    from hpccomm.schedules.cost.network import Network

COLLECTIVES = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all"


@dataclass(frozen=True, slots=True)
class Pair:
    """One time, measured and simulated, in seconds."""

    collective: str
    algorithm: str
    nbytes: int
    measured: float
    simulated: float

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured


def measure(output: Path, arguments: argparse.Namespace) -> int:
    """Measure into a results file; collective. Return the exit status of ``hpccomm perf``."""
    sizes = ["-b", arguments.smallest, "-e", arguments.largest, "-f", "2"]
    repetitions = ["-n", str(arguments.repetitions), "-w", "2", "-z", "3"]
    named = ["--algorithm", arguments.algorithms, "--output", str(output)]
    return hpccomm(["perf", arguments.collectives, *sizes, *repetitions, *named])


def compare(run: "Run", network: "Network", algorithm: str) -> list[Pair]:
    """Simulate the largest arrays of each collective, out of place. Local."""
    rows, _, _ = measurements(run, network)
    largest: dict[str, int] = {}
    for row, *_ in rows:
        largest[row.collective] = max(row.bytes, largest.get(row.collective, 0))
    pairs = []
    for row, call, tuning, seconds in rows:
        if row.bytes < largest[row.collective] or row.algorithm != algorithm or row.in_place:
            continue
        schedule = ALGORITHMS[row.collective][algorithm].build(world(network.ranks), call, tuning)
        simulated = simulate(schedule, network, call.dtype.itemsize).seconds
        pairs.append(Pair(row.collective, algorithm, row.bytes, seconds, simulated))
    return pairs


def table(pairs: list[Pair]) -> str:
    """Return the lines of the comparison."""
    head = f"{'collective':16} {'algorithm':14} {'bytes':>10} {'measured':>12} {'simulated':>12}  ratio"
    lines = [
        f"{pair.collective:16} {pair.algorithm:14} {pair.nbytes:10d} {pair.measured * 1e3:9.2f} ms"
        f" {pair.simulated * 1e3:9.2f} ms  {pair.ratio:5.3f}"
        for pair in pairs
    ]
    return "\n".join([head, *lines])


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", default="lab1g", help="description with the ports (lab1g)")
    parser.add_argument("--collectives", default=COLLECTIVES, help="what is measured (%(default)s)")
    parser.add_argument("--smallest", default="4M", metavar="SIZE", help="array (%(default)s)")
    parser.add_argument("--largest", default="16M", metavar="SIZE", help="array (%(default)s)")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="of each measurement (%(default)s)"
    )
    parser.add_argument(
        "--algorithms",
        default="hierarchical,ring",
        help="the fit's; the first one is simulated (%(default)s)",
    )
    parser.add_argument("--within", type=float, default=0.25, help="of the measured time (0.25)")
    parser.add_argument("--output", type=Path, metavar="FILE.h5", help="keep the measurements")
    return parser.parse_args()


def main() -> int:
    """Measure, fit, simulate and compare; return the exit status, the same on all ranks."""
    arguments = parse()
    comm = MPI.COMM_WORLD
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        output = arguments.output or Path(folder) / "measured.h5"
        if status := measure(output, arguments):
            return status
        if comm.rank == 0:
            run = choose(reader.read(output), None)
            network, report, _ = like(run, load(arguments.cluster), None)
            print(report + dump(network))
            pairs = compare(run, network, arguments.algorithms.split(",")[0])
            print(table(pairs))
            status = int(any(abs(pair.ratio - 1) > arguments.within for pair in pairs))
    return int(comm.bcast(status))


if __name__ == "__main__":
    sys.exit(main())
