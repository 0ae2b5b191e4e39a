r"""Whether the advice on a recorded program names what costs it time, and predicts what the change gains.

Run it on two ranks behind a slow link, or on one node::

    bash jobs/virtual_cluster.sh --nodes 2 --ranks-per-node 1 --link 1gbit -- python benchmarks/advice.py
    mpiexec -n 2 python benchmarks/advice.py "straggler error"

A figure is ``PROGRAM MEASURE``. The programs are planted: each has a form before and a form after a change.

transfer     4 MiB of gradients are reduced after little work; then as float16
straggler    one rank works for four times as long as the other; then both for as long as the mean
tiny         400 sums of 256 bytes a step; then one
mixed        all three, and the straggler costs the most; then balanced

The measures are

first     1 if the first advice on the program before the change is that change, else 0
error     predicted gain over measured gain, less 1, without its sign; gains are seconds of a step

Both forms take turns, timed by Python's clock. Their figures are medians over the rounds, of the slowest rank.
"""

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a rank works on one core
import numpy as np

import hpccomm
from contest import figures, rounds
from contest.figures import Figure
from hpccomm.recordings.advice import Analysis, advise

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py.MPI import Intracomm

    from contest.rounds import Call

MATRIX = np.random.default_rng(0).normal(size=(96, 96)).astype(np.float32)


def work(milliseconds: float) -> None:
    """Multiply matrices that lie in the cache: about 66 products a millisecond, the same number each time."""
    for _ in range(int(66 * milliseconds)):
        np.matmul(MATRIX, MATRIX)


def transfer(comm: hpccomm.Communicator, changed: bool) -> "Call":
    """Return a step that is bound by communication, or its gradients as float16."""
    return _reduced(comm, 4 << 20, changed, partial(work, 4))


def straggler(comm: hpccomm.Communicator, changed: bool) -> "Call":
    """Return a step in which rank 1 works for longer, or both the same."""
    x = np.ones(1024, np.float32)
    own = 12.5 if changed else (5, 20)[comm.rank % 2]

    def step() -> None:
        work(own)
        comm.all_reduce(x, hpccomm.ReduceOp.AVG)

    return step


def tiny(comm: hpccomm.Communicator, changed: bool) -> "Call":
    """Return a step of many sums of few bytes, or of one."""
    return _many(comm, 400, changed, partial(work, 2))


def mixed(comm: hpccomm.Communicator, changed: bool) -> "Call":
    """Return a step with all three: late rank, many sums, gradients; or without the late rank."""
    own = 20 if changed else (5, 35)[comm.rank % 2]
    first = _many(comm, 200, False, partial(work, own))
    second = _reduced(comm, 1 << 20, False, partial(work, 2))

    def step() -> None:
        first()
        second()

    return step


def _reduced(comm: hpccomm.Communicator, nbytes: int, narrow: bool, before: "Call") -> "Call":
    """Return a step that works and then reduces gradients: as they are, or as float16."""
    gradients = np.ones(nbytes // 4, np.float32)
    half = gradients.astype(np.float16)

    def step() -> None:
        before()
        gradients.fill(1.0)
        if narrow:
            half[:] = gradients
            comm.all_reduce(half, hpccomm.ReduceOp.AVG)
            gradients[:] = half
        else:
            comm.all_reduce(gradients, hpccomm.ReduceOp.AVG)

    return step


def _many(comm: hpccomm.Communicator, calls: int, merged: bool, before: "Call") -> "Call":
    """Return a step that works and then sums arrays of 256 bytes: one by one, or as one array."""
    values = np.ones((calls, 64), np.float32)

    def step() -> None:
        before()
        if merged:
            comm.all_reduce(values, hpccomm.ReduceOp.AVG)
        else:
            for each in values:
                comm.all_reduce(each, hpccomm.ReduceOp.AVG)

    return step


PROGRAMS: "dict[str, Callable[[hpccomm.Communicator, bool], Call]]" = {
    "transfer": transfer,
    "straggler": straggler,
    "tiny": tiny,
    "mixed": mixed,
}
CAUSES = {"transfer": "compress", "straggler": "balance", "tiny": "merge", "mixed": "balance"}
"""What the change of each is called in advice."""


def measure(
    name: str, comm: hpccomm.Communicator, bare: "Intracomm", turns: int
) -> dict[str, Figure]:
    """Measure the figures of one program. Collective; on rank 0."""
    forms = [PROGRAMS[name](comm, changed) for changed in (False, True)]
    halves = [rounds.compete(forms, bare, turns)]
    with comm.record() as recorder:
        for _ in range(2 * turns):
            forms[0]()
            recorder.step()
    halves.append(rounds.compete(forms, bare, turns))
    if comm.rank:
        return {}
    before, after = (np.concatenate([half[at].rounds for half in halves]) for at in range(2))
    gain = float(np.median(before) - np.median(after))
    assert recorder.recording is not None
    analysis = Analysis(recorder.recording)
    advice = advise(analysis)
    if not advice:
        return {f"{name} first": Figure(0, "no advice"), f"{name} error": Figure(1, "no advice")}
    predicted = analysis.step - advice[0].seconds
    says = (
        f"{np.median(before) * 1e3:.2f} to {np.median(after) * 1e3:.2f} ms a step, a gain of {gain * 1e3:.2f}; "
        f"predicted {analysis.step * 1e3:.2f} to {advice[0].seconds * 1e3:.2f}, {predicted * 1e3:.2f}"
    )
    return {
        f"{name} first": Figure(float(advice[0].cause == CAUSES[name]), advice[0].what),
        f"{name} error": Figure(abs(predicted / gain - 1), says),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    figures.add_arguments(parser, "straggler error")
    parser.add_argument(
        "--rounds", type=int, default=15, help="half the turns of each (%(default)s)"
    )
    request = parser.parse_args()
    from mpi4py import MPI  # starts MPI

    bare = MPI.COMM_WORLD.Dup()
    measured: dict[str, Figure] = {}
    with hpccomm.new_comm() as comm:
        for name in dict.fromkeys(each.split()[0] for each in request.figures):
            measured |= measure(name, comm, bare, request.rounds)
        rank = comm.rank
    if rank == 0:
        figures.show({name: measured[name] for name in request.figures}, request.json)


if __name__ == "__main__":
    main()
