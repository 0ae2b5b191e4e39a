"""A run as text for a terminal, and as reStructuredText for a page."""

import math
from collections.abc import Mapping, Sequence

from contest.contenders import AUTO, COPY, Contender
from contest.results import Line, Result

TIMES = "\N{MULTIPLICATION SIGN}"

Column = tuple[str, ...]
"""A heading, and what stands below it, line by line."""


def text(lines: Sequence[Line], contenders: Sequence[Contender]) -> str:
    """Return the table of one collective for a terminal."""
    columns = _columns(lines, contenders)
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*columns, strict=True)
    ]
    return "\n".join(
        [f"# {_title(lines)}", f"# {table[0]}", *(f"  {row}" for row in table[1:]), ""]
    )


def restructured(tables: Sequence[Sequence[Line]], contenders: Sequence[Contender]) -> str:
    """Return the tables of all collectives, each a ``csv-table``."""
    return "\n".join(_csv_table(lines, contenders) for lines in tables)


def _csv_table(lines: Sequence[Line], contenders: Sequence[Contender]) -> str:
    columns = zip(*_columns(lines, contenders), strict=True)
    table = [", ".join(f'"{cell}"' for cell in row) for row in columns]
    head = [f".. csv-table:: {_title(lines)}", f"   :header: {table[0]}", ""]
    return "".join(f"{line}\n" for line in [*head, *(f"   {row}" for row in table[1:])])


def _columns(lines: Sequence[Line], contenders: Sequence[Contender]) -> list[Column]:
    """Return the sizes, a column for each contender that has such a call, the limit, and what ``auto`` chose."""
    columns: list[Column] = [("size", *(size(line.nbytes) for line in lines))]
    columns += [
        (one.name, *(_cell(line, line.results.get(one.name)) for line in lines))
        for one in contenders
        if any(one.name in line.results for line in lines)
    ]
    # Where a contender's times are the limit, or it is not known, it has no column.
    if all(math.isfinite(line.limit) and COPY not in line.results for line in lines):
        columns.append(("the limit", *(duration(line.limit) for line in lines)))
    took = [line.results[AUTO].took if AUTO in line.results else "" for line in lines]
    return [*columns, (f"{AUTO} took", *took)] if any(took) else columns


def _title(lines: Sequence[Line]) -> str:
    return f"{lines[0].collective}{' in place' if lines[0].in_place else ''}, float32"


def _cell(line: Line, result: Result | None) -> str:
    if result is None:
        return ""
    spelled = duration(result.times.seconds) + " WRONG" * (result.wrong > 0)
    if result.contender.name == COPY:
        return spelled
    share = line.share(result)
    of_limit = f"{share:.2f}" if math.isfinite(share) else "-"
    if not result.contender.ours:
        return f"{spelled} ({of_limit})"
    ratio = line.faster(result)
    faster = f"{ratio:.1f}" if ratio >= 9.95 else f"{ratio:.2f}"
    return f"{spelled} ({faster}{TIMES}; {of_limit})"


def size(nbytes: int) -> str:
    """Print bytes with the largest binary unit that fits, to four digits: blocks may be rounded."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 0.999 * (1 << shift):
            return f"{nbytes / (1 << shift):.4g} {unit}"
    return f"{nbytes} B"


def duration(seconds: float) -> str:
    """Print a time with three digits."""
    value, unit = (seconds * 1e6, "µs") if seconds < 1e-3 else (seconds * 1e3, "ms")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def fields(facts: Mapping[str, str]) -> str:
    """Return what a run was made with as a reStructuredText field list."""
    return "".join(f":{name}: {value}\n" for name, value in facts.items())
