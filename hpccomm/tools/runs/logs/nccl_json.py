"""JSON of nccl-tests and rccl-tests, and rccl-tests' CSV, as runs.

nccl-tests' ``-J`` and `hpccomm perf -J` write a document for each run, in version 2 or 3; `parse` reads it. rccl-tests'
``-Z csv`` and ``-Z json`` write a record for each measurement, as lines or as a list; `parse_records` reads them.
"""

import csv
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.schema import UNCHECKED, Config, RankInfo, Row
from hpccomm.results.table import TIME_FORMAT
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import (
    ITEMSIZES,
    ImportedRun,
    LeftOutTable,
    LogDefaults,
    LogTable,
    PrintedRow,
    StatedTable,
    stored,
)

Record = dict[str, Any]


def is_record(value: Any) -> bool:
    """Whether a value of JSON is such a record."""
    return isinstance(value, dict) and "busbw" in {key.lower() for key in value}


def is_csv(text: str) -> bool:
    """Whether a log is rccl-tests' CSV."""
    names = text.lstrip().partition("\n")[0].lower().split(",")
    return {"size", "busbw", "inplace"} <= set(names)


def of_csv(text: str) -> tuple[list[tuple[int, Record]], list[str]]:
    """Return the records of a CSV with their lines, and notes on lines that are not records."""
    table = csv.reader(text.lstrip().splitlines(), skipinitialspace=True)
    names = next(table)
    rows, notes = [], []
    for line, cells in enumerate(table, 2):
        if len(cells) == len(names):
            rows.append((line, dict(zip(names, (cell.strip() for cell in cells), strict=True))))
        elif cells:
            notes.append(f"line {line}: a row is cut: {','.join(cells)!r}")
    return rows, notes


def parse_records(
    records: list[tuple[int, Record]], notes: list[str], defaults: LogDefaults
) -> list[LogTable]:
    """Return records as runs, or with the reason why not. Consecutive records of a collective are a run.

    Parameters
    ----------
    records : list of (int, dict)
        Each with its line.
    notes : list of str
        Notes on lines that are not records.

    Raises
    ------
    ValueError, LookupError, TypeError, AttributeError, OverflowError
        If a record has another form.
    """
    tables: list[LogTable] = []
    lowered = [(line, {k.lower(): v for k, v in each.items()}) for line, each in records]
    for (name, ranks), members in groupby(lowered, key=lambda each: _of(each[1])):
        part = list(members)
        # A record has neither root nor count.
        blockwise = name in COLLECTIVES and COLLECTIVES[name].what.blockwise
        blocks = max(ranks, 1) if blockwise else 1
        rows = [_record_row(*each, blocks) for each in part]
        table = StatedTable(part[0][0], "", name, ranks, rows, "rccl", own=True)
        table.notes = notes if not tables else []
        tables.append(stored(table, defaults))
    return tables


def _of(record: Record) -> tuple[str, int]:
    """Return the collective of a record, and its number of ranks."""
    name = imported.collective_of(str(record.get("name") or record["collective"]))
    devices = int(record.get("gpusperrank") or record.get("gpus") or 1)
    return name, int(record.get("ranks", 1)) * devices


def _record_row(line: int, record: Record, blocks: int) -> PrintedRow:
    dtype, op, size = str(record["type"]), str(record.get("redop") or ""), int(record["size"])
    wrong = str(record.get("wrong", record.get("#wrong", "N/A")))
    count = size // blocks // ITEMSIZES.get(dtype, 1)
    time, algbw, busbw = (float(record[name]) for name in ("time", "algbw", "busbw"))
    case = dtype, op, -1, size, count, bool(int(record["inplace"])), time, algbw, busbw
    checked = UNCHECKED if wrong == "N/A" else int(float(wrong)), 0
    return PrintedRow(line, Row("", "", "", *case, *checked))


VERSIONS = (2, 3)

_SETTINGS = {each.name for each in fields(Config)}


def parse(document: dict[str, Any], defaults: LogDefaults, line: int) -> list[LogTable]:
    """Return the tables of a document, as runs or with the reason why not.

    Raises
    ------
    ResultsError
        If it is of another version.
    ValueError, LookupError, TypeError, AttributeError, OverflowError
        If the document has another form.
    """
    if document["version"] not in VERSIONS:
        raise ResultsError(
            f"{defaults.name} is nccl-tests' JSON of version {document['version']}; versions "
            f"{' and '.join(map(str, VERSIONS))} can be read"
        )
    settings = dict(document["config"])
    # The document names the first device of each process.
    share = _plain(settings.get("nthreads", 1)) * _plain(settings.get("ngpus", 1))
    named = [_rank(each) for each in settings.pop("devices", document.get("devices", []))]
    ranks = _ranks(named, share)
    count, iterations = len(ranks) or defaults.ranks or 1, settings.get("iterations", 0)
    results = document["results"]
    printed = [
        (_block(each, document), row)
        for number, each in enumerate(results, 1)
        for row in _halves(each, number, iterations, count)
    ]
    wrong = (document.get("out_of_bounds") or {}).get("count")
    version, ended = document.get("nccl_version"), document.get("end_time")
    stated = StatedTable(
        line,
        number=imported.ranks_of(named, share),
        host_time=any(
            "cpu_time" in (each.get(place) or ()) for each in results for place in _PLACES
        ),
        program=[str(each) for each in document.get("args", [])],
        config=_config(settings, [row.row for _, row in printed]),
        ranks=ranks,
        versions={"nccl": imported.nccl_version(int(version))} if version else {},
        environment=dict(each.split("=", 1) for each in document.get("env", []) if "=" in each),
        started=_time(document["start_time"]),
        ended=None if ended is None else _time(ended),
        wrong=int(wrong or 0) or sum(row.row.wrong for _, row in printed if row.row.wrong > 0),
        status=_status(document),
    )
    tables: list[LogTable] = []
    for (collective, backend, algorithm, own), members in groupby(printed, key=itemgetter(0)):
        rows = [row for _, row in members]
        table = replace(stated, collective=collective, backend=backend, algorithm=algorithm)
        tables.append(stored(replace(table, own=own, rows=rows), defaults))
    return _as_one_run(tables) or [LeftOutTable(line, "a document", "has no rows")]


def _as_one_run(tables: list[LogTable]) -> list[LogTable]:
    """Return the runs of a document's tables as one run, and the tables that are left out."""
    runs = [each for each in tables if isinstance(each, ImportedRun)]
    for each in runs[1:]:
        runs[0].rows += each.rows
        runs[0].samples += each.samples
        runs[0].notes += [note for note in each.notes if note not in runs[0].notes]
    return [*runs[:1], *(each for each in tables if isinstance(each, LeftOutTable))]


def _time(text: str) -> datetime:
    return datetime.strptime(text, TIME_FORMAT).astimezone()


def _status(document: dict[str, Any]) -> str:
    if errors := [each for each in document.get("errors") or [] if each]:
        return f"failed: {errors[0]}"
    if document.get("end_time") is None:
        return imported.CUT
    judged_slow = str((document.get("average_bus_bandwidth") or {}).get("okay")).lower() == "false"
    return imported.SLOW if judged_slow else imported.COMPLETED


def _ranks(named: list[RankInfo], share: int) -> tuple[RankInfo, ...]:
    """Return all ranks; a process names the first of its devices."""
    hosts = list(dict.fromkeys(each.host for each in named))
    return tuple(
        replace(
            each,
            rank=each.rank + place,
            node=hosts.index(each.host),
            device=each.device + place if each.device >= 0 else each.device,
            device_hex=each.device_hex if not place else "",
        )
        for each in named
        for place in range(share)
    )


_PLACES = ("out_of_place", "in_place")


def _halves(
    result: dict[str, Any], number: int, iterations: int, ranks: int
) -> Iterator[PrintedRow]:
    """Yield the rows of a result. Their line is the number of the result."""
    for place in _PLACES:
        half = result.get(place)
        if half is None:
            continue
        wrong = half.get("nwrong")
        case = str(result["type"]), str(result.get("redop") or ""), int(result.get("root", -1))
        size = int(result["size"]), int(result["count"]), place == "in_place"
        time, algbw, busbw = (
            float(_either(half, *names))
            for names in (("time", "cpu_time"), ("alg_bw", "algbw"), ("bus_bw", "busbw"))
        )
        checked = UNCHECKED if wrong is None else int(wrong)
        repeated = int(result.get("actual_iterations", iterations))
        row = Row("", "", "", *case, *size, time, algbw, busbw, checked, repeated)
        samples = _samples(result.get(f"{place}_per_iter"), ranks)
        yield PrintedRow(number, row, samples=samples)


def _block(result: dict[str, Any], document: dict[str, Any]) -> tuple[str, str, str, bool]:
    """Return collective, backend, algorithm, and whether hpccomm has written them; nccl-tests mostly does not."""
    words = str(result.get("experiment_name") or "").split()
    if len(words) == 3:
        return words[0], words[1], words[2], True
    program = str((document.get("args") or [""])[0])
    return (imported.collective_of(program) if "_perf" in program else ""), "nccl", "auto", False


def _rank(device: dict[str, Any]) -> RankInfo:
    kinds = {"rank": int, "group": int, "pid": int, "device": int} | dict.fromkeys(
        ("device_hex", "device_info"), str
    )
    facts: dict[str, Any] = {key: kind(device[key]) for key, kind in kinds.items() if key in device}
    return RankInfo(host=str(device["hostname"]), **facts)


def _config(settings: dict[str, Any], rows: list[Row]) -> Config:
    values = {name: _plain(value) for name, value in settings.items() if name in _SETTINGS}
    for name in ("per_iter_timing", "parallel_init"):
        values[name] = bool(values.get(name, False))
    return imported.settings_of(rows, **values)


def _plain(value: Any) -> int:
    """Return a number; nccl-tests writes truth values as text."""
    return int({"true": 1, "false": 0}.get(value, value))


def _either(half: dict[str, Any], *names: str) -> Any:
    """Return the value of the first of these keys that is there; versions spell it in two ways."""
    return half[next((name for name in names if name in half), names[0])]


def _samples(repetitions: dict[str, Any] | None, ranks: int) -> np.ndarray | None:
    """Return the seconds of repetitions, shape ``(repetitions, ranks)``.

    All ranks of a process have its time. If the log has the slowest process alone, all ranks have the time of that.
    """
    if repetitions is None:
        return None
    slowest = np.array(repetitions["times_us"], float)[:, None] * 1e-6
    processes = repetitions.get("per_process_max_times_us")
    if processes is None:
        return np.repeat(slowest, ranks, axis=1)
    times = np.array(processes, float).T * 1e-6
    if not len(times) or ranks % times.shape[1]:
        return np.repeat(slowest, ranks, axis=1)
    return np.repeat(times, ranks // times.shape[1], axis=1)
