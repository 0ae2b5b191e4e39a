"""Rows as CSV, each with the facts that identify its run."""

import csv
import dataclasses
import io

from hpccomm.results.schema import UNCHECKED, Row, RunInfo

_FACTS = ("run", "started", "ranks", "nodes", "hpccomm")
_COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


def heading() -> str:
    """Return the first line: the facts of the run, then the columns of `Row` by their names."""
    return _line((*_FACTS, *_COLUMNS))


def line(name: str, info: RunInfo, row: Row) -> str:
    """Return the line of one row.

    An unchecked row has an empty ``wrong``; ``in_place`` is 0 or 1. Figures have all their digits.

    Parameters
    ----------
    name : str
        Name of the run; empty for one that is not in a file.
    info : RunInfo
        Facts of the run.
    row : Row
        The measurement.
    """
    values = {column: getattr(row, column) for column in _COLUMNS}
    values["in_place"] = int(row.in_place)
    values["wrong"] = "" if row.wrong == UNCHECKED else row.wrong
    return _line(
        (
            name,
            info.started.isoformat(),
            len(info.ranks),
            len({rank.node for rank in info.ranks}),
            info.versions.get("hpccomm", ""),
            *values.values(),
        )
    )


def _line(values: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
