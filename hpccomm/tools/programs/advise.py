"""Say what costs a recorded program time, and what would help, with the predicted gain.

A recording has every call of a program (hpccomm record). The table divides a typical step into five
parts, which sum to it: computation, computation beside which data move, waiting for ranks that are
late, transfer that blocks, and the fixed cost of small calls. Then come at most five changes, the
greatest gain first, each with the predicted step, the reason, and a command or a line of code to try.
Each is predicted alone. The error is that of predicting the recorded steps themselves, and a gain below it
is uncertain; of a program that is one step it is not known. What would gain less than 3 % is left out.

With --what-if, the step is predicted over other links instead: NVLink, PCIe, InfiniBand and Ethernet. This
needs no recording for a model whose gradients are of a known size: first all are reduced after the
computation, and then in buckets beside the backward pass.

Examples
--------
  mpiexec -n 4 hpccomm record --output t.h5 -- python train.py
  hpccomm advise t.h5
  hpccomm advise t.h5 --run recording0002 --json
  hpccomm advise t.h5 --what-if
  hpccomm advise --what-if --gradients 1G --compute 250ms --ranks 64
"""

import argparse
import math
from collections.abc import Sequence
from typing import Any

from hpccomm.errors import UsageError
from hpccomm.tools import flags, output
from hpccomm.tools.flags import JSON, Flag, refuse
from hpccomm.tools.programs.advice import LEAST, advise, bound
from hpccomm.tools.programs.analysis import Advice, Analysis
from hpccomm.tools.programs.model import gradients
from hpccomm.tools.programs.pricing import what_if
from hpccomm.tools.programs.steps import PARTS
from hpccomm.units import counted, rounded_size, seconds, size

FLAGS = (
    Flag("FILE", flags.file, "a results file with a recording", "file", values="?"),
    Flag("--run NAME", str, "the recording, such as recording0001 (default: the last)"),
    Flag("--what-if", bool, "predict the step over other links"),
    Flag("--gradients SIZE", size, "without a recording: bytes of all gradients of a model"),
    Flag("--compute TIME", seconds, "its computation a step"),
    Flag("--ranks N", flags.integer(2), "ranks that train it"),
    JSON,
)
UNSURE = 0.5
"""The error from which the steps of a program are most likely others."""

_OF_MODEL = ("gradients", "compute", "ranks")


def run(args: argparse.Namespace) -> int:
    """Print the advice; return the exit status."""
    if args.what_if and args.json:
        raise UsageError("--what-if prints text; leave --json out")
    if args.file is None:
        return _without_recording(args)
    refuse(args, _OF_MODEL, "is of a model without a recording; leave it or the file out")
    chosen, status = output.read_recording(args.file, args.run)
    with output.watched(f"analysing {chosen.name}"):
        analysis = Analysis(chosen)
        advice = [] if args.what_if else advise(analysis)
    if args.what_if:
        output.write(f"{_head(analysis)}\n{what_if(analysis.model)}")
        return status
    lines = [_head(analysis), *_lines(analysis, advice)]
    output.write_found(_document(analysis, advice), lines, as_json=args.json)
    return status


def _without_recording(args: argparse.Namespace) -> int:
    if not args.what_if or any(getattr(args, name) is None for name in _OF_MODEL):
        raise UsageError(
            "give a results file with a recording, or --what-if with --gradients, --compute and --ranks"
        )
    for overlap in (False, True):
        how = "in buckets beside the backward pass" if overlap else "after the computation"
        program = gradients(args.gradients, args.compute, args.ranks, overlap=overlap)
        output.write(f"# {rounded_size(args.gradients)} of gradients, reduced {how}\n")
        output.write(what_if(program))
    return 0


def _head(analysis: Analysis) -> str:
    one, facts = analysis.recording, analysis.recording.facts
    return (
        f"# {one.name} of {one.path.name}: {' '.join(facts.arguments)}; {counted(one.ranks, 'rank')} on "
        f"{counted(len(set(facts.hosts)), 'node')}, {facts.started:%Y-%m-%d %H:%M}, {one.status}; {analysis.steps.how}"
    )


def _lines(analysis: Analysis, advice: Sequence[Advice]) -> list[str]:
    lines = [f"#{line}" for line in str(analysis.shares).splitlines()]
    mark = "" if "marks" in analysis.steps.how else "; mark steps by recorder.step()"
    if math.isnan(analysis.error):
        lines.append(f"# It is one step, so that the error of predictions is not known{mark}.")
    else:
        lines.append(f"# The recorded steps are predicted with an error of {analysis.error:.1%}.")
    if analysis.error > UNSURE:
        lines.append(f"# Its steps differ too much for that to be trusted{mark}.")
    for number, each in enumerate(advice, 1):
        gain = 1 - each.seconds / analysis.step
        lines.append(
            f"{number}. {each.what}: {each.seconds * 1e3:.3f} ms a step, {gain:.0%} less, "
            f"{analysis.doubt(each)}"
        )
        lines += [f"   why: {each.why}", f"   try: {each.attempt}"]
    if not advice:
        lines.append(f"No change is predicted to gain {LEAST:.0%} of a step: {bound(analysis)}.")
    return lines


def _document(analysis: Analysis, advice: Sequence[Advice]) -> dict[str, Any]:
    return {
        "file": str(analysis.recording.path),
        "recording": analysis.recording.name,
        "status": analysis.recording.status,
        "ranks": analysis.recording.ranks,
        "steps": len(analysis.steps),
        "seconds": analysis.step,
        "error": None if math.isnan(analysis.error) else analysis.error,
        "bound": bound(analysis),
        "parts": {
            name: {"seconds": mean * 1e-9, "by_rank": (ranks * 1e-9).tolist()}
            for name, mean, ranks in zip(
                PARTS, analysis.shares.mean.tolist(), analysis.shares.typical.T, strict=True
            )
        },
        "advice": [
            {
                "cause": each.cause,
                "what": each.what,
                "seconds": each.seconds,
                "gain": analysis.step - each.seconds,
                "why": each.why,
                "try": each.attempt,
                "uncertain": each.uncertain,
            }
            for each in advice
        ],
    }
