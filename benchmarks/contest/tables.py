"""A run as text for a terminal, and as reStructuredText for a page."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from contest.contenders import AUTO, COPY, Contender
from contest.results import Line, Result

TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = "-"

Column = tuple[str, ...]
"""A heading, and what stands below it, line by line."""


def text(lines: Sequence[Line], contenders: Sequence[Contender]) -> str:
    """Return the table of one collective for a terminal.

    Microseconds; then, for hpccomm, its speed over the library's; then the speed over the limit's.
    A time with an exclamation mark is that of wrong results.
    """
    columns: list[Column] = [("size", *(str(line.nbytes) for line in lines))]
    for one in _present(lines, contenders):
        found = [line.results.get(one.name) for line in lines]
        columns.append((one.name, *map(_microseconds, found)))
        pairs = list(zip(lines, found, strict=True))
        if one.ours:
            faster = (NOTHING if it is None else _ratio(line.faster(it)) for line, it in pairs)
            columns.append(("faster", *faster))
        if one.name != COPY:
            share = (NOTHING if it is None else _share(line.share(it)) for line, it in pairs)
            columns.append(("limit", *share))
    columns += _limits(lines, lambda line: f"{line.limit * 1e6:.2f}")
    columns += _chosen(lines)
    widths = [max(map(len, column)) for column in columns]
    table = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*columns, strict=True)
    ]
    head = [f"# {_title(lines)}, microseconds", f"# {table[0]}"]
    return "".join(f"{line}\n" for line in [*head, *(f"  {row}" for row in table[1:])])


def restructured(tables: Sequence[Sequence[Line]], contenders: Sequence[Contender]) -> str:
    """Return the tables of all collectives, each a ``csv-table``."""
    return "\n".join(_csv_table(lines, contenders) for lines in tables)


def _csv_table(lines: Sequence[Line], contenders: Sequence[Contender]) -> str:
    columns: list[Column] = [("size", *(size(line.nbytes) for line in lines))]
    columns += [
        (one.name, *(_cell(line, line.results.get(one.name)) for line in lines))
        for one in _present(lines, contenders)
    ]
    columns += _limits(lines, lambda line: duration(line.limit))
    columns += _chosen(lines)
    table = [", ".join(f'"{cell}"' for cell in row) for row in zip(*columns, strict=True)]
    head = [f".. csv-table:: {_title(lines)}", f"   :header: {table[0]}", ""]
    return "".join(f"{line}\n" for line in [*head, *(f"   {row}" for row in table[1:])])


def _title(lines: Sequence[Line]) -> str:
    return f"{lines[0].collective}{' in place' if lines[0].in_place else ''}, float32"


def _present(lines: Sequence[Line], contenders: Sequence[Contender]) -> list[Contender]:
    """Return those that have such a call."""
    return [one for one in contenders if any(one.name in line.results for line in lines)]


def _limits(lines: Sequence[Line], spelled: Callable[[Line], str]) -> Iterator[Column]:
    """Yield the column of the limit, unless a contender's times are it, or it is not known."""
    if all(math.isfinite(line.limit) and COPY not in line.results for line in lines):
        yield ("the limit", *map(spelled, lines))


def _chosen(lines: Sequence[Line]) -> Iterator[Column]:
    """Yield the column of what ``auto`` chose, if it did."""
    took = [line.results[AUTO].took if AUTO in line.results else "" for line in lines]
    if any(took):
        yield (f"{AUTO} took", *took)


def _microseconds(result: Result | None) -> str:
    if result is None:
        return NOTHING
    return f"{result.times.seconds * 1e6:.2f}" + "!" * (result.wrong > 0)


def _cell(line: Line, result: Result | None) -> str:
    if result is None:
        return ""
    spelled = duration(result.times.seconds) + " WRONG" * (result.wrong > 0)
    if result.contender.name == COPY:
        return spelled
    share = _share(line.share(result))
    if result.contender.ours:
        return f"{spelled} ({_ratio(line.faster(result))}{TIMES}; {share})"
    return f"{spelled} ({share})"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def _share(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else NOTHING


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
