"""The facts of a stored run as comment lines above its table, for `hpccomm show`."""

import shlex
from collections.abc import Sequence
from datetime import datetime

from hpccomm.results.liveness import in_words
from hpccomm.results.recording import Recording
from hpccomm.results.recording_text import contents
from hpccomm.results.run import Run
from hpccomm.results.table import TIME_FORMAT
from hpccomm.units import counted, counted_all


def listing(runs: Sequence[Run], recordings: Sequence[Recording], chosen: Run | Recording) -> str:
    """Return a line for each run and recording of a file with several, with a mark at the chosen one."""
    if len(runs) + len(recordings) < 2:
        return ""
    numbers = counted_all(run=len(runs), recording=len(recordings))
    lines = [f"# {chosen.path} holds {numbers}:"]
    for run in runs:
        what = ", ".join(dict.fromkeys(row.collective for row in run.rows)) or (
            "no whole row" if run.damage else "no rows"
        )
        lines.append(_entry(run, chosen, run.info.started, len(run.info.ranks), what))
    lines += [
        _entry(each, chosen, each.facts.started, each.ranks, contents(each)) for each in recordings
    ]
    return "".join(line + "\n" for line in [*lines, "#"])


def _entry(
    each: Run | Recording, chosen: Run | Recording, started: datetime, ranks: int, what: str
) -> str:
    mark = "*" if each.name == chosen.name else " "
    return (
        f"# {mark} {each.name}  {started.strftime(TIME_FORMAT)}  {counted(ranks, 'rank')}  {what}  "
        f"{each.status}"
    )


def facts(run: Run) -> str:
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
    if info.slurm:
        lines.append("# " + " ".join(f"{name}={value}" for name, value in info.slurm.items()))
    if info.environment:
        pairs = " ".join(f"{name}={value}" for name, value in info.environment.items())
        lines.append(f"# Environment: {pairs}")
    return "".join(line + "\n" for line in [*lines, "#"])
