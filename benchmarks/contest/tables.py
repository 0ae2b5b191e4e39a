"""A run as reStructuredText, for a terminal and for a page."""

import math
from collections.abc import Sequence

from contest.contenders import AUTO, COPY, PEERS
from contest.race import Line
from contest.rounds import duration
from hpccomm.units import rounded_size

TIMES = "\N{MULTIPLICATION SIGN}"

Table = list[tuple[str, ...]]
"""A heading, and a row for each line."""


def text(lines: Sequence[Line], names: Sequence[str]) -> str:
    """Return the table of one collective: a ``csv-table``, whose columns are aligned for a terminal."""
    rows = [[f'"{cell}"' for cell in row] for row in _table(lines, names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *others = (
        ", ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    case = lines[0].case
    title = f"{case.collective}{' in place' if case.in_place else ''}, float32"
    table = [f".. csv-table:: {title}", f"   :header: {head}", ""]
    return "".join(f"{line}\n" for line in [*table, *(f"   {row}" for row in others)])


def _table(lines: Sequence[Line], names: Sequence[str]) -> Table:
    """Return the sizes, a column for each contender that has such a call, the limit, and what ``auto`` chose."""
    there = [name for name in names if any(name in line.results for line in lines)]
    # Where a contender's times are the limit, or it is not known, it has no column.
    limits = all(math.isfinite(line.limit) and COPY not in line.results for line in lines)
    took = any(AUTO in line.results and line.results[AUTO].took for line in lines)
    head = ["size", *there, *["the limit"] * limits, *[f"{AUTO} took"] * took]
    rows = [
        [
            rounded_size(line.case.nbytes),
            *(_cell(line, name) for name in there),
            *[duration(line.limit)] * limits,
            *[line.results[AUTO].took if AUTO in line.results else ""] * took,
        ]
        for line in lines
    ]
    return [tuple(row) for row in (head, *rows)]


def _cell(line: Line, name: str) -> str:
    result = line.results.get(name)
    if result is None:
        return ""
    spelled = duration(result.times.seconds) + " WRONG" * (result.wrong > 0)
    if name == COPY:
        return spelled
    share = line.share(name)
    of_limit = f"{share:.2f}" if math.isfinite(share) else "-"
    if name in PEERS:
        return f"{spelled} ({of_limit})"
    ratio = line.faster(name)
    faster = f"{ratio:.1f}" if ratio >= 9.95 else f"{ratio:.2f}"
    return f"{spelled} ({faster}{TIMES}; {of_limit})"
