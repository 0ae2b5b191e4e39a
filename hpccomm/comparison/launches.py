"""From runs to what is compared: a value for each launch and each case."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import reader, repetitions
from hpccomm.results.fingerprint import identity
from hpccomm.results.run import Run, choose
from hpccomm.results.schema import Row, Timing

AUTO, ALONE, MEDIAN, TIME = "auto", "alone", "median", "time"

MEASURES = (AUTO, ALONE, MEDIAN, TIME)
"""Values of ``--measure``, beside ``auto`` from the soundest on."""


class Case(NamedTuple):
    """What must be equal in both sides for times to be compared."""

    collective: str
    backend: str
    algorithm: str
    dtype: str
    op: str
    root: int
    bytes: int
    in_place: bool
    variant: str = ""

    def __str__(self) -> str:
        words = [self.collective, self.backend, self.algorithm, self.dtype, self.op]
        words += [f"root {self.root}" if self.root >= 0 else "", f"{self.bytes} B"]
        words += ["in place" if self.in_place else "out of place"]
        words += [f"[{self.variant}]" if self.variant else ""]
        return " ".join(filter(None, words))


def case_of(row: Row, variant: str = "") -> Case:
    """Return the case of a row."""
    return Case(
        *(row.collective, row.backend, row.algorithm, row.dtype, row.op, row.root, row.bytes),
        in_place=row.in_place,
        variant=variant,
    )


def _across_variants(row: Row) -> Case:
    """Return the case of a row that is compared with one of another variant: without what variants set."""
    return case_of(row)._replace(backend="", algorithm="")


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

    def cases(self, *, across: bool) -> dict[Case, list[list["_Found"]]]:
        """Return the rows of each case, launch by launch.

        Parameters
        ----------
        across : bool
            Whether they are compared with those of another variant.
        """
        found: dict[Case, list[list[_Found]]] = {}
        for run in self.runs:
            own: dict[Case, list[_Found]] = {}
            timings = run.timings or (None,) * len(run.rows)
            for index, (row, timing) in enumerate(zip(run.rows, timings, strict=True)):
                variant = run.variant(index)
                if self.variant and variant != self.variant:
                    continue
                case = _across_variants(row) if across else case_of(row, variant)
                own.setdefault(case, []).append(_Found(row, timing, run, index))
            for case, rows in own.items():
                found.setdefault(case, []).append(rows)
        return found


def side(
    paths: Sequence[Path],
    series: str | None = None,
    chosen: Sequence[str] | None = None,
    variant: str = "",
) -> Side:
    """Read the launches of one side.

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
        If a file cannot be read or is damaged, or no launch is left.
    """
    found: dict[tuple[Path, str], Run] = {}  # a run that is named twice is one launch
    left_out: dict[str, None] = {}
    measured: dict[Hashable, Run] = {}  # so is a copy
    there: dict[str, None] = {}
    for path in _files(paths):
        runs = reader.read(path)
        if chosen is not None:
            runs = [choose(runs, each) for each in chosen]
        for run in runs:
            if series is not None and run.info.series.get("name") != series:
                continue
            if not run.rows and run.status == "completed":
                continue  # pairs of ranks
            if variant and variant not in (its := run.by_variant()):
                there |= dict.fromkeys(its)
                continue
            if run.status == "completed":
                one = measured.setdefault(identity(run.info, run.rows), run)
                if one is run or (one.path.resolve(), one.name) == (path.resolve(), run.name):
                    found[path.resolve(), run.name] = run
                else:
                    left_out[
                        f"{path} {run.name}: the same measurement as {one.name} of {one.path}"
                    ] = None
            else:
                left_out[f"{path} {run.name}: {run.status}"] = None
    if not found:
        names = ", ".join(map(str, paths))
        asked = f" of series {series!r}" if series is not None else ""
        if variant:
            known = ", ".join(map(repr, filter(None, there))) or "none"
            asked += f" of variant {variant!r} (its variants: {known})"
        ended = f" ({len(left_out)} did not complete)" if left_out else ""
        raise ResultsError(
            f"{names} holds no completed run{asked}{ended}; name files that hpccomm perf --output has written"
        )
    return Side(tuple(found.values()), tuple(left_out), variant)


def on_both_sides(base: Side, new: Side) -> str:
    """Return a run that both sides have, unless as two variants; empty if there is none."""
    if base.variant != new.variant:
        return ""
    of_base = {identity(run.info, run.rows) for run in base.runs}
    both = (run for run in new.runs if identity(run.info, run.rows) in of_base)
    return next((f"{run.name} of {run.path}" for run in both), "")


def _files(paths: Sequence[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.rglob("*.h5"))
        if not inside:
            raise ResultsError(
                f"{path} holds no file *.h5; name a results file or a folder of them"
            )
        yield from inside


class Values(NamedTuple):
    """The values of one case.

    Attributes
    ----------
    measure : str
        What they are: one of `MEASURES` but ``auto``.
    base, new : ndarray of float64
        Microseconds, one for each launch that has the case.
    wrong : int
        Wrong elements in the new launches.
    """

    measure: str
    base: np.ndarray
    new: np.ndarray
    wrong: int


class _Found(NamedTuple):
    """A row with its timing, and where its samples are."""

    row: Row
    timing: Timing | None
    run: Run | None = None
    number: int = 0


def _median(found: _Found) -> float:
    if found.timing is not None:
        return found.timing.median
    if found.run is None:
        return np.nan
    samples = found.run.samples(found.number)  # of before there were timings
    return repetitions.spread(samples, found.run.info.config.per_iter_skip)[0]


def _alone(found: _Found) -> float:
    return np.nan if found.timing is None else found.timing.alone


_READ: dict[str, Callable[[_Found], float]] = {
    ALONE: _alone,
    MEDIAN: _median,
    TIME: lambda found: found.row.time,
}


class Matched(NamedTuple):
    """The cases of two sides.

    Attributes
    ----------
    values : dict of Case to Values
        Of each case that both have.
    only_base, only_new : tuple of Case
        Those of one side alone.
    passes : bool
        Whether values are those of passes within one launch, instead of launches.
    without : tuple of Case
        Those that both have, of which a launch has no time above 0.
    """

    values: dict[Case, Values]
    only_base: tuple[Case, ...]
    only_new: tuple[Case, ...]
    passes: bool
    without: tuple[Case, ...] = ()


def matched(base: Side, new: Side, measure: str = AUTO) -> Matched:
    """Match the cases of two sides, and give each a value for each launch.

    The value of a launch is the median of its repetitions alone; where a launch has none, the median of those
    back to back; where it has no samples, the printed time. All launches of a case take the same. If a launch
    has several rows of a case, its value is their median.

    Two variants of one launch, which measured them in turns, have a value for each pass instead.

    Parameters
    ----------
    base, new : Side
        The sides.
    measure : str
        One of `MEASURES`.

    Raises
    ------
    UsageError
        If a launch lacks the measure.
    """
    across = bool(base.variant and new.variant and base.variant != new.variant)
    passes = across and len(base.runs) == 1 and base.runs == new.runs
    one, other = (side.cases(across=across) for side in (base, new))
    if passes:
        one, other = (
            {case: [[row] for row in rows] for case, (rows,) in each.items()}
            for each in (one, other)
        )
    return _matched(one, other, measure, passes=passes)


def _matched(
    one: Mapping[Case, list[list["_Found"]]],
    other: Mapping[Case, list[list["_Found"]]],
    measure: str,
    *,
    passes: bool,
) -> Matched:
    both = {case: _values(case, one[case], other[case], measure) for case in one if case in other}
    return Matched(
        {case: each for case, each in both.items() if each is not None},
        tuple(case for case in one if case not in other),
        tuple(case for case in other if case not in one),
        passes,
        tuple(case for case, each in both.items() if each is None),
    )


Timed = tuple[Row, Timing]
"""A row, and how it was timed."""


def matched_passes(base: Sequence[Timed], new: Sequence[Timed]) -> Matched:
    """Match the cases of two variants that one launch measured in turns, with a value for each pass.

    Parameters
    ----------
    base, new : sequence of (Row, Timing)
        What was measured of each.
    """
    found: tuple[dict[Case, list[list[_Found]]], dict[Case, list[list[_Found]]]] = ({}, {})
    for cases, timed in zip(found, (base, new), strict=True):
        for row, timing in timed:
            cases.setdefault(_across_variants(row), []).append([_Found(row, timing)])
    return _matched(*found, AUTO, passes=True)


def _values(
    case: Case, base: list[list[_Found]], new: list[list[_Found]], measure: str
) -> Values | None:
    """Return the values of a case; None if no measure gives each launch a time above 0."""
    wrong = sum(max(0, each.row.wrong) for rows in new for each in rows)
    for name in MEASURES[1:] if measure == AUTO else (measure,):
        read = _READ[name]
        one, other = (
            np.array([np.median([read(each) for each in rows]) for rows in launches])
            for launches in (base, new)
        )
        if np.isfinite(one).all() and np.isfinite(other).all() and min(one.min(), other.min()) > 0:
            return Values(name, one, other, wrong)
    if measure == AUTO:
        return None
    others = ", ".join(each for each in MEASURES if each != measure)
    raise UsageError(f"--measure {measure}: a launch has none of {case}; take another of {others}")
