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

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mpi4py import MPI

from contest import program
from contest.program import Option
from hpccomm.results import reader
from hpccomm.results.reader import Run, choose
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Network, dump, load
from hpccomm.schedules.cost.rounds import simulate
from hpccomm.schedules.schedule import world
from hpccomm.tools.main import main as hpccomm
from hpccomm.tools.simulate.like import like, measurements

COLLECTIVES = "all_reduce,reduce_scatter,all_gather,broadcast,reduce,all_to_all"


def compare(run: Run, network: Network, algorithm: str) -> Iterator[tuple[str, int, float, float]]:
    """Yield collective, bytes, and the measured and simulated seconds of its largest arrays, out of place. Local."""
    rows, _, _ = measurements(run, network)
    largest: dict[str, int] = {}
    for row, *_ in rows:
        largest[row.collective] = max(row.bytes, largest.get(row.collective, 0))
    for row, call, tuning, seconds in rows:
        if row.bytes < largest[row.collective] or row.algorithm != algorithm or row.in_place:
            continue
        schedule = ALGORITHMS[row.collective][algorithm].build(world(network.ranks), call, tuning)
        simulated = simulate(schedule, network, call.dtype.itemsize).seconds
        yield row.collective, row.bytes, seconds, simulated


def main() -> int:
    """Measure, fit, simulate and compare; return the exit status, the same on all ranks."""
    options = {
        "cluster": Option("lab1g", "description with the ports"),
        "collectives": Option(COLLECTIVES, "what is measured"),
        "smallest": Option("4M", "array"),
        "largest": Option("16M", "array"),
        "repetitions": Option("5", "of each measurement"),
        "algorithms": Option("hierarchical,ring", "the fit's; the first one is simulated"),
        "within": Option(0.25, "of the measured time"),
        "output": Option(None, "results file (.h5) that keeps the measurements", Path),
    }
    asked = program.parser(__doc__, options).parse_args()
    comm = MPI.COMM_WORLD
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        output = asked.output or Path(folder) / "measured.h5"
        sizes = ["-b", asked.smallest, "-e", asked.largest, "-f", "2"]
        repetitions = ["-n", asked.repetitions, "-w", "2", "-z", "3"]
        named = ["--algorithm", asked.algorithms, "--output", str(output)]
        if status := hpccomm(["perf", asked.collectives, *sizes, *repetitions, *named]):
            return status
        if comm.rank == 0:
            run = choose(reader.read(output), None)
            network, report, _ = like(run, load(asked.cluster), None)
            print(report + dump(network))
            print(f"{'collective':16} {'bytes':>10} {'measured':>12} {'simulated':>12}  ratio")
            algorithm = asked.algorithms.split(",")[0]
            for collective, nbytes, measured, simulated in compare(run, network, algorithm):
                ratio = simulated / measured
                times = f"{measured * 1e3:9.2f} ms {simulated * 1e3:9.2f} ms"
                print(f"{collective:16} {nbytes:10d} {times}  {ratio:5.3f}")
                status |= abs(ratio - 1) > asked.within
    return int(comm.bcast(status))


if __name__ == "__main__":
    sys.exit(main())
