"""Communication of a training, and of its replay.

Run it as it is::

    python benchmarks/replayed.py training

The training of ``docs/examples/train_digits.py`` on two ranks is recorded and replayed, in turns. Of each, a figure
takes the seconds for which calls block a rank in a step: the median over the steps, as the mean over the ranks, and
the least over the rounds, since other programs on the machine disturb some of them. Each rank has a core: two ranks
that a busy machine puts on one wait for each other's computation.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from contest import figures
from contest.figures import Figure
from hpccomm.recordings.steps import steps
from hpccomm.results.matching import collectives
from hpccomm.results.recording import Recording
from hpccomm.results.recording_file import read_recordings

ROUNDS = 7
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "train_digits.py"
PROGRAM = (sys.executable, str(EXAMPLE), "--epochs", "30")


def blocked(recording: Recording) -> float:
    """Return the seconds for which calls block a rank in a step."""
    bounds = steps(recording, collectives(recording)).bounds
    ranks = []
    for rank in range(recording.ranks):
        own = recording.calls.of_rank(rank)
        step = np.searchsorted(bounds[:, rank], recording.calls["begin"][own], "right")
        waited = np.bincount(step, recording.calls["waited"][own])
        ranks.append(np.median(waited[1 : len(bounds)]))
    return float(np.mean(ranks)) * 1e-9


def run(*command: str) -> None:
    """Run something on two ranks, each on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    ranks = [["-n", "1", "taskset", "-c", str(core), *command] for core in (cores[0], cores[-1])]
    launched = [os.environ.get("HPCCOMM_MPIEXEC", "mpiexec"), *ranks[0], ":", *ranks[1]]
    done = subprocess.run(launched, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")


def measured() -> Figure:
    """Record and replay the training; return the ratio of their communication, at least 1."""
    hpccomm, both = [sys.executable, "-m", "hpccomm"], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder) / name) for name in ("program.h5", "replay.h5")]
            run(*hpccomm, "record", "--output", files[0], "--", *PROGRAM)
            run(*hpccomm, "replay", files[0], "--output", files[1])
            both.append([blocked(read_recordings(file)[-1]) for file in files])
    program, replay = np.min(both, axis=0)
    return Figure(
        max(program, replay) / min(program, replay),
        f"{program * 1e6:.1f} us in the training, {replay * 1e6:.1f} us in its replay",
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    figures.add_arguments(parser, "training")
    request = parser.parse_args()
    figures.show({name: measured() for name in request.figures}, request.json)


if __name__ == "__main__":
    main()
