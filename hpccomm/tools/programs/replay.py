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
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccomm.calls import policy
from hpccomm.errors import ResultsError, UsageError
from hpccomm.tools import flags, output
from hpccomm.tools.flags import Flag
from hpccomm.units import counted, ranges, rounded_size

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.results.recording import Recording
    from hpccomm.tools.programs.replaying import Score

SECONDS = 10
MOST_CALLS = 100_000
"""Recorded seconds that are replayed by default, and the most calls of a rank."""

HEAD = "recorded(us)  replayed(us)   ratio  where"

_NAMES = {"recorded", *policy.NAMES}

FLAGS = (
    Flag("FILE", flags.file, "a results file with a recording", "file"),
    Flag("--run NAME", str, "the recording, by name (default: the last one)"),
    Flag(
        "--algorithm NAME[,NAME...] recorded",
        flags.algorithms(_NAMES, "is not an algorithm"),
        "what the calls take that have it; each of several is replayed, in turns",
    ),
    Flag(
        "--steps N",
        flags.integer(1),
        f"steps to run; more than recorded begin anew (default: what fills {SECONDS} s)",
    ),
    Flag("--warm-up N 5", flags.integer(0), "steps that are run before, and not counted"),
    Flag("--without-gaps", bool, "call after call, without computation between them"),
    Flag("--backend NAME auto", str, "as in perf"),
    Flag("-T --timeout SECONDS 60", flags.integer(1), "deadline of each call"),
    Flag("--output FILE.h5", flags.file, "add the recording of the replay to this file"),
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
    from hpccomm.tools.perf.facts import on_root
    from hpccomm.tools.programs.replaying import Player

    planned = on_root(comm, lambda: _planned(args, comm.size))
    parts = [(planned.steps, planned.score.of_rank(each)) for each in range(comm.size)] if planned else None  # fmt: skip
    total, score = comm.scatter_object(parts)
    player = Player(comm, score, args.algorithm, gaps=not args.without_gaps)
    each_rank = comm.all_gather_object(player.takers)
    takers = [set[str]().union(*each) for each in zip(*each_rank, strict=True)]
    for name, calls in zip(args.algorithm, takers, strict=True):
        if name != "recorded" and not calls:
            player.close()
            raise UsageError(f"--algorithm {name}: no call of these steps has it; give another")
    for step in range(-args.warm_up, total):
        if step == 0:
            recorder = comm.record(args.output)
        if step % score.steps == 0:
            player.end()
        for at in range(len(args.algorithm)):
            player.play(step % score.steps, at)
            if step >= 0:
                recorder.step()
    player.end()
    recorder.close()
    player.close()
    on_root(comm, lambda: _report(args, planned, recorder, takers) if planned else None)
    status: int = comm.broadcast_object(planned.status if planned else None)
    return status


class _Planned(NamedTuple):
    """A replay, on rank 0: how many steps are made, and the status of the file."""

    recording: "Recording"
    score: "Score"
    steps: int
    status: int


def _planned(args: argparse.Namespace, ranks: int) -> _Planned:
    """Choose what is replayed, and print it."""
    from hpccomm.results.recording import collectives
    from hpccomm.tools.programs.replaying import score
    from hpccomm.tools.programs.steps import steps

    chosen, status = output.read_recording(args.file, args.run)
    if ranks > chosen.ranks:
        raise UsageError(
            f"{chosen.name} of {args.file} is of {counted(chosen.ranks, 'rank')}, and this job has {ranks}; "
            f"start {chosen.ranks} or fewer"
        )
    parts = steps(chosen, collectives(chosen))
    most = min(
        SECONDS * 1e9 / parts.durations.mean(),
        MOST_CALLS * len(parts) * chosen.ranks / chosen.calls.count,
    )
    total = args.steps or max(1, min(len(parts), int(most)))
    number = min(total, len(parts))
    first = (len(parts) - number) // 2
    whole, left_out = score(chosen, parts, first, number, ranks)
    span = ranges(range(first, first + number))
    if not whole.used:
        why = "; ".join(left_out) or "they make no calls"
        raise UsageError(f"no call of steps {span} can be made again: {why}")
    fewer = f" of {chosen.ranks}" if ranks < chosen.ranks else ""
    again = f" {total} times in turn" if total > number else ""
    output.write(
        f"# {chosen.name} of {args.file}: {counted(ranks, 'rank')}{fewer}, steps {span}{again} ({parts.how}), "
        f"{'without' if args.without_gaps else 'with'} gaps\n"
        + "".join(f"# left out: {counted(count, 'call')}, {what}\n" for what, count in left_out.items())
    )  # fmt: skip
    return _Planned(chosen, whole, total, status)


def _report(
    args: argparse.Namespace, planned: _Planned, recorder: Any, takers: Sequence[set[str]]
) -> None:
    """Print what came of it."""
    from hpccomm.results import recording_file
    from hpccomm.tools.programs.replaying import compared

    replay = recorder.recording or recording_file.read_recordings(args.output)[-1]
    for at, (name, calls) in enumerate(zip(args.algorithm, takers, strict=True)):
        rows, blocked = compared(planned.recording, replay, planned.score, at, len(takers))
        by = "" if name == "recorded" else f", taken by {', '.join(sorted(calls))}"
        lines = [
            f"#\n# Algorithms: {name}{by}\n# {'call':<22}  {'size':>9}  {'a step':>7}  {HEAD}\n"
        ]
        lines += [
            _line(each.operation, rounded_size(each.nbytes), f"{each.calls:.1f}", *each[4:], each.site)
            for each in rows
        ]  # fmt: skip
        lines += [_line(f"rank {rank}", "", "a step", *each) for rank, each in enumerate(blocked.T)]
        lines += [_line("# communication, mean", "", "a step", *blocked.mean(axis=1))]
        output.write("".join(lines))


def _line(
    what: str, size: str, often: str, recorded: float, replayed: float, site: str = ""
) -> str:
    ratio = f"{replayed / recorded:.2f}" if recorded else ""
    line = f"{what:<24}  {size:>9}  {often:>7}  {recorded * 1e6:12.1f}  {replayed * 1e6:12.1f}  {ratio:>6}  {site}"
    return line.rstrip() + "\n"
