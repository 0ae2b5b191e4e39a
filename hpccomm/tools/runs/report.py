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
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from hpccomm.errors import ConfigurationError, ResultsError
from hpccomm.results import archive, expectations, pairs, recording_text
from hpccomm.results.comparison import matching
from hpccomm.results.comparison.verdict import SAME, Comparison, change, compare
from hpccomm.results.reader import Run
from hpccomm.results.recording import Recording
from hpccomm.results.table import TIME_FORMAT
from hpccomm.spelling import install_command
from hpccomm.tools import drawing, flags, output
from hpccomm.tools.flags import ANY_MACHINE, LOOKED_FOR, query
from hpccomm.tools.programs.advice import advise, bound
from hpccomm.tools.programs.analysis import Analysis
from hpccomm.tools.runs import charts, curves
from hpccomm.units import counted, counted_all, few

_OWN = flags.table(__package__, file="report.toml")

FLAGS = (*_OWN["files"], ANY_MACHINE, *LOOKED_FOR, *_OWN["output"])


def _named_as(file: Path) -> Path:
    """Return the page's name, beside a file or folder: runs.h5 gives runs.html."""
    if file.name in ("", ".."):
        return Path("report.html")
    return file.with_name(f"{file.name.removesuffix('.h5')}.html")


def run(args: argparse.Namespace) -> int:
    """Write the page; return the exit status."""
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
        text = build(runs, damage, compared, recordings)
    output.write_file(file, text)
    numbers = counted_all(run=len(runs), recording=len(recordings))
    output.write(f"{numbers}, {file.stat().st_size / 1e6:.1f} MB\nwritten to {file}\n")
    return status


_Judged = tuple[str, pairs.MeasuredPairs, pairs.PairDiagnosis]
"""Pairs of ranks: the name of the run, its figures, and the slow ones."""


class Statement(NamedTuple):
    """A verdict.

    Attributes
    ----------
    mood : str
        ``good``, ``bad`` or ``open``.
    title : str
        A sentence.
    lines : sequence of str
        Its evidence.
    """

    mood: str
    title: str
    lines: Sequence[str] = ()


def statements(
    runs: Sequence[Run],
    damage: Sequence[str],
    compared: Comparison | None,
    judged: Sequence[_Judged],
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
        Measured pairs of ranks.
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
    said = [Statement(mood, title, lines) for mood, title, lines in faults if lines]
    if compared is not None:
        said.append(_compared(compared))
    said += [_table_pairs(name, verdict) for name, _, verdict in judged]
    said += map(_advised, analysed)
    if checked and not wrong:
        said.append(Statement("good", f"All {checked} results that were checked are right"))
    order = ("bad", "open", "good")
    return sorted(said, key=lambda each: order.index(each.mood))


def _compared(compared: Comparison) -> Statement:
    lines = [
        f"{each.case}: {change(each.ratio.value)}: {each.verdict}"
        for each in compared.cases
        if each.verdict != SAME
    ]
    said = ", ".join(f"{number} {verdict}" for verdict, number in compared.counts.items())
    mood = "bad" if compared.failed else "good" if compared.decided else "open"
    return Statement(mood, f"Compared with the base: {said}", lines)


def _table_pairs(name: str, verdict: pairs.PairDiagnosis) -> Statement:
    lines = [
        f"{each.kind} {each.name}: {each.what}, {each.slow} of {each.pairs} pairs are slow"
        for each in verdict.findings
    ]
    mood, what = ("bad", "something") if lines else ("good", "nothing")
    if verdict.undecided and not lines:
        mood, what = "open", "nothing of what is decided (nodes were busy)"
    return Statement(mood, f"Pairs of ranks of {name}: {what} is slow", lines)


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
        return Statement("open", f"{title}; what would help", lines)
    return Statement("good", f"{title}; no change is predicted to help", [bound(analysis)])


def _of_links(run: Run) -> str:
    """Return the best row of each collective as a part of its links' bound, where that is known."""
    best: dict[str, float] = {}
    for row in run.rows:
        best[row.collective] = max(row.busbw, best.get(row.collective, 0.0))
    allowed = {collective: expectations.bound(run.info, collective) for collective in best}
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


MOST_ROWS, MOST_RUNS, MOST_RANKS, MOST_SKEWS, MOST_RECORDINGS = 5_000, 20, 256, 3, 3
"""The most rows, runs, ranks of a run, charts of skew, and recordings on a page."""

MOST_LINES = 12
"""The most lines of a verdict; the table has all."""

_OF_CURVES = (
    "Bands are the 5th to 95th percentile of the repetitions. Click a name to see its curve alone, with Shift "
    "several; drag to move, Shift and the wheel zoom, a double click goes back."
)

_OF_TIMELINE = (
    "Thin bars are calls under way while the rank computes. Drag to move; Shift and the wheel zoom; a double click "
    "goes back."
)

_Section = tuple[str, str, drawing.Chart]
"""A chart with its title."""


def build(
    runs: Sequence[Run],
    damage: Sequence[str] = (),
    compared: Comparison | None = None,
    recordings: Sequence[Recording] = (),
) -> str:
    """Return the page.

    Parameters
    ----------
    runs : sequence of Run
        The shown runs, the oldest first.
    damage : sequence of str
        Damaged parts of their files.
    compared : Comparison, optional
        With a base.
    recordings : sequence of Recording
        The shown recordings of calls, the oldest first.

    Raises
    ------
    ConfigurationError
        If a library is missing.
    """
    library = drawing.library("report")
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigurationError(
            f"reports are put together by Jinja, which cannot be loaded ({error}); install it: "
            f"{install_command('report')}"
        ) from error
    judged = [(run.title, *pairs.read(run)) for run in runs if pairs.ENTRY in run.entries]
    analysed = [Analysis(each) for each in recordings[-MOST_RECORDINGS:]]
    sections = [section for each in analysed for section in _recorded(each)]
    sections += _measured(runs, judged)
    # Escaping is on: names of hosts and commands come from the file.
    template = Environment(autoescape=True).from_string(
        Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    )
    paths = [*(each.path for each in recordings), *(run.path for run in runs)]
    files = list(dict.fromkeys(path.name for path in paths))
    now = datetime.now().astimezone().strftime(TIME_FORMAT + " %z")
    return template.render(
        title=f"hpccomm: {few(files, 3)}",
        subtitle=f"{counted_all(run=len(runs), recording=len(recordings))}; made {now}",
        library=Markup(library.javascript_bundle()) if sections else "",
        style=Markup(drawing.as_json(drawing.STYLE)),
        most_lines=MOST_LINES,
        verdicts=statements(runs, damage, compared, judged, analysed),
        sections=[
            (title, note, Markup(drawing.as_json({**chart, "title": None})))
            for title, note, chart in sections
        ],
        rows=[
            (run.title, row, timing)
            for run in runs
            for row, timing in zip(run.rows, run.timings, strict=True)
        ],
        most_rows=MOST_ROWS,
        runs=[(run, facts(run)) for run in runs[-MOST_RUNS:]],
        most_ranks=MOST_RANKS,
        recordings=[
            (
                _named(each.recording),
                f"{recording_text.text(each.recording)}\n{each.shares}\n\n{each.lateness}",
            )
            for each in analysed
        ],
    )


def _named(recording: Recording) -> str:
    return f"{recording.path.name} {recording.name}"


def _recorded(analysis: Analysis) -> Iterator[_Section]:
    """Yield where the time of a recording's steps goes, its step of median duration, and who was late."""
    recording, steps = analysis.recording, analysis.steps
    drawn = (
        charts.shares_chart(analysis.shares),
        charts.timeline(recording, steps, analysis.waits),
        charts.lateness_chart(analysis.lateness),
    )
    notes = (
        f"Means over the half of the steps that is nearest to the median; {steps.how}.",
        _OF_TIMELINE,
        "Times that others were blocked until the rank arrived, added up.",
    )
    for chart, note in zip(drawn, notes, strict=True):
        yield f"{_named(recording)}: {chart['title']}", note, chart


def _measured(runs: Sequence[Run], judged: Sequence[_Judged]) -> Iterator[_Section]:
    """Yield the curves of each collective, the history of cases, the skew of ranks, and pairs of ranks."""
    for collective in dict.fromkeys(row.collective for run in runs for row in run.rows):
        chosen = [
            run.part([at for at, row in enumerate(run.rows) if row.collective == collective])
            for run in runs
        ]
        if drawn := curves.curves(chosen):
            chart = charts.over_size(collective, drawn)
            yield chart["title"], _OF_CURVES, chart
    if cases := curves.history(runs):
        chart = charts.histories(cases)
        yield chart["title"], _OF_CURVES, chart
    for title, skew in filter(None, map(curves.first_skew, runs[-MOST_SKEWS:])):
        note = "Medians, and 5th to 95th percentile of the repetitions."
        yield f"Skew of ranks: {title}", note, charts.skews(title, skew)
    for title, measured, verdict in judged:
        chart = charts.pairs_of_ranks(measured, verdict)
        yield f"Pairs of ranks: {title}", chart["title"]["text"], chart
