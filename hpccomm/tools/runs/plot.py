"""Draw an algorithm, a logged training, pairs of ranks, or stored runs.

An algorithm is drawn from its schedule: ranks across, rounds down, an arrow for each message,
labelled with the elements that it moves and the ranks whose contributions they hold. A training is
drawn step by step, pairs of ranks as heat maps, and runs as curves in one chart.

Examples
--------
  hpccomm plot --schedule ring --ranks 8
  hpccomm plot --schedule ring --collective all_gather --ranks 5 --output ring.png
  hpccomm plot --schedule ring --ranks 4 --count 16 --segment 2 --channels 2
  hpccomm plot --schedule ring --ranks 16 --text
  hpccomm plot --training run.h5 --output training.svg
  hpccomm plot --pairs pairs.h5 --output pairs.png
  hpccomm plot --runs base.h5 new.h5 --case all_reduce --output runs.png
  hpccomm plot --runs archive/ --what history --case all_reduce:1M
  hpccomm plot --runs isolated.h5 --what skew --case all_reduce:1K

Without --output the picture goes to a file of the current folder, which is named. Pictures need
vl-convert; the SVG of --schedule, and --text, do not.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import archive, pairs
from hpccomm.results.reader import Run, choose
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.tools import drawing, flags, output
from hpccomm.tools.flags import FlagGroup, refuse
from hpccomm.tools.runs import charts, curves, schedule
from hpccomm.tools.runs.trace import Subject, subject
from hpccomm.units import counted, few

_NAMES = sorted({name for named in ALGORITHMS.values() for name in named})

_OWN = flags.table(
    __package__,
    words={"algorithms": ", ".join(_NAMES), "collectives": ", ".join(ALGORITHMS)},
    file="plot.toml",
)

_USUAL = {
    each.takes: each.default and int(each.default) for each in _OWN["schedule"] if each.metavar
}
"""Values of flags that were not given."""

FLAGS = (
    FlagGroup(_OWN["drawn"], exclusive=True, required=True),
    *_OWN["run"],
    FlagGroup(_OWN["chart of --runs"], "chart of --runs"),
    *_OWN["schedule"],
    FlagGroup(_OWN["shown"], exclusive=True),
)


class Drawn(NamedTuple):
    """A picture as SVG, or empty; its default file; the printed text; the exit status."""

    picture: str
    name: str
    said: str
    status: int = 0


def run(args: argparse.Namespace) -> int:
    """Draw it; return the exit status."""
    if args.output is not None:
        drawing.check_place(args.output)  # before the work
    draw = {"training": _training, "pairs": _pairs, "runs": _runs, "schedule": _schedule}
    kind = next(name for name in draw if getattr(args, name) is not None)
    _refuse_others(args, kind)
    drawn = draw[kind](args)
    said = f"{drawn.said}\n"
    if drawn.picture:
        file = args.output or Path(drawn.name)
        drawing.save(drawn.picture, file)
        said += f"drawn in {file}\n"
    output.write(said)
    return drawn.status


def _refuse_others(args: argparse.Namespace, kind: str) -> None:
    """Raise if there is a flag that belongs to another kind of picture."""
    if kind == "schedule":
        why = "chooses a recording or pairs; name its file by --training or --pairs"
        refuse(args, ("run",), why)
        return
    given = [name for name, default in _USUAL.items() if getattr(args, name) != default]
    refuse(
        args,
        (*given, "deterministic", "text"),
        f"belongs to --schedule; leave it out with --{kind}",
    )
    if kind != "runs" and (args.case or args.all or args.what != "size"):
        raise UsageError(f"--what, --case and --all belong to --runs; leave them out with --{kind}")


def _training(args: argparse.Namespace) -> Drawn:
    """Draw a stored training."""
    examined, status = output.read_file(args.training)
    trainings = [each for each in examined.recordings if len(each.steps)]
    if not trainings:
        raise ResultsError(f"{args.training} holds no training; GradientSync(..., log=) writes one")
    chosen = choose(examined.recordings if args.run else trainings, args.run)
    said, name = f"{chosen.name}: {len(chosen.steps)} steps", f"{args.training.stem}-{chosen.name}"
    return Drawn(drawing.svg(charts.training_chart(chosen)), f"{name}.svg", said, status)


def _pairs(args: argparse.Namespace) -> Drawn:
    """Draw stored pairs of ranks."""
    examined, status = output.read_file(args.pairs)
    runs = [run for run in examined.runs if pairs.ENTRY in run.entries]
    if not runs:
        raise ResultsError(f"{args.pairs} holds no pairs; hpccomm perf pairs --output writes them")
    chosen = choose(examined.runs if args.run else runs, args.run)
    measured, diagnosis = pairs.read(chosen)
    chart = charts.pairs_of_ranks(measured, diagnosis)
    said, name = f"{chosen.name}: {len(measured.links)} pairs", f"{args.pairs.stem}-{chosen.name}"
    return Drawn(drawing.svg(chart), f"{name}-pairs.svg", said, status)


def _runs(args: argparse.Namespace) -> Drawn:
    """Draw stored runs."""
    with output.watched("reading"):
        searched = archive.search(args.runs, archive.Query(*(args.case or ())))
    status = output.damaged(searched.damage)
    runs = [each.part for each in searched.found if each.part.rows]
    if args.run is not None:
        runs = [choose(runs, args.run)]
    elif not (args.all or args.what == "history"):
        runs = list({run.path: run for run in runs}.values())
    if not runs:
        raise ResultsError(
            f"{', '.join(map(str, args.runs))}: no such row to draw; hpccomm show --list says what there is"
        )
    if args.what == "history":
        chart = charts.histories(curves.history(runs))
    elif args.what == "skew":
        skew = next(filter(None, map(curves.first_skew, runs)), None)
        if skew is None:
            raise ResultsError(
                "no such row was measured in isolation; hpccomm perf --sync measures what --what skew draws"
            )
        chart = charts.skews(*skew)
    else:
        chart = charts.over_size(_title(runs), curves.curves(runs))
    name = f"{args.runs[0].stem or 'runs'}-{args.what}.svg"
    return Drawn(drawing.svg(chart), name, counted(len(runs), "run"), status)


def _title(runs: Sequence[Run]) -> str:
    """Return the common facts of runs: collectives, ranks, hosts."""
    names = list(dict.fromkeys(row.collective for run in runs for row in run.rows))
    ranks = sorted({len(run.info.ranks) for run in runs})
    hosts = list(dict.fromkeys(host for run in runs for host in run.info.hosts))
    return f"{', '.join(names)} on {' and '.join(map(str, ranks))} ranks of {few(hosts, 1)}"


def _schedule(args: argparse.Namespace) -> Drawn:
    """Draw an algorithm."""
    given = {name: getattr(args, name) for name in (*_USUAL, "deterministic")}
    with output.watched(f"drawing {args.schedule}"):
        shown = subject(args.schedule, given.pop("collective"), **given)
        if args.text:
            return Drawn("", "", "\n".join(schedule.lines(shown)))
        picture = schedule.draw(shown)
    return Drawn(picture, f"{_name(shown, args)}.svg", f"{shown.title}: {shown.summary}")


def _name(shown: Subject, args: argparse.Namespace) -> str:
    """Return a name that differs between pictures of one folder: its subject, and the flags."""
    words = [shown.algorithm, shown.collective, str(shown.size)]
    for name in ("root", "count", "segment", "channels", "nodes"):
        value = getattr(args, name)
        if value != _USUAL[name]:
            words.append(f"{name}{value}")
    return "-".join(words + ["deterministic"] * args.deterministic)
