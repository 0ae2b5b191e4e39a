"""The words of a report: verdicts, and the facts of runs. `page` shows them."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from hpccomm.comparison.text import change
from hpccomm.comparison.verdict import SAME, Comparison
from hpccomm.recordings.advice import Analysis, advise, bound
from hpccomm.results import bounds, pairs
from hpccomm.results.run import Run
from hpccomm.results.table import TIME_FORMAT
from hpccomm.units import counted

MOST_LINES = 12
"""Of a verdict; the table has all."""


class Statement(NamedTuple):
    """A verdict.

    Attributes
    ----------
    mood : str
        ``good``, ``bad`` or ``open``.
    title : str
        A sentence.
    lines : tuple of str
        Its evidence.
    """

    mood: str
    title: str
    lines: tuple[str, ...] = ()


def statements(
    runs: Sequence[Run],
    damage: Sequence[str],
    compared: Comparison | None,
    judged: Sequence[tuple[str, pairs.MeasuredPairs, pairs.PairDiagnosis]],
    analysed: Sequence[Analysis],
) -> list[Statement]:
    """Return the verdicts of a report, the worst first.

    Parameters
    ----------
    runs : sequence of Run
        The shown runs.
    damage : sequence of str
        Damaged parts of their files.
    compared : Comparison, optional
        With a base.
    judged : sequence of tuple
        Pairs of ranks: the name of the run, its figures, and the slow ones.
    analysed : sequence of Analysis
        Recordings of calls.
    """
    wrong = [
        f"{run.title}: {row.collective} {row.dtype} {row.bytes} B: {row.wrong} wrong elements"
        for run in runs
        for row in run.rows
        if row.wrong > 0
    ]
    checked = sum(row.wrong >= 0 for run in runs for row in run.rows)
    ended = [f"{run.title}: {run.status}" for run in runs if run.status != "completed"]
    faults = (
        ("bad", f"{len(wrong)} rows have wrong results", wrong),
        ("bad", "Something of the files is damaged and left out", damage),
        ("open", "Runs that did not complete", ended),
    )
    said = [Statement(mood, title, _few(lines)) for mood, title, lines in faults if lines]
    if compared is not None:
        said.append(_compared(compared))
    said += [_pairs(name, verdict) for name, _, verdict in judged]
    said += map(_advised, analysed)
    if checked and not wrong:
        said.append(Statement("good", f"All {checked} results that were checked are right"))
    order = ("bad", "open", "good")
    return sorted(said, key=lambda each: order.index(each.mood))


def _few(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - MOST_LINES
    return (*lines[:MOST_LINES], *([f"and {more} more"] if more > 0 else []))


def _compared(compared: Comparison) -> Statement:
    lines = [
        f"{each.case}: {change(each.ratio.value)}: {each.verdict}"
        for each in compared.cases
        if each.verdict != SAME
    ]
    said = ", ".join(f"{number} {verdict}" for verdict, number in compared.counts.items())
    mood = "bad" if compared.failed else "good" if compared.decided else "open"
    return Statement(mood, f"Compared with the base: {said}", _few(lines))


def _pairs(name: str, verdict: pairs.PairDiagnosis) -> Statement:
    lines = [
        f"{each.kind} {each.name}: {each.what}, {each.slow} of {each.pairs} pairs are slow"
        for each in verdict.findings
    ]
    mood, what = ("bad", "something") if lines else ("good", "nothing")
    if verdict.undecided and not lines:
        mood, what = "open", "nothing of what is decided (nodes were busy)"
    return Statement(mood, f"Pairs of ranks of {name}: {what} is slow", _few(lines))


def _advised(analysis: Analysis) -> Statement:
    """Return what would help a recorded program."""
    step, name = analysis.step, analysis.recording.name
    title = f"{name}: {step * 1e3:.4g} ms a step"
    lines = [
        f"{each.what}: {each.seconds * 1e3:.4g} ms a step, {1 - each.seconds / step:.0%} less, "
        f"{analysis.doubt(each)}; why: {each.why}; try: {each.attempt}"
        for each in advise(analysis)
    ]
    if lines:
        return Statement("open", f"{title}; what would help", tuple(lines))
    return Statement("good", f"{title}; no change is predicted to help", (bound(analysis),))


def _of_links(run: Run) -> str:
    """Return the best row of each collective as a part of its links' bound, where that is known."""
    best: dict[str, float] = {}
    for row in run.rows:
        best[row.collective] = max(row.busbw, best.get(row.collective, 0.0))
    allowed = {collective: bounds.bound(run.info, collective) for collective in best}
    return ", ".join(
        f"{collective} {best[collective] / most:.0%} of {most:.4g} GB/s"
        for collective, most in allowed.items()
        if most is not None
    )


def facts(run: Run) -> dict[str, str]:
    """Return the facts of a run, by name."""
    info = run.info
    series = variants = ""
    if "launch" in info.series:
        series = "launch {launch} of {launches}, {name}".format(**info.series)
    if "base" in info.series:
        variants = "{base} and {new}".format(**info.series)
    texts = {
        "started": f"{info.started.strftime(TIME_FORMAT + ' %z')} by {info.user}",
        "status": run.status,
        "ranks": f"{len(info.ranks)} on {counted(info.nodes, 'node')}, launcher {info.launcher}",
        "series": series,
        "variants": variants or info.series.get("variant", ""),
        "command": shlex.join(info.arguments),
        "share of the links": _of_links(run),
        **{f"machine: {name}": text for name, text in info.machine.items()},
        "versions": ", ".join(f"{name} {text}" for name, text in sorted(info.versions.items())),
        "environment": " ".join(f"{name}={text}" for name, text in info.environment.items()),
        "Slurm": " ".join(f"{name}={text}" for name, text in info.slurm.items()),
    }
    return {name: text for name, text in texts.items() if text}
