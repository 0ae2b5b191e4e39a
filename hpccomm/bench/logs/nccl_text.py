"""Runs from the text output of nccl-tests, rccl-tests, mscclpp-test and `hpccomm perf`.

`hpccomm.bench.logs.reading` calls it for each stream of a log.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from hpccomm.bench.logs import imported, nccl_tables
from hpccomm.bench.logs.causes import cause
from hpccomm.bench.logs.identifying import TableEvidence, Unfit, stored
from hpccomm.bench.logs.imported import ImportedRun, LeftOutTable, LogDefaults, LogTable
from hpccomm.bench.logs.lines import LogLine
from hpccomm.bench.logs.nccl_tables import PrintedTable

is_one = nccl_tables.is_one

_MOST_NOTES = 3
"""Of a table without rows."""


def parse(
    lines: Sequence[LogLine], log: Sequence[LogLine], defaults: LogDefaults
) -> Iterator[LogTable]:
    """Yield the tables in one stream of a log, in their order, as runs or with the reason why not.

    Parameters
    ----------
    lines : sequence of LogLine
        The stream.
    log : sequence of LogLine
        All lines of the log, where the cause of a failure is searched.
    defaults : LogDefaults
        Facts that the log may lack.
    """
    tables = nccl_tables.read(lines)
    ends = {one.line: other.line for one, other in pairwise(tables)}
    for group in _apart(tables):
        first = group[0]
        left_out = "what stands behind the end of the table is left out"
        first.notes += [f"line {number}: {left_out}" for number in first.behind]
        if len(group) > 1 or first.mixed:
            yield _interleaved(group)
            continue
        why = ""
        if not first.ended:
            last = first.rows[-1].line if first.rows else None
            why = cause(log, first.line, ends.get(first.line), last, warned=True)
        yield _finished(first, why, defaults)


def _apart(tables: Sequence[PrintedTable]) -> Iterable[list[PrintedTable]]:
    """Return the tables in groups: one table each, but all of programs whose output is mixed.

    Such programs begin before others end: their tables are one group until as many have ended as have begun.
    """
    first = min((table.began for table in tables), default=0)
    group: list[PrintedTable] = []
    begun = 0
    for table in tables:
        if group and begun <= 0:
            yield from _split(group, first)
            group, begun = [], 0
        group.append(table)
        begun += (table.began == first) - table.ends
    yield from _split(group, first)


def _split(group: list[PrintedTable], first: int) -> Iterable[list[PrintedTable]]:
    """Return a group as one if its programs have printed into each other: nothing else explains it."""
    begun = sum(table.began == first for table in group)
    if any(table.mixed for table in group) or (
        # Rows behind another's end, and parts of a head that do not begin as one.
        begun > 1 and any(table.behind or table.began > first for table in group)
    ):
        yield group
    else:
        yield from ([table] for table in group if table.layout.columns or table.notes)


def _interleaved(group: list[PrintedTable]) -> LeftOutTable:
    rows = sum(len({row.line for row in table.rows}) + len(table.behind) for table in group)
    programs = sum(1 for table in group if table.layout.columns)
    number = f"{programs} programs print" if programs > 1 else "several programs print"
    return LeftOutTable(
        group[0].line,
        f"{rows} lines",
        f"{number} into each other, and nothing says whose row is whose; build nccl-tests with MPI=1, where one "
        "process prints for all, or run it with mpirun --tag-output or srun --label",
    )


def _finished(table: PrintedTable, why: str, defaults: LogDefaults) -> LogTable:
    """Return the run of a table, if its figures agree with its collective and ranks."""
    name = imported.collective_of(table.program) if table.program else ""
    what = f"{len(table.rows)} rows" + (f" of {name}" if name else "")
    if not table.rows:
        reason = "; ".join([*table.notes[:_MOST_NOTES], *([why] if why else [])])
        return LeftOutTable(table.line, "a table", f"has no whole row{reason and ': ' + reason}")
    listed = tuple(table.ranks[rank] for rank in sorted(table.ranks))
    try:
        identified = TableEvidence(
            table.rows,
            name,
            table.hint,
            [table.folded] if table.folded else imported.group_sizes(listed),
            table.layout.candidates(table.rows, table.backend),
            timed=not table.layout.host_time,
            counted="hpccomm" not in table.versions,
        ).identified(defaults)
    except Unfit as error:
        return LeftOutTable(table.line, what, "; ".join([str(error), *table.notes]))
    rows = stored(
        identified,
        "mscclpp" if table.layout.of_mscclpp else table.backend,
        table.algorithm,
        0 if table.config is None else table.config.iterations,
        timed=not table.layout.host_time,
    )
    config = replace(
        table.config or imported.settings_of(rows),
        report_cputime=table.layout.host_time,
        report_timestamps="timestamp" in table.layout.columns,
    )
    number = identified.kind.ranks
    whole = listed and len(listed) == listed[-1].rank + 1 and number in imported.group_sizes(listed)
    ranks = listed if whole else imported.unknown_ranks(number)
    program = table.program or f"{identified.kind.collective}_perf"
    status = imported.status_of(rows, table.wrong or 0)
    if status == imported.COMPLETED and not table.ended:
        status = imported.INTERRUPTED + why if why else imported.CUT
    elif status == imported.COMPLETED and table.slow:
        status = imported.SLOW
    return ImportedRun(
        imported.run_info(defaults, config, ranks, table.versions, [program]),
        rows,
        [None] * len(rows),
        status,
        line=table.line,
        notes=[*table.notes, *identified.notes],
    )
