"""rccl-tests' ``-Z csv`` and ``-Z json``: a record for each measurement, as lines or as a list.

`hpccomm.tools.runs.logs.reading` calls it.
"""

import csv
from itertools import groupby
from typing import Any

from hpccomm.results.schema import UNCHECKED
from hpccomm.tools.perf.collectives import COLLECTIVES
from hpccomm.tools.runs.logs import imported
from hpccomm.tools.runs.logs.imported import ImportedRun, LeftOutTable, LogDefaults, LogTable
from hpccomm.tools.runs.logs.printed import ITEMSIZES, Figure, PrintedRow, Unfit, measured

Record = dict[str, Any]


def is_one(value: Any) -> bool:
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
    for (name, ranks), members in groupby(lowered, key=lambda each: _of(each[1])):
        part = list(members)
        line = part[0][0]
        try:
            of = measured(name, ranks, defaults)
            blocks = ranks if COLLECTIVES[name].what.blockwise else 1
            # It has neither root nor count.
            rows = of.rows([_row(*each, blocks) for each in part], "rccl", own=True)
        except Unfit as error:
            tables.append(LeftOutTable(line, f"{len(part)} rows", str(error), error.unlike))
            continue
        config, numbers = imported.settings_of(rows), imported.unknown_ranks(ranks)
        info = imported.run_info(defaults, config, numbers, {}, [f"{name}_perf"])
        status, said = imported.status_of(rows), [*(notes if not tables else []), *of.notes]
        tables.append(ImportedRun(info, rows, [None] * len(rows), status, line=line, notes=said))
    return tables


def _of(record: Record) -> tuple[str, int]:
    """Return the collective of a record, and its number of ranks."""
    name = imported.collective_of(str(record.get("name") or record["collective"]))
    devices = int(record.get("gpusperrank") or record.get("gpus") or 1)
    return name, int(record.get("ranks", 1)) * devices


def _row(line: int, record: Record, blocks: int) -> PrintedRow:
    dtype, op, size = str(record["type"]), str(record.get("redop") or ""), int(record["size"])
    wrong = str(record.get("wrong", record.get("#wrong", "N/A")))
    count = size // blocks // ITEMSIZES.get(dtype, 1)
    case = line, dtype, op, -1, size, count, bool(int(record["inplace"]))
    time, algbw, busbw = (Figure(float(record[name])) for name in ("time", "algbw", "busbw"))
    return PrintedRow(*case, time, algbw, busbw, UNCHECKED if wrong == "N/A" else int(float(wrong)))
