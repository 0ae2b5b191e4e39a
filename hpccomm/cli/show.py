"""``hpccomm show``: a stored run as the table that it printed, or a stored training."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpccomm.cli import output

DESCRIPTION = """\
Print a stored run: where it was made, and its table as `hpccomm perf` printed it. Or a training that was
logged: what its gradients cost. What is damaged is left out and named on standard error, and the exit status is
2.
"""

EXAMPLES = """\
examples:
  hpccomm show run.h5              the last run of the file
  hpccomm show run.h5 --run 1      the first
  hpccomm show run.h5 --run run0003
  hpccomm show run.h5 --run training0001   what a training's gradients cost
  hpccomm show run.h5 --statistics  medians and percentiles as well
  hpccomm show run.h5 --verify     a line a run; status 2 if anything is not as it was stored
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=path, metavar="FILE", help="a results file")
    add_run(parser)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check every run, row, sample and training of the file against its checksum instead",
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help="print minimum, median, percentiles and maximum over the repetitions of each row, or the steps of "
        "a training, as well, in lines of comment",
    )


def path(text: str) -> Path:
    """Read the name of a file; an empty one, of an unset variable, is not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give a path")
    return Path(text)


def add_run(parser: "argparse._ActionsContainer") -> None:
    """Add the option that chooses a run of the file."""
    parser.add_argument(
        "--run",
        metavar="NAME|INDEX",
        help="the run or training, by name, or by number among the runs: 1 is the first, -1 the last (default: "
        "the last run; the last training if there are no runs)",
    )


def told(file: Path, damage: Sequence[str]) -> int:
    """Name what of a results file is damaged, and with that left out; return the exit status."""
    for what in damage:
        output.warn(f"hpccomm: damaged: {file}: {what}\n")
    return 2 if damage else 0


def run(args: argparse.Namespace) -> int:
    """Print the run; return the exit status."""
    from hpccomm.bench.progress import watched
    from hpccomm.results import (
        describe,
        pairs,
        pairs_text,
        reader,
        table,
        training_file,
        training_text,
    )
    from hpccomm.results.training import Training
    from hpccomm.results.verify import verify

    if args.verify:
        with watched(f"checking {args.file.name}") as progress:
            lines, whole = verify(args.file, progress)
        output.write("".join(f"{line}\n" for line in lines))
        return 0 if whole else 2
    with watched(f"reading {args.file.name}"):
        examined = reader.examine(args.file)
        trainings, lost = training_file.examine(args.file, examined)
    status = told(args.file, [*examined.damage, *lost])
    chosen = training_file.choose(examined.runs, trainings, args.run)
    listing = describe.listing(examined.runs, trainings, chosen)
    if isinstance(chosen, Training):
        output.write(listing + training_text.text(chosen, statistics=args.statistics))
        return status
    finished = chosen.status == "completed"
    if pairs.GROUP in chosen.groups:
        measured, thresholds = pairs.read(chosen)
        found = pairs_text.text(measured, pairs.blame(measured, thresholds))
        output.write(listing + describe.facts(chosen) + found)
        return status
    with watched(f"showing {chosen.name}", len(chosen.rows)) as progress:
        samples = reader.WholeSamples(chosen, progress)
        text = table.run_text(
            chosen.info,
            chosen.rows,
            samples,
            finished=finished,
            whole=not chosen.damage,
            statistics=args.statistics,
            timings=chosen.timings,
        )
    output.write(listing + describe.facts(chosen) + text)
    return told(args.file, samples.damage()) or status
