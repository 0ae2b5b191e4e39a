"""Tables as TOML, the form in which those that come with the package are kept.

::

    measured = "2026-11-21"
    [shape]                       # a key for each attribute of `Shape`
    ranks = 2
    ...
    [all_reduce]                  # for each collective its cases, and for these their rows:
    native = [[0, "native"], [11585, "shm"]]     # bytes, algorithm
    own = [[0, "recursive_doubling"], [4096, "ring", 131072, 2]]   # also segment, channels
"""

import json
import tomllib
from dataclasses import asdict
from typing import Any

from hpccomm.dispatch.policy.table import Pick, Shape, Table, TableRow, TableRows


def parse(text: str) -> Table:
    """Return the table of a TOML text that `dump` could have written."""
    document = tomllib.loads(text)
    shape, measured = Shape(**document.pop("shape")), document.pop("measured")
    rows = {
        (collective, case): _rows(given)
        for collective, cases in document.items()
        for case, given in cases.items()
    }
    return Table(shape, measured, rows)


def _rows(given: list[list[Any]]) -> TableRows:
    return tuple(TableRow(start, Pick(*pick)) for start, *pick in given)


def dump(table: Table) -> str:
    """Return a table as TOML."""
    lines = [f"measured = {json.dumps(table.measured)}", "", "[shape]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in asdict(table.shape).items()]
    for collective in dict.fromkeys(collective for collective, _ in table.rows):
        lines += ["", f"[{collective}]"]
        for (of, case), rows in table.rows.items():
            if of == collective:
                lines.append(f"{case} = [{', '.join(map(_row, rows))}]")
    return "\n".join(lines) + "\n"


def _row(row: TableRow) -> str:
    pick = list(row.pick)
    while not pick[-1]:  # what is left to the default
        pick.pop()
    return json.dumps([row.start, *pick])
