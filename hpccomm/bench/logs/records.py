"""Logs with a record for each measurement: JSON and CSV of rccl-tests, JSON of mscclpp-test.

rccl-tests' ``-Z json`` writes lines or a list. `hpccomm.bench.logs.reading` calls it.
"""

import csv
from itertools import groupby
from typing import Any

from hpccomm.bench.logs import imported
from hpccomm.bench.logs.figures import ITEMSIZES, PrintedRow, exact
from hpccomm.bench.logs.identifying import TableEvidence, Unfit, stored
from hpccomm.bench.logs.imported import ImportedRun, LeftOutTable, LogDefaults, LogTable
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.results.schema import UNCHECKED

_BANDWIDTH = "busbw"
Record = dict[str, Any]


def is_one(value: Any) -> bool:
    """Whether a value of JSON is such a record."""
    return isinstance(value, dict) and _BANDWIDTH in {key.lower() for key in value}


def is_csv(text: str) -> bool:
    """Whether a log is rccl-tests' CSV."""
    names = [name.strip().strip('"').lower() for name in text.lstrip().split("\n", 1)[0].split(",")]
    return len(names) > 8 and {"size", _BANDWIDTH, "inplace"} <= set(names)


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


def parse(
    records: list[tuple[int, Record]], notes: list[str], defaults: LogDefaults
) -> list[LogTable]:
    """Return records as runs, or with the reason why not: consecutive ones of a collective are a run.

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
    for (name, numbers), members in groupby(lowered, key=lambda each: _of(each[1])):
        part = list(members)
        tables.append(_run(name, numbers, part, notes if not tables else [], defaults))
    return tables


def _of(record: Record) -> tuple[str, tuple[int, ...]]:
    """Return the collective of a record, and the numbers of ranks that it may be of."""
    name = imported.collective_of(str(record.get("name") or record["collective"]))
    devices = int(record.get("gpusperrank") or record.get("gpus") or 1)
    numbers = [int(record[key]) for key in ("ranks", "rankspernode") if key in record]
    return name, tuple(dict.fromkeys(number * devices for number in numbers or [1]))


def _run(
    name: str,
    numbers: tuple[int, ...],
    part: list[tuple[int, Record]],
    notes: list[str],
    defaults: LogDefaults,
) -> LogTable:
    of_mscclpp = "kernel" in part[0][1]
    line, what = part[0][0], f"{len(part)} rows of {name}"
    if name not in COLLECTIVES:
        return LeftOutTable(line, what, "has no counterpart in hpccomm", unlike=True)
    blocks = numbers[0] if COLLECTIVES[name].what.blockwise else 1
    rows = [_row(line, record, blocks) for line, record in part]
    try:
        table = TableEvidence(rows, name, listed=numbers, counted=False).identified(defaults)
    except Unfit as error:
        return LeftOutTable(line, what, str(error))
    backend = "mscclpp" if of_mscclpp else "rccl"
    algorithm = f"kernel {part[0][1]['kernel']}" if of_mscclpp else "auto"
    results = stored(table, backend, algorithm, timed=False)
    ranks = imported.unknown_ranks(table.kind.ranks)
    info = imported.run_info(defaults, imported.settings_of(results), ranks, {}, [f"{name}_perf"])
    notes = [*notes, *table.notes]
    return ImportedRun(
        info, results, [None] * len(results), imported.status_of(results), line=line, notes=notes
    )


def _row(line: int, record: Record, blocks: int) -> PrintedRow:
    dtype, op = str(record.get("type", "int32")), str(record.get("redop") or "")
    size, itemsize = int(record["size"]), ITEMSIZES.get(dtype, 1)
    wrong = str(record.get("wrong", record.get("#wrong", "N/A")))
    case = line, dtype, op, -1, size, size // blocks // itemsize, _in_place(record)
    time, algbw, busbw = (exact(float(record[name])) for name in ("time", "algbw", _BANDWIDTH))
    return PrintedRow(*case, time, algbw, busbw, UNCHECKED if wrong == "N/A" else int(float(wrong)))


def _in_place(record: Record) -> bool:
    """Whether it was in place; mscclpp-test does not say it, and its source does (``inPlace_`` of each test)."""
    if "inplace" in record:
        return bool(int(record["inplace"]))
    return record["name"] == "allgather" or (
        record["name"] == "allreduce" and int(record["kernel"]) not in (2, 6, 7)
    )
