"""nccl-tests' table: what its programs print, and what `hpccomm perf` prints.

The columns are taken from the table's own heading, because they differ between versions: ``#wrong`` was once
``error``, old tables have no ``root``, and per-iteration statistics and time stamps are optional.
"""

import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hpccomm.bench.logs.imported import (
    CUT,
    LIMIT,
    ImportedRun,
    Told,
    collective_of,
    run_info,
    unknown_ranks,
)
from hpccomm.bench.logs.lines import untagged
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import ResultsError
from hpccomm.results.schema import UNCHECKED, Config, RankInfo, Row
from hpccomm.results.table import TIME_FORMAT

_RANK = re.compile(
    r"#\s+Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<device>-?\d+)\s+\[(?P<hex>[^\]]*)\]\s*(?P<info>.*)"
)
_STARTING = re.compile(r"# Collective test starting: (\S+)(?: backend (\S+) algorithm (\S+))?")
_VERSION = re.compile(r"# (nccl-tests|hpccomm) version (\S+)(.*)")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(?:(\d+)\s+(OK|FAILED)|N/A)")
_SETTINGS = {
    "nThread": "nthreads",
    "nGpus": "ngpus",
    "minBytes": "minimum_bytes",
    "maxBytes": "maximum_bytes",
    "warmup iters:": "warmup_iters",
    "iters:": "iterations",
    "agg iters:": "aggregated_iterations",
    "validation:": "validation",
    "graph:": "graph",
    "unalign:": "unalign",
}
_FIRST = ("size", "count", "type")
_HALF = ("time", "cputime")
"""Columns that begin a half of the table."""


@dataclass(slots=True)
class _Open:
    """A run that is being read."""

    versions: dict[str, str] = field(default_factory=dict)
    collective: str = ""
    program: str = ""
    backend: str = "nccl"
    algorithm: str = "auto"
    config: Config | None = None
    ranks: list[RankInfo] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ended: bool = False


def is_one(lines: list[str]) -> bool:
    """Return whether a log has such a table."""
    return any(_is_heading(line) for line in lines)


def parse(text: str, told: Told) -> list[ImportedRun]:
    """Return the runs of a log, in their order.

    Raises
    ------
    ResultsError
        If a line of a table cannot be read, or the log does not say what it measured and nor does the caller.
    """
    runs: list[_Open] = []
    lines = untagged(text)
    for number, line in enumerate(lines, 1):
        try:
            _read(line, runs)
        except (ValueError, LookupError, OverflowError) as error:
            if number == len(lines):  # without its end: the program was killed while it printed it
                continue
            raise ResultsError(
                f"line {number} of {told.name} is no line of nccl-tests' table: {line.strip()!r} ({error}); "
                "give a log as it was printed"
            ) from error
    return [_finished(run, told) for run in runs if run.columns]


def _read(line: str, runs: list[_Open]) -> None:
    if not line.startswith("#"):
        words = line.split()
        # Size and count; other programs print lines that begin with one number.
        is_row = len(words) > 2 and words[0].isdigit() and words[1].isdigit()
        if is_row and runs and runs[-1].columns and not runs[-1].ended:
            runs[-1].rows += _rows(words, runs[-1])
        return
    if _begins(line, runs):
        runs.append(_Open())
    if not runs:
        return
    run = runs[-1]
    if version := _VERSION.match(line):
        run.versions[version[1]] = version[2]
        run.versions |= _others(version[3])
    elif starting := _STARTING.match(line):
        run.program, run.collective = starting[1], collective_of(starting[1])
        run.backend, run.algorithm = starting[2] or run.backend, starting[3] or run.algorithm
    elif line.startswith("# nThread"):
        run.config = _config(line)
    elif rank := _RANK.match(line):
        run.ranks.append(_rank(rank, run.ranks))
    elif _is_heading(line):
        run.columns = line[1:].split()
    elif _OUT_OF_BOUNDS.match(line):
        run.ended = True


def _begins(line: str, runs: list[_Open]) -> bool:
    """Return whether a line is the first of another run."""
    if _VERSION.match(line):
        return True
    last = runs[-1] if runs else None
    if _STARTING.match(line):
        return last is None or bool(last.collective)
    if line.startswith("# nThread"):
        return last is None or last.config is not None
    # A table whose head was cut off.
    return _is_heading(line) and (last is None or bool(last.columns))


def _others(text: str) -> dict[str, str]:
    """Return versions such as ``nccl-library=22907``, where it is 2.29.7, and ``numpy=2.4.1``."""
    found = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = found.pop("nccl-library", "")
    found.pop("nccl-headers", None)
    if code.isdigit():
        # Up to 2.8 the number had a digit less for the major version.
        major = 10000 if int(code) >= 10000 else 1000
        found["nccl"] = f"{int(code) // major}.{int(code) % major // 100}.{int(code) % 100}"
    return found


def _config(line: str) -> Config:
    values: dict[str, Any] = {}
    for key, name in _SETTINGS.items():
        found = re.search(rf"(?<!warmup )(?<!agg ){re.escape(key)}\s*(-?\d+)", line)
        if found:
            values[name] = int(found[1])
    step = re.search(r"step:\s*(\d+)\((factor|bytes)\)", line)
    size, unit = (int(step[1]), step[2]) if step else (0, "bytes")
    return Config(
        **{
            "minimum_bytes": 0,
            "maximum_bytes": 0,
            "iterations": 0,
            "warmup_iters": 0,
            "step_factor": size if unit == "factor" else 0,
            "step_bytes": size if unit == "bytes" else 0,
        }
        | values
    )


def _rank(found: re.Match[str], before: list[RankInfo]) -> RankInfo:
    hosts = list(dict.fromkeys(each.host for each in before))
    host = found["host"]
    info = found["info"].strip()
    cores = re.search(r", node (\d+), cores (\S*)$", info)
    return RankInfo(
        rank=int(found["rank"]),
        group=int(found["group"] or 0),
        host=host,
        node=int(cores[1]) if cores else ([*hosts, host].index(host)),
        pid=int(found["pid"]),
        cores=cores[2] if cores else "",
        device=int(found["device"]),
        device_hex="" if found["hex"] == "none" else found["hex"],
        device_info=info[: cores.start()] if cores else info,
        driver="",
    )


def _is_heading(line: str) -> bool:
    words = line[1:].split()
    return line.startswith("#") and tuple(words[:3]) == _FIRST and "busbw" in words


def _rows(words: list[str], run: _Open) -> list[Row]:
    """Return the rows of one line of a table: out of place and in place, as far as they are there."""
    columns = list(run.columns)
    finished = 0.0
    if columns[-1] == "timestamp":
        columns.pop()
        stamp = " ".join(words[-2:])
        words = words[:-2]
        finished = datetime.strptime(stamp, TIME_FORMAT).astimezone().timestamp()
    if len(words) == len(columns) - 1:  # where nothing is reduced, some leave the cell empty
        words = [*words[:3], "none", *words[3:]]
    if len(words) != len(columns):
        raise ValueError(f"{len(words)} cells for {len(columns)} columns")
    halves = [at for at, name in enumerate(columns) if name in _HALF]
    lead = dict(zip(columns[: halves[0]], words[: halves[0]], strict=True))
    if max(int(lead["size"]), int(lead["count"])) >= LIMIT:
        raise ValueError("its size is out of range")
    found = []
    for in_place, (begin, end) in enumerate(zip(halves, [*halves[1:], len(columns)], strict=True)):
        cells = dict(zip(columns[begin:end], words[begin:end], strict=True))
        time = cells.get("time", cells.get("cputime", "N/A"))
        if time == "N/A":
            continue
        wrong = cells.get("#wrong", "N/A")  # an error's size, as old versions print, is no count
        found.append(
            Row(
                collective=run.collective,
                backend=run.backend,
                algorithm=run.algorithm,
                dtype=lead["type"],
                op=lead.get("redop", "none"),
                root=int(lead.get("root", -1)),
                bytes=int(lead["size"]),
                count=int(lead["count"]),
                in_place=bool(in_place),
                time=float(time),
                algbw=float(cells["algbw"]),
                busbw=float(cells["busbw"]),
                wrong=UNCHECKED if wrong == "N/A" else int(float(wrong)),
                iterations=0 if run.config is None else run.config.iterations,
                finished=finished,
            )
        )
    return found


def _precise(row: Row, factor: float) -> Row:
    """Return a row with bandwidths that follow from its time; the printed ones have two decimals."""
    algbw = row.bytes / row.time / 1e3 if row.time else 0.0
    return replace(row, algbw=algbw, busbw=algbw * factor)


def _finished(run: _Open, told: Told) -> ImportedRun:
    collective = run.collective or told.collective
    if collective is None:
        raise ResultsError(
            f"{told.name} does not say which collective it measured, as versions of nccl-tests before 2.17.7; "
            "give --collective"
        )
    sizes = [row.bytes for row in run.rows] or [0]
    config = run.config or Config(
        minimum_bytes=min(sizes),
        maximum_bytes=max(sizes),
        step_factor=0,
        step_bytes=0,
        iterations=0,
        warmup_iters=0,
    )
    config = replace(
        config,
        report_cputime="cputime" in run.columns,
        report_timestamps="timestamp" in run.columns,
    )
    if not run.ranks and told.ranks is None:
        raise ResultsError(f"{told.name} does not say how many ranks there were; give --ranks")
    ranks = run.ranks or unknown_ranks(told.ranks or 1)
    info = run_info(told, config, ranks, run.versions, [run.program or f"{collective}_perf"])
    rows = [replace(row, collective=collective) for row in run.rows]
    if collective in DESCRIPTIONS and not config.report_cputime:
        rows = [_precise(row, DESCRIPTIONS[collective].bus_factor(len(ranks))) for row in rows]
    status = "completed" if run.ended else CUT
    return ImportedRun(info, rows, [None] * len(rows), status)
