"""A stored run: its facts, its rows, and the samples, which are read on first use.

`reader` makes it for all programs that show, compare or fit runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results.facts import ENTRY, Others
from hpccomm.results.files import DIFFERS, as_utf8
from hpccomm.results.lines import DamagedPart, StoredLines, spans
from hpccomm.results.recording import Recording
from hpccomm.results.schema import Row, RunInfo, Timing
from hpccomm.units import grouped


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a results file.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The run's name in it.
    info : RunInfo
        User, host, settings and versions.
    rows : tuple of Row
        The measurements in their order.
    status : str
        ``"completed"``, ``"failed: "`` and why, or for a run without an end ``"running"``,
        ``"interrupted"``, or ``"interrupted or running"`` where that cannot be seen.
    ended : datetime or None
        When it ended, in the time zone in which it started.
    numbers : tuple of int
        The number of each row in the file, from 0: 0, 1, 2, ... unless some are damaged.
    damage : tuple of str
        The damaged parts of its rows, timings and end, which are left out here.
    position : int
        The run's place in its file, from 1.
    timings : tuple of Timing
        How each row was timed.
    entries : mapping of str to object
        Further facts, as JSON: what ``hpccomm tune`` and ``hpccomm perf pairs`` found.
    """

    path: Path
    name: str
    info: RunInfo
    rows: tuple[Row, ...]
    status: str
    ended: datetime | None
    numbers: tuple[int, ...]
    damage: tuple[str, ...]
    position: int = 1
    timings: tuple[Timing, ...] = ()
    entries: Mapping[str, Any] = field(default_factory=dict)
    _lines: StoredLines | None = field(repr=False, compare=False, default=None)

    @property
    def title(self) -> str:
        """Names of its file and itself, as text."""
        return as_utf8(f"{self.path.name} {self.name}")

    @property
    def host(self) -> str:
        """Where it is written; empty of a simulation, whose hosts do not exist."""
        return "" if self.info.simulation else self.info.ranks[0].host

    @property
    def others(self) -> Others:
        """What other processes took of the cores meanwhile."""
        stored = self.entries.get(ENTRY, {})
        return Others(**{name: stored[name] for name in Others._fields if name in stored})

    def variant(self, index: int) -> str:
        """Return the variant that row `index` is of; empty if it is of none."""
        return self.timings[index].variant or self.info.series.get("variant", "")

    def part(self, chosen: Sequence[int]) -> "Run":
        """Return the run with some of its rows alone, by their indices."""
        return replace(
            self,
            rows=tuple(self.rows[index] for index in chosen),
            timings=tuple(self.timings[index] for index in chosen),
            numbers=tuple(self.numbers[index] for index in chosen),
        )

    def by_variant(self) -> dict[str, "Run"]:
        """Return the part of each variant; without variants, the name is empty."""
        series = self.info.series
        rows = grouped((self.variant(index), index) for index in range(len(self.rows)))
        first = [series[name] for name in ("base", "new") if name in series]
        names = dict.fromkeys([*first, *rows])
        return {name: self.part(rows[name]) for name in names if name in rows} or {"": self}

    def samples(self, index: int) -> np.ndarray:
        """Read the samples of row `index` from the file.

        Returns
        -------
        ndarray
            Seconds of each repetition on each rank, float64 ``(repetitions, ranks)``; no
            repetitions if none were kept.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        return self.array("samples", index)

    def isolated(self, index: int) -> np.ndarray:
        """Read the isolated repetitions of row `index` from the file.

        Returns
        -------
        ndarray
            When each rank started and ended each repetition: seconds on the clock that the ranks agreed on,
            float64 ``(repetitions, ranks, 2)``; no repetitions if the row was not measured so.

        Raises
        ------
        ResultsError
            If they are damaged, or the file cannot be read any more.
        """
        return self.array("isolated", index)

    def array(self, array: str, index: int) -> np.ndarray:
        """Read ``"samples"`` or ``"isolated"`` of row `index`, as these methods do."""
        assert self._lines is not None
        try:
            return self._lines.part(self.numbers[index], array)
        except ResultsError as error:
            raise type(error)(f"{self.path}: {self.name}: {error}") from error


class Steps(Protocol):
    """Shows the progress of a long read."""

    def advance(self, count: int = 1) -> None:
        """Say that some more is done."""
        ...

    def remain(self, count: int) -> None:
        """Say how much there is left to do."""
        ...


class WholeSamples:
    """The samples of a run's rows that are whole.

    Parameters
    ----------
    run : Run
        The run.
    progress : Steps, optional
        Advances by one for each row.
    """

    def __init__(self, run: Run, progress: Steps | None = None) -> None:
        self._run, self._progress = run, progress
        self._lost: dict[str, set[int]] = {"samples": set(), "isolated": set()}

    def __call__(self, index: int) -> np.ndarray | None:
        """Return the samples of row `index`; None if they are damaged.

        Raises
        ------
        ResultsError
            If the file cannot be read.
        """
        if self._progress is not None:
            self._progress.advance()
        return self.whole("samples", index)

    def whole(self, array: str, index: int) -> np.ndarray | None:
        """Return ``"samples"`` or ``"isolated"`` of row `index`; None if they are damaged.

        Raises
        ------
        ResultsError
            If the file cannot be read.
        """
        try:
            return self._run.array(array, index)
        except DamagedPart:
            self._lost[array].add(self._run.numbers[index])
            return None

    def damage(self) -> list[str]:
        """Return the damaged parts, with the name of the run."""
        return [
            f"{self._run.name}: {array}{' repetitions' * (array == 'isolated')} of {rows}: {DIFFERS}"
            for array, lost in self._lost.items()
            for rows in spans("row", sorted(lost))
        ]


_Stored = TypeVar("_Stored", bound=Run | Recording)


def choose(among: Sequence[_Stored], wanted: str | None) -> _Stored:
    """Choose a run or recording of a file.

    Parameters
    ----------
    among : sequence of Run or Recording
        As `hpccomm.results.read` gives them; runs first.
    wanted : str or None
        A name; the number of a run from 1, or from -1 backwards; None is the last run, or the last
        recording of a file without runs.

    Returns
    -------
    Run or Recording
        One of them.

    Raises
    ------
    ResultsError
        If the name is unknown; the message lists the known ones.
    """
    runs = [each for each in among if isinstance(each, Run)]
    if not among:
        raise ResultsError("the file holds no run; give one that hpccomm perf --output has written")
    if wanted is None:
        return among[len(runs) - 1]
    for each in among:
        # A run that is damaged, and left out, keeps its position.
        positions = (
            (each.position, each.position - runs[-1].position - 1) if isinstance(each, Run) else ()
        )
        if wanted == each.name or wanted in map(str, positions):
            return each
    what = "run or recording" if len(among) > len(runs) else "run"
    numbers = f", or by number 1 to {runs[-1].position}" if runs else ""
    names = ", ".join(each.name for each in among)
    raise ResultsError(f"{among[0].path} has no {what} {wanted!r}; it has {names}{numbers}")
