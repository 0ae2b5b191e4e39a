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

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a rank works on one core
import numpy as np

import hpccomm
from contest import program
from contest.program import Ranks
from contest.promises import Figure
from contest.rounds import Call
from hpccomm.tools.programs.advice import advise
from hpccomm.tools.programs.analysis import Analysis

MATRIX = np.random.default_rng(0).normal(size=(96, 96)).astype(np.float32)


def work(milliseconds: float) -> None:
    """Multiply matrices that lie in the cache: about 66 products a millisecond, the same number each time."""
    for _ in range(int(66 * milliseconds)):
        np.matmul(MATRIX, MATRIX)


@dataclass(frozen=True, slots=True)
class Form:
    """What a rank does in a step: works, sums arrays of 256 bytes, works once more, and reduces gradients.

    Attributes
    ----------
    work : pair of float
        Milliseconds, on ranks of even and of odd numbers.
    sums : int
        Arrays of 256 bytes.
    merged : bool
        Whether they are summed as one array.
    between : float
        Milliseconds of work after that.
    nbytes : int
        Of the gradients.
    narrow : bool
        Whether they are reduced as float16.
    """

    work: tuple[float, float]
    sums: int = 0
    merged: bool = False
    between: float = 0.0
    nbytes: int = 0
    narrow: bool = False

    def step(self, comm: hpccomm.Communicator) -> Call:
        """Return the step."""
        values = np.ones((self.sums, 64), np.float32)
        gradients = np.ones(self.nbytes // 4, np.float32)
        half = gradients.astype(np.float16)

        def step() -> None:
            work(self.work[comm.rank % 2])
            for each in [values] if self.merged else values:
                comm.all_reduce(each, hpccomm.ReduceOp.AVG)
            work(self.between)
            gradients.fill(1.0)
            if self.narrow:
                half[:] = gradients
                comm.all_reduce(half, hpccomm.ReduceOp.AVG)
                gradients[:] = half
            elif self.nbytes:
                comm.all_reduce(gradients, hpccomm.ReduceOp.AVG)

        return step


PROGRAMS: dict[str, tuple[Form, dict[str, Any], str]] = {
    "transfer": (Form((4, 4), nbytes=4 << 20), {"narrow": True}, "compress"),
    "straggler": (Form((5, 20), nbytes=4096), {"work": (12.5, 12.5)}, "balance"),
    "tiny": (Form((2, 2), sums=400), {"merged": True}, "merge"),
    "mixed": (Form((5, 35), sums=200, between=2, nbytes=1 << 20), {"work": (20, 20)}, "balance"),
}
"""Each program before its change, the change, and what that is called in advice."""


def measured(name: str, ranks: Ranks) -> dict[str, Figure]:
    """Measure the figures of one program. Collective; on rank 0."""
    comm, turns = ranks.comm, ranks.request.rounds
    form, change, cause = PROGRAMS[name]
    forms = [each.step(comm) for each in (form, replace(form, **change))]
    halves = [ranks.compete(*forms)]
    with comm.record() as recorder:
        for _ in range(2 * turns):
            forms[0]()
            recorder.step()
    halves.append(ranks.compete(*forms))
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
        f"{name} first": Figure(float(advice[0].cause == cause), advice[0].what),
        f"{name} error": Figure(abs(predicted / gain - 1), says),
    }


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures, program by program. Collective."""
    found: dict[str, Figure] = {}
    for planted in dict.fromkeys(name.split()[0] for name in names):
        found |= measured(planted, ranks)
    return found


if __name__ == "__main__":
    half = program.turns(15, "of each, twice")
    program.on_ranks(__doc__, "straggler error", measure, rounds=half)
