"""Print a stored run, with its table as `hpccomm perf` printed it, or a recording of a program.

A run comes with the facts of its machine, a recording with its calls and the cost of its gradients. Damaged parts
are left out and named on standard error, and the exit status is 2.

Examples
--------
  hpccomm show run.h5              the last run of the file
  hpccomm show run.h5 --run 1      the first
  hpccomm show run.h5 --run run0003
  hpccomm show run.h5 --run recording0001  the calls of a program, or the cost of its gradients
  hpccomm show run.h5 --statistics  medians and percentiles as well
  hpccomm show run.h5 --expect 8xinfiniband-ndr    its part of its links' bandwidth
  hpccomm show archive/ --list     a line for each run and recording of a folder
  hpccomm show archive/ --list --case all_reduce:1M --since 30d --host 'gpu-1*'
  hpccomm show run.h5 --verify     a line a run; status 2 if anything is not as it was stored
"""

import argparse
import shlex
from collections.abc import Sequence
from itertools import groupby

from hpccomm.errors import UsageError
from hpccomm.results import archive, pairs, recording_text, table
from hpccomm.results.expectations import Judge, published
from hpccomm.results.facts import in_words
from hpccomm.results.reader import Run, WholeSamples, choose
from hpccomm.results.recording import Recording
from hpccomm.results.table import TIME_FORMAT
from hpccomm.results.timings import typical
from hpccomm.runtime.service import Status
from hpccomm.tools import flags, output
from hpccomm.tools.flags import JSON, LOOKED_FOR, RUN, FlagGroup, query, refuse
from hpccomm.tools.perf.flags import EXPECTED, NOTHING_EXPECTED
from hpccomm.units import counted, counted_all

_OWN = flags.table(__package__, file="show.toml")

FLAGS = (
    *_OWN["file"],
    RUN,
    *_OWN["how"],
    FlagGroup((*LOOKED_FOR, JSON), "which runs and recordings --list finds"),
    FlagGroup(EXPECTED, "the expectations"),
)

_OF_LIST = ("case", "since", "until", "host", "json")


def run(args: argparse.Namespace) -> int:
    """Print the run; return the exit status."""
    if args.near is not None and args.expected is None:
        raise UsageError(NOTHING_EXPECTED)
    if args.expected is not None and (args.list or args.verify):
        other = "list" if args.list else "verify"
        raise UsageError(f"--expect is about the rows of one run; leave it or --{other} out")
    if args.list:
        return _list(args)
    refuse(args, _OF_LIST, "belongs to --list; give that too, or leave it out")
    file, *more = args.files
    if more or file.is_dir():
        raise UsageError(
            f"{file if file.is_dir() else f'{1 + len(more)} files'}: show prints a run of one file; add --list to "
            "list several files, or a folder"
        )
    if args.verify:
        with output.watched(f"checking {file.name}") as progress:
            lines, whole = archive.verify(file, progress)
        output.write("".join(f"{line}\n" for line in lines))
        return 0 if whole else 2
    examined, status = output.read_file(file)
    chosen = choose(examined.stored, args.run)
    if args.expected is not None and (
        isinstance(chosen, Recording)
        or pairs.ENTRY in chosen.entries
        or table.are_rates(chosen.rows)
    ):
        raise UsageError(
            f"--expect: {chosen.name} has no rows of collectives; name another run by --run"
        )
    listing = _file_listing(examined.runs, examined.recordings, chosen)
    if isinstance(chosen, Recording):
        output.write(listing + recording_text.text(chosen, statistics=args.statistics))
        return status
    if pairs.ENTRY in chosen.entries:
        output.write(listing + _run_facts(chosen) + pairs.text(*pairs.read(chosen)))
        return status
    with output.watched(f"showing {chosen.name}", len(chosen.rows)) as progress:
        text, damage = _tables(chosen, progress, statistics=args.statistics)
        text += chosen.others.line + _how_to_compare(chosen)
        for collective in dict.fromkeys(row.collective for row in chosen.rows):
            for each in published(chosen.info, collective):
                text += f"# Published : {collective} {each}\n"
        expected, failed = _expected(args, chosen)
    output.write(listing + _run_facts(chosen) + text + expected)
    return output.damaged(damage, file) or status or failed


def _tables(run: Run, progress: output.Progress, *, statistics: bool) -> tuple[str, list[str]]:
    """Return the tables of a run, and its damaged samples, a line each."""
    text, damage = "", []
    # A run of two variants has measured them in turns; each has a table to itself.
    for variant, part in run.by_variant().items():
        samples = WholeSamples(part, progress)
        text += f"# Variant: {variant}\n" if variant else ""
        if table.are_rates(part.rows):
            text += table.rates_text(part.info, part.rows, samples)
        else:
            text += table.run_text(
                part.info,
                part.rows,
                samples,
                finished=part.status == "completed",
                whole=not part.damage,
                statistics=statistics,
                timings=part.timings,
            )
        damage += samples.damage()
    return text, damage


def _how_to_compare(run: Run) -> str:
    """Return a comment with the command that compares a run's variants; empty without variants."""
    variants = list(run.by_variant())
    if len(variants) < 2 or run.status != "completed" or run.damage:
        return ""
    base, new = (shlex.quote(run.info.series[side]) for side in ("base", "new"))
    file = shlex.quote(str(run.path))
    return (
        f"# To compare the variants: hpccomm compare {file} {file} --base-runs {run.name} --new-runs {run.name} "
        f"--base-variant {base} --new-variant {new}\n"
    )


def _expected(args: argparse.Namespace, run: Run) -> tuple[str, int]:
    """Return a text on whether a run meets expectations, and the exit status."""
    if args.expected is None:
        return "", 0
    judge = Judge(args.expected, run.info, args.near)
    text = ""
    for variant, part in run.by_variant().items():
        timed = zip(part.rows, part.timings, strict=True)
        for block, rows in groupby(timed, key=lambda each: each[0].block):
            for row, timing in rows:
                judge.add(typical(row, timing))
            words = [*block, *([f"[{variant}]"] if variant else [])]
            text += f"# {' '.join(words)}\n{judge.finish(run.others.failed)}"
    whole = run.status == "completed"
    if not whole:
        text += f"# The run did not complete ({run.status}): FAILED\n"
    status = Status.UNDECIDED if run.others.busy and judge.judged and whole else 1
    return text + judge.nothing(), status if judge.failures > 0 or not whole else 0


def _list(args: argparse.Namespace) -> int:
    """List the runs and recordings of files and folders; return the exit status."""
    refuse(args, ("run", "verify", "statistics"), "is of one run or file; leave it out with --list")
    asked = query(args)
    with output.watched("reading files") as progress:
        searched = archive.search(args.files, asked, progress, recordings=True)
    output.write(archive.as_json(searched) if args.json else archive.listing(searched, asked))
    return output.damaged(searched.damage)


def _file_listing(
    runs: Sequence[Run], recordings: Sequence[Recording], chosen: Run | Recording
) -> str:
    """Return a line for each run and recording of a file with several, with a mark at the chosen one."""
    if len(runs) + len(recordings) < 2:
        return ""
    text = f"# {chosen.path} holds {counted_all(run=len(runs), recording=len(recordings))}:\n"
    entries: list[Run | Recording] = [*runs, *recordings]
    for each in entries:
        if isinstance(each, Run):
            started, ranks = each.info.started, len(each.info.ranks)
            what = ", ".join(dict.fromkeys(row.collective for row in each.rows))
            what = what or ("no whole row" if each.damage else "no rows")
        else:
            started, ranks = each.facts.started, each.ranks
            what = recording_text.contents(each)
        text += (
            f"# {'*' if each.name == chosen.name else ' '} {each.name}  {started.strftime(TIME_FORMAT)}  "
            f"{counted(ranks, 'rank')}  {what}  {each.status}\n"
        )
    return f"{text}#\n"


def _run_facts(run: Run) -> str:
    """Return who made a run, where, when and how it ended, as comment lines."""
    info = run.info
    started = info.started.strftime(TIME_FORMAT + " %z")
    ended = "" if run.ended is None else f" to {run.ended.strftime(TIME_FORMAT)}"
    status = in_words(run.status, counted(len(run.rows), "row"), run.host)
    lines = [
        f"# Run {run.name} of {run.path}: {status}",
        f"# Started {started}{ended} by {info.user}, {counted(len(info.ranks), 'rank')} on "
        f"{counted(info.nodes, 'node')}, launcher {info.launcher}",
        f"# Command: {shlex.join(info.arguments)}",
    ]
    for name, variables in (("", info.slurm), ("Environment: ", info.environment)):
        if variables:
            told = " ".join(f"{variable}={value}" for variable, value in variables.items())
            lines.append(f"# {name}{told}")
    return "".join(line + "\n" for line in [*lines, "#"])
