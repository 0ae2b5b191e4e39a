r"""A recorded program predicted on another cluster, beside the same program there.

As root::

    python benchmarks/elsewhere.py

Records a small program like a training on two ranks of this machine, predicts it by ``hpccomm simulate
--trace`` for two hosts behind links of 1 Gbit/s, runs it on these (``jobs/virtual_cluster.sh``), and
prints both steps. The description is that of ``lab1g`` for one rank a host. Nothing is fitted to the
hosts.

blocking     computes, and has its gradients reduced at once
overlapped   has them reduced in four parts beside the computation
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hpccomm
from contest import figures
from contest.figures import Figure
from hpccomm.recordings.prediction import predict
from hpccomm.recordings.prices import on_network
from hpccomm.recordings.program import ProgramModel, model
from hpccomm.recordings.steps import steps
from hpccomm.results.matching import collectives
from hpccomm.results.recording import Recording
from hpccomm.results.recording_file import read_recordings
from hpccomm.schedules.cost.network_files import load

UNAVAILABLE = 77
"""Exit status where such hosts cannot be made."""

ROUNDS = 3
"""Recordings in each place; that of the shortest step counts."""

STEPS = 8
COMPUTE = 0.15
"""Seconds of computation in a step. The host sleeps, as where a device computes: all hosts share this machine's cores."""

GRADIENTS = 16 << 20
"""Bytes of gradients."""


def program(kind: str, path: Path) -> None:
    """Run and record the program; collective."""
    parts = 4 if kind == "overlapped" else 1
    with hpccomm.new_comm() as comm:
        gradients = np.ones((parts, GRADIENTS // 4 // parts), np.float32)
        for each in gradients:
            comm.all_reduce(each, op=hpccomm.ReduceOp.MAX)
        with comm.record(path) as recording:
            for _ in range(STEPS):
                time.sleep(COMPUTE / 3)
                works = []
                for each in gradients:
                    time.sleep(COMPUTE * 2 / 3 / parts)
                    if parts == 1:
                        comm.all_reduce(each, op=hpccomm.ReduceOp.MAX)
                    else:
                        works.append(comm.all_reduce(each, op=hpccomm.ReduceOp.MAX, async_op=True))
                for work in works:
                    work.wait()
                recording.step()


def recorded(launch: list[str], kind: str, path: Path) -> Recording:
    """Run the program elsewhere; return its recording."""
    command = [*launch, sys.executable, __file__, "--record", kind, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == UNAVAILABLE:
        print(done.stdout, file=sys.stderr)
        sys.exit(UNAVAILABLE)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}")
    return read_recordings(path)[-1]


def compared(kind: str, folder: Path) -> Figure:
    """Predict the program and run it; return the ratio of the steps, at least 1."""
    mpiexec = os.environ.get("HPCCOMM_MPIEXEC", "mpiexec")
    hosts = Path(__file__).parents[1] / "jobs" / "virtual_cluster.sh"
    there = ["bash", str(hosts), "--nodes", "2", "--ranks-per-node", "1", "--link", "1gbit", "--"]
    programs: list[list[ProgramModel]] = [[], []]
    # In turns, so that other load of the machine meets both.
    for number in range(ROUNDS):
        for place, launch in enumerate(([mpiexec, "-n", "2"], there)):
            each = recorded(launch, kind, folder / f"{kind}-{place}-{number}.h5")
            programs[place].append(model(each, steps(each, collectives(each))))
    here, measured = (min(each, key=lambda one: one.seconds) for each in programs)
    lab = load("lab1g")
    priced = on_network(here, lab.placed(2, 1, lab))
    seconds = predict(priced).seconds
    says = (
        f"predicted {seconds * 1e3:.1f} ms, measured {measured.seconds * 1e3:.1f} ms, recorded here "
        f"{here.seconds * 1e3:.1f} ms"
    )
    return Figure(max(seconds / measured.seconds, measured.seconds / seconds), says)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", nargs=2, help=argparse.SUPPRESS)
    figures.add_arguments(parser, "blocking")
    request = parser.parse_args()
    if request.record:
        program(request.record[0], Path(request.record[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {name: compared(name, Path(folder)) for name in request.figures}
    figures.show(found, request.json)


if __name__ == "__main__":
    main()
