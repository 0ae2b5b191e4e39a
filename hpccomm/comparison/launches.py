"""From files to launches: the runs of each side, and their rows by case.

`hpccomm.cli.compare` and `report` begin with it; `matching` and `verdict` take its sides.
"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpccomm.errors import ResultsError
from hpccomm.results import reader
from hpccomm.results.archive import each_file
from hpccomm.results.fingerprint import identity
from hpccomm.results.run import Run, choose
from hpccomm.results.schema import Row, Timing
from hpccomm.units import few


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
            own: dict[CaseKey, list[LaunchRow]] = {}
            ranks = str(len(run.info.ranks)) if "ranks" in across else ""
            for index, (row, timing) in enumerate(zip(run.rows, run.timings, strict=True)):
                variant = run.variant(index)
                case = case_of(row, "" if variants else variant, ranks)
                wanted = all(each in ("", getattr(case, name)) for name, each in across.items())
                if not wanted or self.variant not in ("", variant):
                    continue
                own.setdefault(case, []).append(LaunchRow(row, timing))
            for case, rows in own.items():
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
    launches: dict[tuple[Path, str], Run] = {}  # a run that is named twice is one launch
    left_out: dict[str, None] = {}
    measured: dict[Hashable, Run] = {}  # so is a copy
    variants: dict[str, None] = {}
    files = list(each_file(paths))
    for path, named in files:
        try:
            runs, _, damage = reader.examine(path)
            if damage and named:
                raise reader.in_part(path, damage)
        except ResultsError as error:
            if named:
                raise
            left_out[str(error)] = None
            continue
        left_out |= {f"{path} {what}": None for what in damage}
        if chosen is not None:
            runs = [choose(runs, each) for each in chosen]
        for run in runs:
            if series is not None and run.info.series.get("name") != series:
                continue
            if run.damage or (not run.rows and run.status == "completed"):
                continue  # the latter has pairs of ranks
            if variant and variant not in (its := run.by_variant()):
                variants |= dict.fromkeys(its)
                continue
            if run.status == "completed":
                one = measured.setdefault(identity(run.info, run.rows), run)
                if one is run or (one.path.resolve(), one.name) == (path.resolve(), run.name):
                    launches[path.resolve(), run.name] = run
                else:
                    left_out[
                        f"{path} {run.name}: the same measurement as {one.name} of {one.path}"
                    ] = None
            else:
                left_out[f"{path} {run.name}: {run.status}"] = None
    names = ", ".join(map(str, paths))
    if not files:
        raise ResultsError(f"{names} holds no file *.h5; name a results file or a folder of them")
    if not launches:
        asked = f" of series {series!r}" if series is not None else ""
        if variant:
            known = ", ".join(map(repr, filter(None, variants))) or "none"
            asked += f" of variant {variant!r} (its variants: {known})"
        ended = f" (left out: {few(left_out, 2)})" if left_out else ""
        raise ResultsError(
            f"{names} holds no completed run{asked}{ended}; name files that hpccomm perf --output has written"
        )
    busy = {key: f"{run.title}: busy" for key, run in launches.items() if run.others.busy}
    if len(busy) < len(launches):
        launches = {key: run for key, run in launches.items() if key not in busy}
        left_out |= dict.fromkeys(busy.values())
    return Side(tuple(launches.values()), tuple(left_out), variant)


def on_both_sides(base: Side, new: Side) -> str:
    """Return a run that both sides have, unless as two variants; empty without one."""
    if base.variant != new.variant:
        return ""
    of_base = {identity(run.info, run.rows) for run in base.runs}
    both = (run for run in new.runs if identity(run.info, run.rows) in of_base)
    return next((f"{run.name} of {run.path}" for run in both), "")
