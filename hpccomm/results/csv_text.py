"""Rows as CSV, each with the facts that identify its run, and statistics over its repetitions.

`hpccomm perf --csv` and `hpccomm export` write it.
"""

import csv
import io

import numpy as np

from hpccomm.results.repetitions import SUMMARY, summary
from hpccomm.results.schema import UNCHECKED, Column, Row, RunInfo, columns

_FACTS: tuple[Column, ...] = (
    Column("run", "str", "name of the run in its results file; empty without one"),
    Column("started", "str", "when the run started, ISO 8601 with the offset from UTC"),
    Column("ranks", "<i8", "number of ranks"),
    Column("nodes", "<i8", "number of nodes"),
    Column("hpccomm", "str", "version of hpccomm"),
    Column(
        "variant", "str", "which of two interleaved variants was measured; empty if there was one"
    ),
)

_SUFFIXES = {"us": "_us", "s": "_s", "1e9 B/s": "_GBps", "%": "_pct"}
"""The unit's suffix of a column's name. Names of bytes and count are their units."""


def stored_columns() -> tuple[Column, ...]:
    """Return the columns' values: the facts of the run, `Row`, and `SUMMARY`.

    The name of a column ends in its unit: ``time_us``, ``busbw_GBps``.
    """
    return tuple(
        each._replace(name=each.name + _SUFFIXES.get(each.unit, ""))
        for each in (*_FACTS, *columns(Row), *SUMMARY)
    )


def heading() -> str:
    """Return the first line: the names of `stored_columns`."""
    return _line(tuple(column.name for column in stored_columns()))


def line(name: str, info: RunInfo, row: Row, samples: np.ndarray | None, variant: str = "") -> str:
    """Return the line of one row.

    An unchecked row has an empty ``wrong``, and one without samples empty statistics. ``in_place`` is 0
    or 1. Figures have all their digits.

    Parameters
    ----------
    name : str
        Name of the run; empty for one that is not in a file.
    info : RunInfo
        Facts of the run.
    row : Row
        The measurement.
    samples : ndarray or None
        Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
    variant : str
        The variant of the row.
    """
    values = {column.name: getattr(row, column.name) for column in columns(Row)}
    values["in_place"] = int(row.in_place)
    values["wrong"] = "" if row.wrong == UNCHECKED else row.wrong
    return _line(
        (
            name,
            info.started.isoformat(),
            len(info.ranks),
            info.nodes,
            info.versions.get("hpccomm", ""),
            variant,
            *values.values(),
            *(summary(samples, info.config.per_iter_skip) or ("",) * len(SUMMARY)),
        )
    )


def _line(values: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
