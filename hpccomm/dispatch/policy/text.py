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
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hpccomm.dispatch.policy.table import Pick, Shape, Table, TableRow


def parse(text: str) -> Table:
    """Return the table of a TOML text that `dump` could have written."""
    return of_document(tomllib.loads(text))


def of_document(document: Mapping[str, Any]) -> Table:
    """Return the table of a `document`.

    Raises
    ------
    TypeError, ValueError, LookupError
        If it is none. `UsageError` is a ValueError.
    """
    shape, measured = Shape(**document["shape"]), document["measured"]
    rows = {
        (collective, case): tuple(TableRow(start, Pick(*pick)) for start, *pick in given)
        for collective, cases in document.items()
        if collective not in ("shape", "measured")
        for case, given in cases.items()
    }
    return Table(shape, measured, rows)


def document(table: Table) -> dict[str, Any]:
    """Return a table as the keys and values of the text, which are JSON as well."""
    content: dict[str, Any] = {"measured": table.measured, "shape": asdict(table.shape)}
    for (collective, case), rows in table.rows.items():
        content.setdefault(collective, {})[case] = [_row(row) for row in rows]
    return content


def dump(table: Table) -> str:
    """Return a table as TOML."""
    content = document(table)
    lines = [f"measured = {json.dumps(content.pop('measured'))}"]
    for name, section in content.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _row(row: TableRow) -> list[Any]:
    pick = list(row.pick)
    while not pick[-1]:  # what is left to the default
        pick.pop()
    return [row.start, *pick]
