"""From files to launches: the runs of each side, and their rows by case; the cases matched, with one value for each launch.

All fields of a case are equal on both sides, except the ones that differ on purpose (``--across``).
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import reader
from hpccomm.results.archive import each_examined
from hpccomm.results.facts import identity
from hpccomm.results.reader import Run, choose
from hpccomm.results.schema import Row, Timing
from hpccomm.units import few, grouped

Launches = NDArray[np.float64]


class CaseKey(NamedTuple):
    """The fields that must be equal on both sides for a comparison."""

    collective: str
    backend: str
    algorithm: str
    dtype: str
    op: str
    root: int
    bytes: int
    in_place: bool
    variant: str = ""
    ranks: str = ""

    def __str__(self) -> str:
        words = [self.collective, self.backend, self.algorithm, self.dtype, self.op]
        words += [f"root {self.root}" if self.root >= 0 else "", f"{self.bytes} B"]
        words += ["in place" if self.in_place else "out of place"]
        words += [f"{self.ranks} ranks" if self.ranks else ""]
        words += [f"[{self.variant}]" if self.variant else ""]
        return " ".join(filter(None, words))


def case_of(row: Row, variant: str = "", ranks: str = "") -> CaseKey:
    """Return the case of a row; ranks only where their number may differ."""
    of_row = (getattr(row, name) for name in CaseKey._fields if name not in ("variant", "ranks"))
    return CaseKey._make((*of_row, variant, ranks))


class LaunchRow(NamedTuple):
    """A row of a launch, with its timing."""

    row: Row
    timing: Timing

    def value(self, measure: str, metric: str) -> float:
        """Return what is compared, in microseconds: see `CaseValues`. `measure` is not ``auto``."""
        time = float(self.row.time if measure == TIME else getattr(self.timing, measure))
        return time / self.bus_factor if metric == BUSBW else time

    @property
    def bus_factor(self) -> float:
        """Bus bandwidth times time over bytes; 0 without bus bandwidth, as on one rank."""
        row = self.row
        return 1e3 * row.busbw * row.time / row.bytes if row.bytes else 0.0


CaseRows = dict[CaseKey, list[list[LaunchRow]]]
"""The rows of each case, launch by launch."""


class Side(NamedTuple):
    """One side of a comparison.

    Attributes
    ----------
    runs : tuple of Run
        One for each launch.
    left_out : tuple of str
        Why others are not among them.
    variant : str
        Only rows of this variant are compared; empty for all.
    """

    runs: tuple[Run, ...]
    left_out: tuple[str, ...]
    variant: str = ""

    def cases(self, across: Mapping[str, str], *, variants: bool = False) -> CaseRows:
        """Return the rows of each case, launch by launch.

        Parameters
        ----------
        across : mapping of str to str
            Fields of `CaseKey`, and the one value of each that counts; empty for all.
        variants : bool
            Whether the other side is another variant.
        """
        cases: CaseRows = {}
        for run in self.runs:
            ranks = str(len(run.info.ranks)) if "ranks" in across else ""
            own = grouped(
                (case_of(each.row, "" if variants else run.variant(index), ranks), each)
                for index, each in enumerate(map(LaunchRow, run.rows, run.timings))
                if self.variant in ("", run.variant(index))
            )
            for case, rows in own.items():
                if all(each in ("", getattr(case, name)) for name, each in across.items()):
                    cases.setdefault(case, []).append(rows)
        return cases


def side(
    paths: Sequence[Path],
    series: str | None = None,
    chosen: Sequence[str] | None = None,
    variant: str = "",
) -> Side:
    """Read the launches of one side.

    In a folder, foreign and unreadable files are left out, and so are damaged runs.

    Parameters
    ----------
    paths : sequence of Path
        Results files, and folders of them.
    series : str, optional
        Only launches of the series of this name.
    chosen : sequence of str, optional
        Only these runs of each file, by name or number.
    variant : str
        Only what was measured of this variant, by its name.

    Raises
    ------
    ResultsError
        If a file that was named cannot be read or is damaged, or no launch is left.
    """
    launches: dict[Hashable, Run] = {}  # a run that is named twice, and a copy, is one launch
    left_out: list[str] = []
    variants: dict[str, None] = {}
    files = list(each_examined(paths))
    for path, named, examined in files:
        if isinstance(examined, ResultsError):
            left_out.append(str(examined))
            continue
        runs, _, damage = examined
        if damage and named:
            raise reader.in_part(path, damage)
        left_out += [f"{path} {what}" for what in damage]
        for run in runs if chosen is None else [choose(runs, each) for each in chosen]:
            if series is not None and run.info.series.get("name") != series:
                continue
            if run.damage or (not run.rows and run.status == "completed"):
                continue  # the latter has pairs of ranks
            if variant and variant not in (its := run.by_variant()):
                variants |= dict.fromkeys(its)
                continue
            if run.status != "completed":
                left_out.append(f"{path} {run.name}: {run.status}")
                continue
            one = launches.setdefault(identity(run.info, run.rows), run)
            if (one.path.resolve(), one.name) != (path.resolve(), run.name):
                left_out.append(
                    f"{path} {run.name}: the same measurement as {one.name} of {one.path}"
                )
    names = ", ".join(map(str, paths))
    if not files:
        raise ResultsError(f"{names} holds no file *.h5; name a results file or a folder of them")
    if not launches:
        asked = f" of series {series!r}" if series is not None else ""
        if variant:
            known = ", ".join(map(repr, filter(None, variants))) or "none"
            asked += f" of variant {variant!r} (its variants: {known})"
        ended = f" (left out: {few(dict.fromkeys(left_out), 2)})" if left_out else ""
        raise ResultsError(
            f"{names} holds no completed run{asked}{ended}; name files that hpccomm perf --output has written"
        )
    quiet = [run for run in launches.values() if not run.others.busy]
    if quiet:
        left_out += [f"{run.title}: busy" for run in launches.values() if run.others.busy]
    return Side(tuple(quiet or launches.values()), tuple(dict.fromkeys(left_out)), variant)


def on_both_sides(base: Side, new: Side) -> str:
    """Return a run that both sides have, unless as two variants; empty without one."""
    if base.variant != new.variant:
        return ""
    of_base = {identity(run.info, run.rows) for run in base.runs}
    both = (run for run in new.runs if identity(run.info, run.rows) in of_base)
    return next((f"{run.name} of {run.path}" for run in both), "")


AUTO, ISOLATED, MEDIAN, TIME = "auto", "isolated", "median", "time"

MEASURES = (AUTO, ISOLATED, MEDIAN, TIME)
"""Values of ``--measure``: ``auto``, then the soundest first."""

BUSBW = "busbw"

METRICS = {TIME: "time", BUSBW: "bus bandwidth"}
"""Values of ``--metric``, and their meanings."""

ACROSS = ("algorithm", "backend", "dtype", "collective", "ranks")
"""The fields of `CaseKey` that may differ between the sides on purpose."""

_OF_VARIANT = {"backend", "algorithm"}

Across = Mapping[str, tuple[str, str]]
"""The purposeful difference, of `ACROSS`: its value on each side; empty means all values."""

NOTHING: Across = MappingProxyType({})


def metric_of(across: Across) -> str:
    """Return the default metric: time, or bus bandwidth if equal bytes are not equal work."""
    return BUSBW if {"collective", "ranks"} & {*across} else TIME


class CaseValues(NamedTuple):
    """The values of one case.

    Attributes
    ----------
    measure : str
        Their kind: one of `MEASURES` without ``auto``.
    base, new : ndarray of float64
        Microseconds, one for each launch that has the case. For `BUSBW` they are divided by the factor of the
        bus bandwidth: equal values are equal bandwidths.
    wrong : int
        Wrong elements in the new launches.
    across : mapping of str to tuple of str
        The differing fields, by name in `ACROSS`: the value of the base and the new one.
    """

    measure: str
    base: np.ndarray
    new: np.ndarray
    wrong: int
    across: Across = NOTHING


class MatchedCases(NamedTuple):
    """The cases of two sides.

    Attributes
    ----------
    values : dict of CaseKey to CaseValues
        The values of each case that both sides have.
    only_base, only_new : tuple of CaseKey
        The cases of one side alone.
    passes : bool
        Whether values are of passes within one launch, instead of launches.
    without : tuple of CaseKey
        The common cases in which a launch lacks a time, or bus bandwidth, above 0.
    """

    values: dict[CaseKey, CaseValues]
    only_base: tuple[CaseKey, ...]
    only_new: tuple[CaseKey, ...]
    passes: bool
    without: tuple[CaseKey, ...] = ()


def matched(
    base: Side, new: Side, measure: str = AUTO, across: Across = NOTHING, metric: str = TIME
) -> MatchedCases:
    """Match the cases of two sides, and give each a value for each launch.

    The value of a launch is the median of its isolated repetitions; without these, the median of
    the repetitions back to back; where it has no samples, the printed time. All launches of a case
    take the same. If a launch has several rows of a case, its value is their median.

    Two variants of one launch, which measured them in turns, have a value for each pass instead.

    Parameters
    ----------
    base, new : Side
        The sides.
    measure : str
        One of `MEASURES`.
    across : Across, optional
        The fields left out of the match. If one side has several values, each is compared with the
        other side's one.
    metric : str
        One of `METRICS`.

    Raises
    ------
    UsageError
        If a launch lacks the measure, or a side has no value of the fields left out, or both have
        several.
    """
    variants = bool(base.variant and new.variant and base.variant != new.variant)
    # Runs do not compare by value: a NaN of a timing differs from itself since Python 3.13.
    passes = variants and len({(run.path, run.name) for run in (*base.runs, *new.runs)}) == 1
    sides = []
    for at, side in enumerate((base, new)):
        asked = {name: values[at] for name, values in across.items()}
        if not (cases := side.cases(asked, variants=variants)):
            raise UsageError(
                f"the {('base', 'new')[at]} side has no case of {', '.join(filter(None, asked.values()))}; it has "
                f"{few(side.cases({}), 2)}"
            )
        if passes:
            cases = {case: [[row] for row in rows] for case, (rows,) in cases.items()}
        sides.append(cases)
    free = {*across} | (_OF_VARIANT if variants else set())
    return _matched(sides, free, measure, metric, passes=passes)


def _matched(
    sides: Sequence[CaseRows], free: Collection[str], measure: str, metric: str, *, passes: bool
) -> MatchedCases:
    values: dict[CaseKey, CaseValues] = {}
    without = []
    groups = _groups(sides, free)
    for bases, news in groups:
        if min(len(bases), len(news)) > 1:
            raise UsageError(
                f"both sides have several cases to compare: {few(bases, 2)}, and {few(news, 2)}; name one value of each "
                "side, such as --across algorithm=ring:tree"
            )
        for pair in product(bases, news):
            case, differing = _of_both(*pair)
            rows = [side[each] for side, each in zip(sides, pair, strict=True)]
            if (of_case := _values(case, rows, measure, metric)) is None:
                without.append(case)
            else:
                values[case] = of_case._replace(across=differing)
    alone = [[case for pair in groups if not pair[1 - at] for case in pair[at]] for at in (0, 1)]
    return MatchedCases(values, tuple(alone[0]), tuple(alone[1]), passes, tuple(without))


def _groups(
    sides: Sequence[Iterable[CaseKey]], free: Collection[str]
) -> Collection[tuple[list[CaseKey], list[CaseKey]]]:
    """Return the cases of both sides that are equal except in some fields."""
    free = {*free}
    if "collective" in free:  # some reduce, or have a root, and others do not
        values = {value for side in sides for case in side for value in (case.op, case.root)}
        free |= {name for name, value in (("op", "none"), ("root", -1)) if value in values}
    groups: dict[Hashable, tuple[list[CaseKey], list[CaseKey]]] = {}
    for at, cases in enumerate(sides):
        for case in cases:
            key = tuple(value for name, value in case._asdict().items() if name not in free)
            groups.setdefault(key, ([], []))[at].append(case)
    return groups.values()


def _of_both(base: CaseKey, new: CaseKey) -> tuple[CaseKey, Across]:
    """Return a case with differences written as ``ring -> tree``, and the differences."""
    both = {name: (getattr(base, name), getattr(new, name)) for name in (*ACROSS, "op")}
    words: dict[str, Any] = {
        name: " -> ".join(dict.fromkeys(values)) for name, values in both.items()
    }
    case = base._replace(root=max(base.root, new.root), **words)
    return case, {name: both[name] for name in ACROSS if len({*both[name]}) > 1}


def matched_passes(base: Sequence[LaunchRow], new: Sequence[LaunchRow]) -> MatchedCases:
    """Match the cases of two variants that one launch measured in turns, with a value for each pass.

    Parameters
    ----------
    base, new : sequence of LaunchRow
        The measurements of each.
    """
    sides = [grouped((case_of(each.row), [each]) for each in rows) for rows in (base, new)]
    return _matched(sides, _OF_VARIANT, AUTO, TIME, passes=True)


def _values(
    case: CaseKey, sides: Sequence[list[list[LaunchRow]]], measure: str, metric: str
) -> CaseValues | None:
    """Return the values of a case; None if no measure gives each launch one above 0."""
    wrong = sum(max(0, each.row.wrong) for rows in sides[1] for each in rows)
    every = (each for side in sides for rows in side for each in rows)
    if metric == BUSBW and not all(each.bus_factor for each in every):
        return None
    for name in MEASURES[1:] if measure == AUTO else (measure,):
        one, other = (
            np.array([np.median([each.value(name, metric) for each in rows]) for rows in side])
            for side in sides
        )
        if np.isfinite(one).all() and np.isfinite(other).all() and min(one.min(), other.min()) > 0:
            return CaseValues(name, one, other, wrong)
    if measure == AUTO:
        return None
    others = ", ".join(each for each in MEASURES if each != measure)
    raise UsageError(f"--measure {measure}: a launch has none of {case}; take another of {others}")
