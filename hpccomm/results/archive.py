"""Finds runs and recordings in many files and folders, by case, date and host, and lists them.

`hpccomm show --list`, ``plot``, ``report`` and ``compare`` use it.
"""

import fnmatch
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hpccomm.errors import ResultsError
from hpccomm.results import reader
from hpccomm.results.files import ForeignFile
from hpccomm.results.lines import DamagedPart
from hpccomm.results.reader import Examined, Run, Steps, WholeSamples
from hpccomm.results.recording import Recording, RecordingFacts
from hpccomm.results.recording_text import contents
from hpccomm.results.schema import Row, RunInfo, Timing
from hpccomm.results.table import TIME_FORMAT
from hpccomm.units import counted, few, figure, grouped, size_text

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Query:
    """The conditions of a search for runs and recordings.

    Attributes
    ----------
    collective : str or None
    size : int or None
    dtype : str or None
        Conditions on rows. With one of them, only runs with such a row are found, and no recordings.
    since, until : datetime or None
        The earliest start, and the end of the time for starts, which is not included. Both have a time zone.
    host : str or None
        A pattern, as in a shell, that the name of a host must match.
    """

    collective: str | None = None
    size: int | None = None
    dtype: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    host: str | None = None

    @property
    def of_rows(self) -> bool:
        """Whether the search is for rows, and not only for runs."""
        return self.collective is not None

    def has_row(self, row: Row) -> bool:
        """Whether a row meets the conditions on rows."""
        return (
            self.collective in (None, row.collective)
            and self.size in (None, row.bytes)
            and self.dtype in (None, row.dtype)
        )

    def has(self, started: datetime, hosts: Iterable[str]) -> bool:
        """Whether a run or recording that started at this time on these hosts meets the other conditions."""
        return (
            (self.since is None or started >= self.since)
            and (self.until is None or started < self.until)
            and (self.host is None or any(fnmatch.fnmatchcase(host, self.host) for host in hosts))
        )


class SearchHit(NamedTuple):
    """A run that was found.

    Attributes
    ----------
    run : Run
        The run.
    part : Run
        The same run with the rows that meet the conditions. It has all rows if there are no conditions on rows.
    """

    run: Run
    part: Run


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes
    ----------
    found : list of SearchHit
        Runs, in the order of their starts.
    recordings : list of Recording
        Recordings, in the order of their starts.
    damage : list of str
        Unreadable parts, each with the name of its file.
    files : int
        Number of results files that were read.
    others : int
        Number of other files in the folders.
    """

    found: list[SearchHit]
    recordings: list[Recording]
    damage: list[str]
    files: int
    others: int


def search(
    paths: Sequence[Path],
    query: Query,
    progress: Steps | None = None,
    *,
    recordings: bool = False,
) -> SearchResult:
    """Search results files, and folders with all their subfolders.

    Parameters
    ----------
    paths : sequence of Path
        Files and folders.
    query : Query
        The conditions.
    progress : Steps, optional
        Advances by one for each file.
    recordings : bool
        Whether recordings are read, too.

    Raises
    ------
    ResultsError
        If a named path does not exist, or is not a results file. If a file in a folder is damaged, the result says so.
    """
    hits: list[SearchHit] = []
    recorded: list[Recording] = []
    damage: list[str] = []
    files = others = 0
    for path, _, examined in each_examined(paths, recordings=recordings):
        if progress is not None:
            progress.advance()
        if isinstance(examined, ForeignFile):
            others += 1
            continue
        if isinstance(examined, ResultsError):
            damage.append(str(examined))
            continue
        files += 1
        damage += [f"{path}: {what}" for what in examined.damage]
        recorded += [
            each
            for each in (examined.recordings if recordings and not query.of_rows else ())
            if query.has(each.facts.started, each.facts.known_hosts)
        ]
        for run in examined.runs:
            part = run.part([at for at, row in enumerate(run.rows) if query.has_row(row)])
            if query.has(run.info.started, run.info.hosts) and (part.rows or not query.of_rows):
                hits.append(SearchHit(run, part))
    hits.sort(key=lambda each: each.run.info.started)
    recorded.sort(key=lambda each: each.facts.started)
    return SearchResult(hits, recorded, damage, files, others)


def each_examined(
    paths: Sequence[Path], *, recordings: bool = False
) -> Iterator[tuple[Path, bool, Examined | ResultsError]]:
    """Read all files of files and folders. Yield each path, whether it was named itself, and its contents.

    If a file in a folder is unreadable, it yields the error. With `recordings`, it also reads the parts beside a named
    file: a program that was killed may have left only these.
    """
    for path in paths:
        named = not path.is_dir()
        read = reader.examine_all if named and recordings else reader.examine
        for file in [path] if named else filter(Path.is_file, sorted(path.rglob("*.h5"))):
            try:
                yield file, named, read(file, keep_open=False)
            except ResultsError as error:
                if named:
                    raise
                yield file, named, error


def listing(searched: SearchResult, query: Query) -> str:
    """Return a line for each run and each recording. After a search for rows, each run has its rows below."""
    lines = []
    for run, part in searched.found:
        info = run.info
        where = few(info.hosts, 1)
        series = ""
        if "launch" in info.series:
            series += "  launch {launch}/{launches} of {name}".format(**info.series)
        if variants := " and ".join(filter(None, run.by_variant())):
            series += f"  [{variants}]"
        lines.append(
            f"{info.started.strftime(TIME_FORMAT)}  {run.path}  {run.name}  {where}  {len(info.ranks)} ranks  "
            f"{_measured(run)}  {run.status}{series}"
        )
        if query.of_rows:
            lines += [f"    {each}" for each in map(_figures, part.rows, part.timings)]
    for each in searched.recordings:
        facts = each.facts
        lines.append(
            f"{facts.started.strftime(TIME_FORMAT)}  {each.path}  {each.name}  {few(facts.known_hosts, 1)}  "
            f"{each.ranks} ranks  {contents(each)}  {each.status}"
        )
    count = len(searched.recordings)
    recordings = f" and {counted(count, 'recording')}" if count else ""
    others = f", {searched.others} other files left out" if searched.others else ""
    lines.append(
        f"# {counted(len(searched.found), 'run')}{recordings} of {counted(searched.files, 'file')}{others}"
    )
    return "".join(f"{line}\n" for line in lines)


def _measured(run: Run) -> str:
    if not run.rows:
        return "pairs" if "pairs" in run.entries else "no rows"
    names = list(dict.fromkeys(row.collective for row in run.rows))
    sizes = [row.bytes for row in run.rows]
    return f"{few(names, 3)} {size_text(min(sizes))} to {size_text(max(sizes))}"


def _figures(row: Row, timing: Timing) -> str:
    median, isolated = (
        "" if math.isnan(each) else f"{figure(each, 7).strip()}"
        for each in (timing.median, timing.isolated)
    )
    return (
        f"{row.collective} {row.backend} {row.algorithm} {row.dtype} {row.op} {size_text(row.bytes)} {row.placement}: "
        f"{figure(row.time, 7).strip()} us"
        + (f" (median {median})" if median else "")
        + (f", isolated {isolated} us" if isolated else "")
        + f", {figure(row.busbw, 7).strip()} GB/s"
        + (f", {row.wrong} WRONG" if row.wrong > 0 else "")
    )


def as_json(searched: SearchResult) -> str:
    """Return the result as JSON. The document is described in docs/reference/results.rst."""
    document = {
        "version": JSON_VERSION,
        "files": searched.files,
        "damage": searched.damage,
        "runs": [_run(each) for each in searched.found],
        "recordings": [_recording(each) for each in searched.recordings],
    }
    return json.dumps(document, indent=1) + "\n"


def _run(each: SearchHit) -> dict[str, Any]:
    run, info = each.run, each.run.info
    return {
        **_common(run, info, info.hosts),
        "ranks": len(info.ranks),
        "nodes": info.nodes,
        "machine": dict(info.machine),
        "versions": dict(info.versions),
        "series": dict(info.series),
        "slurm": dict(info.slurm),
        "rows": list(map(_row, each.part.rows, each.part.timings)),
    }


def _recording(each: Recording) -> dict[str, Any]:
    common = _common(each, each.facts, each.facts.known_hosts)
    return {**common, "ranks": each.ranks, "steps": len(each.steps), "calls": each.calls.count}


def _common(
    each: Run | Recording, facts: RunInfo | RecordingFacts, hosts: list[str]
) -> dict[str, Any]:
    return {
        "file": str(each.path),
        "run": each.name,
        "started": facts.started.isoformat(),
        "status": each.status,
        "user": facts.user,
        "hosts": hosts,
        "arguments": list(facts.arguments),
    }


_FIELDS = (
    *("collective", "backend", "algorithm", "dtype", "op", "root", "bytes", "count"),
    *("in_place", "algbw", "busbw", "wrong"),
)

_TIMES = ("median", "low", "high", "isolated", "certain_low", "certain_high")


def _row(row: Row, timing: Timing) -> dict[str, Any]:
    times = {"time": row.time} | {name: getattr(timing, name) for name in _TIMES}
    return {
        **{name: getattr(row, name) for name in _FIELDS},
        # JSON has no NaN.
        **{f"{name}_us": None if math.isnan(each) else each for name, each in times.items()},
    }


def verify(path: Path, progress: Steps | None = None) -> tuple[list[str], bool]:
    """Check the facts, rows and samples of all runs of a file, and its recordings.

    Parameters
    ----------
    path : Path
        The file.
    progress : Steps, optional
        Advances by one for each row.

    Returns
    -------
    tuple of list of str and bool
        A line for each run and recording, and whether everything is as it was stored.

    Raises
    ------
    ResultsError
        If it is not a results file, or cannot be read.
    """
    examined = reader.examine_all(path)
    if progress is not None:
        progress.remain(sum(len(run.rows) for run in examined.runs))
    damage = list(examined.damage)
    counts = {}
    for run in examined.runs:
        samples = WholeSamples(run, progress)
        for index in range(len(run.rows)):
            samples(index)
            samples(index, "isolated")
        damage += samples.damage()
        counts[run.name] = f"{run.status.partition(':')[0]}, {counted(len(run.rows), 'row')}"
    for recording in examined.recordings:
        for index in range(len(recording.steps)):
            try:
                recording.bucket_seconds(index)
            except DamagedPart as error:
                damage.append(f"{recording.name}: {error}")
        counts[recording.name] = f"{recording.status.partition(':')[0]}, {contents(recording)}"
    by_name = grouped((name, what) for name, _, what in (each.partition(": ") for each in damage))
    lines = []
    for name in counts | by_name:
        faults = "; ".join(by_name.get(name, ()))
        whole = f"DAMAGED: {faults}" if faults else "all as it was stored"
        lines.append(": ".join(filter(None, (name, counts.get(name, ""), whole))))
    return lines, not damage
