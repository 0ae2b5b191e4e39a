"""Write a report of stored runs and recordings: one page of HTML that needs no network.

It has verdicts, interactive charts of time and bandwidth over size, history over runs, skew of
ranks, pairs of ranks, a table to sort and filter, and the facts of the machine and the libraries.
Of a recorded program it has where the time of a step goes, the advice of hpccomm advise, the
timeline of a step, and who kept others waiting.

Examples
--------
  hpccomm report runs.h5                                writes runs.html
  hpccomm report t.h5                                   of a recording: hpccomm record --output t.h5
  hpccomm report archive/ --since 30d --output month.html
  hpccomm report new.h5 --base last_month.h5            with the verdicts of hpccomm compare
"""

import argparse
from pathlib import Path

from hpccomm.errors import ResultsError
from hpccomm.tools import flags, output
from hpccomm.tools.flags import ANY_MACHINE, LOOKED_FOR, Flag, query
from hpccomm.units import counted_all

FLAGS = (
    Flag("FILE", flags.file, "results files, and folders of them", "files", values="+"),
    Flag("--base FILE", flags.file, "compare with the runs of this file or folder"),
    ANY_MACHINE,
    *LOOKED_FOR,
    Flag("--output FILE.html", flags.file, "the page (default: named as the first file)"),
)


def _named_as(file: Path) -> Path:
    """Return the page's name, beside a file or folder: runs.h5 gives runs.html."""
    if file.name in ("", ".."):
        return Path("report.html")
    return file.with_name(f"{file.name.removesuffix('.h5')}.html")


def run(args: argparse.Namespace) -> int:
    """Write the page; return the exit status."""
    from hpccomm.results import archive
    from hpccomm.results.comparison import matching
    from hpccomm.results.comparison.verdict import compare
    from hpccomm.tools.runs import page

    file = args.output or _named_as(args.files[0])
    with output.watched("reading files") as progress:
        searched = archive.search(args.files, query(args), progress, recordings=True)
    runs = [each.run for each in searched.found]
    recordings = [each for each in searched.recordings if each.calls.count and not each.lacks]
    lacking = [each for each in searched.recordings if each.lacks]
    damage = searched.damage + [f"{each.path}: {each.name}: {each.lacks}" for each in lacking]
    status = output.damaged(damage)
    if not runs and not recordings:
        raise ResultsError(
            f"{', '.join(map(str, args.files))}: no such run or recorded calls; hpccomm show --list says what there is"
        )
    compared = None
    if args.base is not None:
        with output.watched("comparing"):
            completed = tuple(run for run in runs if run.status == "completed")
            if not completed:
                raise ResultsError("no run has completed that could be compared with --base")
            compared = compare(
                matching.side([args.base]),
                matching.Side(completed, ()),
                any_machine=args.any_machine,
            )
    with output.watched("drawing"):
        text = page.build(runs, damage, compared, recordings)
    output.write_file(file, text)
    numbers = counted_all(run=len(runs), recording=len(recordings))
    output.write(f"{numbers}, {file.stat().st_size / 1e6:.1f} MB\nwritten to {file}\n")
    return status
