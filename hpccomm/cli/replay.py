"""Run the communication of a recorded program again, as a benchmark.

Each rank makes the recorded calls, in their order and with their arguments, on arrays of zeros. Where the program
computed, its core is busy for as long. What cannot be made again is listed before: reductions by a function of the
program, calls on device arrays, windows. Objects are bytes of the recorded size. Settings are of this
job (HPCCOMM_ALGORITHM, ...), not of the recorded one.

On fewer ranks than recorded, these are the first ones: messages to others are not sent, blocks of others are left
out, and ranks that are there take the place of roots that are not.

A line is a call of the program, with medians over all ranks. The last lines say for how long calls blocked each rank
in a step.

Examples
--------
  mpiexec -n 8 hpccomm record --output t.h5 -- python train.py
  mpiexec -n 8 hpccomm replay t.h5
  mpiexec -n 8 hpccomm replay t.h5 --algorithm recorded,ring     two replays, step by step in turns
  mpiexec -n 4 hpccomm replay t.h5 --without-gaps --steps 1000 --output r.h5
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.bench.flag import Flag
from hpccomm.bench.perf import readers
from hpccomm.cli import output
from hpccomm.errors import ResultsError, UsageError
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.units import counted, ranges, rounded_size

if TYPE_CHECKING:
    from collections import Counter

    from hpccomm.communicator import Communicator
    from hpccomm.recordings.replaying import ComparedCalls, Score
    from hpccomm.results.recording import Recording

SECONDS = 10
MOST_CALLS = 100_000
"""Recorded seconds that are replayed by default, and the most calls of a rank."""

_NAMES = {"recorded", "auto", "native", *(name for each in ALGORITHMS.values() for name in each)}

FLAGS = (
    Flag("FILE", readers.file, "a results file with a recording", "file"),
    Flag("--run NAME", str, "the recording, by name (default: the last one)"),
    Flag(
        "--algorithm NAME[,NAME...] recorded",
        readers.algorithms(_NAMES, "is not an algorithm"),
        "what the calls take that have it; each of several is replayed, in turns",
    ),
    Flag(
        "--steps N",
        readers.integer(1),
        f"steps to run; more than recorded begin anew (default: what fills {SECONDS} s)",
    ),
    Flag("--warm-up N 5", readers.integer(0), "steps that are run before, and not counted"),
    Flag("--without-gaps", bool, "call after call, without computation between them"),
    Flag("--backend NAME auto", str, "as in perf"),
    Flag("-T --timeout SECONDS 60", readers.integer(1), "deadline of each call"),
    Flag("--output FILE.h5", readers.file, "add the recording of the replay to this file"),
)


def run(args: argparse.Namespace) -> int:
    """Replay. Collective: every rank of the job runs it."""
    import hpccomm

    with hpccomm.new_comm(args.backend, timeout=args.timeout, name="replay") as comm:
        try:
            return _replayed(args, comm)
        except (UsageError, ResultsError) as refused:  # on all ranks
            error = refused
    raise error


def _replayed(args: argparse.Namespace, comm: "Communicator") -> int:
    from hpccomm.bench.perf.root import on_root
    from hpccomm.recordings.player import Player

    planned = on_root(comm, lambda: _Planned(args, comm))
    total, number, used = comm.broadcast_object(planned.counts if planned else None)
    score = comm.scatter_object(planned.parts() if planned else None)
    player = Player(comm, score, used, args.algorithm, gaps=not args.without_gaps)
    each_rank = comm.all_gather_object(player.takers)
    takers = [set[str]().union(*each) for each in zip(*each_rank, strict=True)]
    for name, calls in zip(args.algorithm, takers, strict=True):
        if name != "recorded" and not calls:
            player.close()
            raise UsageError(f"--algorithm {name}: no call of these steps has it; give another")
    for step in range(-args.warm_up, total):
        if step == 0:
            recorder = comm.record(args.output)
        if step % number == 0:
            player.end()
        for at in range(len(args.algorithm)):
            player.play(step % number, at)
            if step >= 0:
                recorder.step()
    player.end()
    recorder.end()
    player.close()
    on_root(comm, lambda: planned.report(recorder, takers) if planned else None)
    status: int = comm.broadcast_object(planned.status if planned else None)
    return status


class _Planned:
    """A replay, on rank 0."""

    def __init__(self, args: argparse.Namespace, comm: "Communicator") -> None:
        from hpccomm.recordings.replaying import score
        from hpccomm.recordings.steps import steps
        from hpccomm.results.matching import collectives

        chosen, self.status = output.read_recording(args.file, args.run)
        self._args, self._recording = args, chosen
        if comm.size > chosen.ranks:
            raise UsageError(
                f"{chosen.name} of {args.file} is of {counted(chosen.ranks, 'rank')}, and this job has {comm.size}; "
                f"start {chosen.ranks} or fewer"
            )
        parts = steps(chosen, collectives(chosen))
        most = min(
            SECONDS * 1e9 / parts.durations.mean(),
            MOST_CALLS * len(parts) * chosen.ranks / len(chosen.calls["begin"]),
        )
        total = args.steps or max(1, min(len(parts), int(most)))
        number = min(total, len(parts))
        first = (len(parts) - number) // 2
        self._score, left_out = score(chosen, parts, first, number, comm.size)
        if not len(self._score.events):
            why = "; ".join(left_out) or "they make no calls"
            raise UsageError(
                f"no call of steps {first}-{first + number - 1} can be made again: {why}"
            )
        groups = {
            chosen.signatures[each].group for each in np.unique(self._score.events["signature"])
        }
        self.counts = total, number, sorted(groups)
        output.write(_heading(args, chosen, comm.size, total, (first, number, parts.how), left_out))

    def parts(self) -> "list[Score]":
        """Return what each rank does."""
        from dataclasses import replace

        events = self._score.events
        ranks = range(int(events["rank"].max()) + 1)
        return [replace(self._score, events=events[events["rank"] == each]) for each in ranks]

    def report(self, recorder: Any, takers: Sequence[set[str]]) -> None:
        """Print what came of it."""
        from hpccomm.recordings.replaying import compared
        from hpccomm.results import recording_file

        replay = recorder.recording or recording_file.read(self._args.output)[-1]
        several = len(self._args.algorithm)
        for at, (name, calls) in enumerate(zip(self._args.algorithm, takers, strict=True)):
            rows, blocked = compared(self._recording, replay, self._score, at, several)
            by = "" if name == "recorded" else f", taken by {', '.join(sorted(calls))}"
            output.write(f"#\n# Algorithms: {name}{by}\n{_table(rows)}{_steps(blocked)}")


def _heading(
    args: argparse.Namespace,
    recording: "Recording",
    ranks: int,
    total: int,
    span: tuple[int, int, str],
    left_out: "Counter[str]",
) -> str:
    first, number, how = span
    fewer = f" of {recording.ranks}" if ranks < recording.ranks else ""
    again = f" {total} times in turn" if total > number else ""
    lines = [
        f"{recording.name} of {args.file}: {counted(ranks, 'rank')}{fewer}, steps {ranges(range(first, first + number))}"
        f"{again} ({how}), {'without' if args.without_gaps else 'with'} gaps"
    ]
    lines += [f"left out: {counted(count, 'call')}, {what}" for what, count in left_out.items()]
    return "".join(f"# {line}\n" for line in lines)


def _ratio(recorded: float, replayed: float) -> str:
    figures = f"{recorded * 1e6:12.1f}  {replayed * 1e6:12.1f}"
    return f"{figures}  {replayed / recorded:6.2f}" if recorded else figures


def _table(rows: "Sequence[ComparedCalls]") -> str:
    lines = [
        f"# {'call':<22}  {'size':>9}  {'a step':>7}  recorded(us)  replayed(us)   ratio  where"
    ]
    lines += [
        f"{each.operation:<24}  {rounded_size(each.nbytes):>9}  {each.calls:7.1f}  "
        f"{_ratio(each.recorded, each.replayed)}  {each.site}"
        for each in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def _steps(blocked: Any) -> str:
    lines = [f"rank {rank:<19}  {'a step':>18}  {_ratio(*each)}" for rank, each in enumerate(blocked.T)]  # fmt: skip
    mean = f"# {'communication, mean':<22}  {'a step':>18}  {_ratio(*blocked.mean(axis=1))}"
    return "".join(f"{line}\n" for line in (*lines, mean))
