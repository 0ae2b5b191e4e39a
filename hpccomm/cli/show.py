"""``hpccomm show``: a stored run as the table that it printed."""

import argparse
from pathlib import Path

from hpccomm.cli import output

DESCRIPTION = "Print a stored run: where it was made, and its table as `hpccomm perf` printed it."

EXAMPLES = """\
examples:
  hpccomm show run.h5              the last run of the file
  hpccomm show run.h5 --run 1      the first
  hpccomm show run.h5 --run run0003
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=path, metavar="FILE", help="a results file")
    add_run(parser)


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
        help="the run, by name or by number: 1 is the first, -1 the last (default: the last)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the run; return the exit status."""
    from hpccomm.results import describe, reader, table

    runs = reader.read(args.file)
    chosen = reader.choose(runs, args.run)
    finished = chosen.status == "completed"
    output.write(
        (describe.listing(runs, chosen) if len(runs) > 1 else "")
        + describe.facts(chosen)
        + table.run_text(chosen.info, chosen.rows, chosen.samples, finished=finished)
    )
    return 0
