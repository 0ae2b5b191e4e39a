r"""A recorded program predicted on another cluster, and replayed, beside the program itself.

As root::

    python benchmarks/predicted.py blocking overlapped
    python benchmarks/predicted.py training

For ``blocking`` and ``overlapped``, a small program like a training is recorded on two ranks of this machine. It is
predicted as ``hpccomm simulate --trace`` does for two hosts behind links of 1 Gbit/s, and run on these
(``jobs/virtual_cluster.sh``). Both steps are printed. The description is that of ``lab1g`` for one rank a host. Nothing
is fitted to the hosts.

blocking     computes, and has its gradients reduced at once
overlapped   has them reduced in four parts beside the computation

For ``training``, which needs no root, the training of ``docs/examples/train_digits.py`` on two ranks is recorded and
replayed, in turns. Of each, the figure takes the seconds for which calls block a rank in a step: the median over the
steps, as the mean over the ranks, and the least over the rounds, since other programs on the machine disturb some of
them. Each rank has a core: two ranks that a busy machine puts on one wait for each other's computation.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hpccomm
from contest import jobs, program
from contest.promises import Figure
from contest.rounds import duration
from hpccomm.results.recording import Recording, collectives
from hpccomm.results.recording_file import read_recordings
from hpccomm.schedules.cost.network import load
from hpccomm.tools.programs.model import ProgramModel, model, predict
from hpccomm.tools.programs.pricing import on_network
from hpccomm.tools.programs.steps import steps

ROUNDS = 3
"""Recordings in each place; that of the shortest step counts."""

REPLAYS = 7
TRAINING = (sys.executable, str(jobs.CHECKOUT / "docs/examples/train_digits.py"), "--epochs", "30")

STEPS = 8
COMPUTE = 0.15
"""Seconds of computation in a step. The host sleeps, as where a device computes: all hosts share this machine's cores."""

GRADIENTS = 16 << 20
"""Bytes of gradients."""


def train(kind: str, path: Path) -> None:
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
                    works.append(comm.all_reduce(each, op=hpccomm.ReduceOp.MAX, async_op=parts > 1))
                for work in works if parts > 1 else ():
                    work.wait()
                recording.step()


def recorded(launch: list[str], kind: str, path: Path) -> ProgramModel:
    """Run the program elsewhere, and return what its recording tells."""
    jobs.run([*launch, sys.executable, __file__, "--record", kind, str(path)])
    recording = read_recordings(path)[-1]
    return model(recording, steps(recording, collectives(recording)))


def compared(kind: str) -> Figure:
    """Predict the program and run it; return the ratio of the steps, at least 1."""
    places = [jobs.mpiexec(), "-n", "2"], jobs.cluster(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        # In turns, so that other load of the machine meets both.
        turns = [
            [
                recorded(launch, kind, Path(folder, f"{number}-{place}.h5"))
                for place, launch in enumerate(places)
            ]
            for number in range(ROUNDS)
        ]
    here, measured = (min(each, key=lambda one: one.seconds) for each in zip(*turns, strict=True))
    lab = load("lab1g")
    seconds = predict(on_network(here, lab.placed(2, 1, lab))).seconds
    there, before = duration(measured.seconds), duration(here.seconds)
    says = f"predicted {duration(seconds)}, measured {there}, recorded here {before}"
    return Figure(max(seconds / measured.seconds, measured.seconds / seconds), says)


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


def on_cores(*command: str) -> None:
    """Run something on two ranks, each on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    ranks = [["-n", "1", "taskset", "-c", str(core), *command] for core in (cores[0], cores[-1])]
    jobs.run([jobs.mpiexec(), *ranks[0], ":", *ranks[1]])


def replayed() -> Figure:
    """Record and replay the training; return the ratio of their communication, at least 1."""
    both = []
    for _ in range(REPLAYS):
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder) / name) for name in ("program.h5", "replay.h5")]
            on_cores(*jobs.HPCCOMM, "record", "--output", files[0], "--", *TRAINING)
            on_cores(*jobs.HPCCOMM, "replay", files[0], "--output", files[1])
            both.append([blocked(read_recordings(file)[-1]) for file in files])
    training, replay = np.min(both, axis=0)
    says = f"{training * 1e6:.1f} us in the training, {replay * 1e6:.1f} us in its replay"
    return Figure(max(training, replay) / min(training, replay), says)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:  # on the ranks of a job that `recorded` starts
        train(sys.argv[2], Path(sys.argv[3]))
    else:
        program.alone(
            __doc__,
            "blocking",
            lambda name, _: replayed() if name == "training" else compared(name),
        )
