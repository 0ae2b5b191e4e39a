"""Write a stored run in another format: nccl-tests' JSON (version 3), CSV, or a file for --expect.

A logged training is written as CSV with a line a step. A recorded program is written as CSV with a line a
call, or as a timeline for Perfetto (ui.perfetto.dev, chrome://tracing). Damaged parts are left out and named
on standard error, and the exit status is 2.

Examples
--------
  hpccomm export run.h5 --format json --output run.json
  hpccomm export run.h5 --format csv --run 1 > run.csv
  hpccomm export good.h5 --format expect --output expected.toml     for other runs' --expect
  hpccomm export t.h5 --format perfetto --output t.json.gz
"""

import argparse
import json
from pathlib import Path

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results.recording import Recording
from hpccomm.results.run import Run, WholeSamples, choose
from hpccomm.tools import flags, output
from hpccomm.tools.flag import Flag
from hpccomm.tools.flags import RUN
from hpccomm.tools.progress import watched


def _json(run: Run, samples: WholeSamples) -> str:
    from hpccomm.results import exports

    errors = [] if run.status == "completed" else [run.status]
    errors += run.damage
    document = exports.document(
        run.info, run.rows, samples, ended=run.ended, errors=errors, whole=not run.damage
    )
    document["errors"] += samples.damage()
    return json.dumps(document, indent=1) + "\n"


def _csv(run: Run, samples: WholeSamples) -> str:
    from hpccomm.results import exports

    lines = [
        exports.line(run.name, run.info, row, samples(index), run.variant(index))
        for index, row in enumerate(run.rows)
    ]
    return exports.heading() + "".join(lines)


def _expect(run: Run, _samples: WholeSamples) -> str:
    from hpccomm.results.expectations import written
    from hpccomm.results.timings import typical

    return written(run.info, map(typical, run.rows, run.timings), run.others.line)


def _refuse_without_place(run: Run, name: str) -> None:
    """Raise if a format has no place for what a run measured."""
    from hpccomm.results import pairs

    if pairs.ENTRY in run.entries:
        raise ResultsError(
            f"{run.name} is of pairs of ranks, which no format has a place for; hpccomm show prints it, and "
            "hpccomm perf pairs --json writes its figures"
        )
    if name == "csv":
        return
    what = ""
    if len(run.by_variant()) > 1:
        what = "has two variants"
    elif name == "expect" and not run.rows:
        what = "has no rows"
    if what:
        raise ResultsError(
            f"{run.name} {what}, which --format {name} has no place for; take --format csv, or name another run"
        )


_FORMATS = {"csv": _csv, "expect": _expect, "json": _json}


def _write_timeline(recording: Recording, path: Path | None) -> None:
    from hpccomm.tools.programs import perfetto

    if not recording.calls.count:
        raise ResultsError(f"{recording.name} has no calls; take --format csv, or name another one")
    if path is None:
        raise UsageError("--format perfetto writes a file; give --output PATH")
    with watched(f"exporting {recording.name}"):
        perfetto.write(recording, path)


FLAGS = (
    Flag("FILE", flags.file, "a results file", "file"),
    flags.choice(
        "--format", sorted((*_FORMATS, "perfetto")), "format", "what to write", required=True
    ),
    RUN,
    Flag("--output PATH", flags.file, "a new file to write it to (default: standard output)"),
)


def run(args: argparse.Namespace) -> int:
    """Write the run; return the exit status."""
    from hpccomm.results import recording_text

    examined, status = output.read_file(args.file)
    chosen = choose(examined.stored, args.run)
    if isinstance(chosen, Recording):
        if args.format == "perfetto":
            _write_timeline(chosen, args.output)
            return status
        if args.format != "csv":
            raise ResultsError(
                f"{chosen.name} is a recording, which --format {args.format} has no place for; take --format csv "
                "or perfetto"
            )
        text = recording_text.csv_text(chosen)
    elif args.format == "perfetto":
        raise ResultsError(
            f"{chosen.name} is not a recording, and --format perfetto writes calls; take another format"
        )
    else:
        _refuse_without_place(chosen, args.format)
        with watched(f"exporting {chosen.name}", len(chosen.rows)) as progress:
            samples = WholeSamples(chosen, progress)
            text = _FORMATS[args.format](chosen, samples)
        status = output.damaged(samples.damage(), args.file) or status
    output.write_file(args.output, text, new=True)
    return status
