"""Identifies a table by its own figures: its collective, its ranks, and which rows belong to it.

The readers `nccl_text`, `nccl_json` and `records` call it before they make a run of a table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpccomm.bench.logs.figures import (
    PrintedRow,
    TableKind,
    fits,
    kinds,
    numbers_of_ranks,
    possible,
)
from hpccomm.bench.logs.imported import LIMIT, NO_RANKS, LogDefaults
from hpccomm.bench.perf.collectives import COLLECTIVES
from hpccomm.results.schema import Row

_MOST_TRIED = 4096


Fitting = tuple[list[PrintedRow], TableKind]
"""Rows that do not fit, and the kind that the others do."""


class Unfit(Exception):
    """Why a table is not stored; caught where tables are read, never seen outside."""


@dataclass(frozen=True, slots=True)
class IdentifiedTable:
    """The identity of a table.

    Attributes
    ----------
    kind : TableKind
        Collective and ranks.
    rows : list of PrintedRow
        The rows of this kind.
    notes : list of str
        What follows only from the figures, what contradicts, and which rows are left out.
    """

    kind: TableKind
    rows: list[PrintedRow]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class TableEvidence:
    """A log's facts about a table.

    Attributes
    ----------
    rows : sequence of PrintedRow
        Its rows, at least one.
    name : str
        The collective that the log names, if it does.
    hint : str
        A likely name, such as that of a command above the table: it counts if the figures fit.
    listed : sequence of int
        Numbers of ranks that follow from what the log lists; the first that fits counts.
    among : sequence of str
        The candidates for a table without a name; by default nccl-tests' programs with such rows.
    timed, counted : bool
        As for `fits`.
    """

    rows: Sequence[PrintedRow]
    name: str = ""
    hint: str = ""
    listed: Sequence[int] = ()
    among: Sequence[str] = ()
    timed: bool = True
    counted: bool = True

    def identified(self, defaults: LogDefaults) -> IdentifiedTable:
        """Find the collective and the number of ranks that the figures of the table fit.

        Raises
        ------
        Unfit
            If none fits, or several do.
        """
        rows, name, listed = self.rows, self.name, self.listed
        if len(name) > 32 or not all(map(_storable, rows)):
            raise Unfit("has names or numbers that no program prints")
        if name and name not in COLLECTIVES:  # what hpccomm does not know cannot be checked
            number = next(iter(listed), defaults.ranks)
            if not number:
                raise Unfit(NO_RANKS)
            return IdentifiedTable(TableKind(name, number), list(rows), [])
        names = [name] if name else list(self.among or possible(rows))
        fitting: dict[str, list[Fitting]] = {}
        # What the log lists counts most, then what the caller says, then what the figures are of.
        for numbers in (listed, [defaults.ranks] if defaults.ranks else [], None):
            for each in names:
                tried = numbers_of_ranks(rows, each) if numbers is None else numbers
                if len(tried) <= _MOST_TRIED:
                    fitting[each] = self._fitting(each, tried)
            fitting = {each: kinds for each, kinds in fitting.items() if kinds}
            if fitting:
                least = min(len(kinds[0][0]) for kinds in fitting.values())
                fitting = {each: best for each, best in fitting.items() if len(best[0][0]) == least}
                break
        chosen = fitting[self._chosen(fitting, defaults)]
        bad, kind = chosen[0]
        ranks = {each.ranks for _, each in chosen}
        if numbers is None and len(ranks) > 1:
            raise Unfit(
                f"does not say how many ranks there were, and its bus bandwidth may be that of {min(ranks)} to "
                f"{max(ranks)}; give --ranks"
            )
        contradicted = _contradicted(kind, defaults, name or self.hint, listed)
        lines = {row.line: f"line {row.line} is left out: {_why(row, kind)}" for row in bad[::-1]}
        notes = [*contradicted, *reversed(lines.values())]
        return IdentifiedTable(kind, [row for row in rows if row.line not in lines], notes)

    def _fitting(self, collective: str, numbers: Iterable[int]) -> list[Fitting]:
        """Return the kinds that more than half of the rows fit, those with the fewest misfits."""
        tried = []
        for ranks in numbers:
            for kind in kinds(collective, ranks):
                bad = [
                    row
                    for row in self.rows
                    if not fits(row, kind, timed=self.timed, counted=self.counted)
                ]
                if 2 * len(bad) < len(self.rows):
                    tried.append((bad, kind))
        least = min((len(bad) for bad, _ in tried), default=0)
        return [each for each in tried if len(each[0]) == least]

    def _chosen(self, fitting: dict[str, list[Fitting]], defaults: LogDefaults) -> str:
        """Return the collective of several that fit."""
        name = self.name
        if defaults.collective in fitting and not name:
            return str(defaults.collective)
        if (name or self.hint) in fitting:
            return name or self.hint
        if len(fitting) == 1:
            return next(iter(fitting))
        if fitting:
            asked = defaults.collective
            contradicted = f", and {asked} is not among them" if asked else ""
            raise Unfit(
                f"does not say which collective it measured, and may be of {' or '.join(fitting)}{contradicted}; "
                "give --collective"
            )
        collective = name or defaults.collective or ""
        ranks = [*self.listed, *([defaults.ranks] if defaults.ranks else [])]
        if not ranks:
            if not name and len(possible(self.rows)) != 1:
                raise Unfit(
                    "does not say which collective it measured; give --collective and --ranks"
                )
            raise Unfit(NO_RANKS)
        if not collective:
            raise Unfit(
                f"has rows that are of no collective of nccl-tests on {ranks[0]} ranks: its bus bandwidth, or its "
                "sizes and counts, contradict each other"
            )
        for kind in kinds(collective, ranks[0]):
            for row in self.rows:
                if not fits(row, kind):
                    raise Unfit(f"contradicts itself: {_why(row, kind)}")
        raise Unfit(f"is not of {collective} on {ranks[0]} ranks")


def _storable(row: PrintedRow) -> bool:
    """Whether a results file can hold a row."""
    numbers = (row.root, row.size, row.count, row.wrong)
    named = max(len(row.dtype), len(row.op)) <= 32
    return named and all(-LIMIT <= each < LIMIT for each in numbers)


def _contradicted(
    kind: TableKind, defaults: LogDefaults, name: str, listed: Sequence[int]
) -> Iterator[str]:
    if listed and kind.ranks not in listed:
        found = f"its bus bandwidth is that of {kind.ranks}"
        yield f"{listed[0]} ranks are listed, and {found}: stored as {kind.ranks}"
    elif not listed and kind.ranks != defaults.ranks:
        yield f"its figures fit {kind.ranks} ranks"
    if defaults.ranks not in (None, kind.ranks):
        yield f"--ranks {defaults.ranks} contradicts the log, and is not used"
    if kind.collective not in (name, defaults.collective):
        yield f"its figures fit {kind.collective}"
    if defaults.collective not in (None, kind.collective):
        yield f"--collective {defaults.collective} contradicts the log, and is not used"


def _why(row: PrintedRow, kind: TableKind) -> str:
    expected = row.size / row.time.value * kind.factor / 1e3 if row.time.value else 0.0
    return (
        f"{row.size} B with a count of {row.count} in {row.time.value:g} us and a bus bandwidth of "
        f"{row.busbw.value:g} GB/s are not {kind.collective}'s on {kind.ranks} ranks, which would be {expected:.2f}"
    )


def stored(
    table: IdentifiedTable, backend: str, algorithm: str, iterations: int = 0, *, timed: bool = True
) -> list[Row]:
    """Return the rows of a results file: printed figures, with the decimals that follow from the time.

    The printed ones have two decimals at most. What was computed is taken where it prints so.
    """
    kind, rows = table.kind, []
    benchmark = COLLECTIVES.get(kind.collective)
    op = "sum" if benchmark is not None and benchmark.what.reduces else "none"
    for row in table.rows:
        algbw, busbw = row.algbw.value, row.busbw.value
        if timed and benchmark is not None and row.time.value:
            base = row.size / row.time.value / 1e3
            algbw = row.algbw.refined(base * kind.carried)
            busbw = row.busbw.refined(base * kind.factor)
        case = kind.collective, backend, algorithm, row.dtype, row.op or op, row.root, row.size
        figures = row.count, row.in_place, row.time.value, algbw, busbw, row.wrong
        rows.append(Row(*case, *figures, row.iterations or iterations, row.finished))
    return rows
