"""Writes a run to a results file. A row is in the file when `Writer.append` returns.

So a job that is killed later does not lose the row. All benchmarks use `Writer`, on rank 0. `add_runs` adds runs that have
already ended, such as those of logs.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np

from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import files, layout, lines, timings
from hpccomm.results.lines import Line
from hpccomm.results.schema import ROWS, RUN, Row, RunInfo, Timing, columns
from hpccomm.results.store import Section

_log = logging.getLogger(__name__)

MOST_RESERVED = 256 << 20
"""The most bytes that a table or array of a run takes at first, whatever number of entries is expected.

A run may end long before all expected rows are written. An endless run always does.
"""


class Writer:
    """Adds one run to a results file. Only for rank 0; blocks only for the file system.

    It is a context manager. The end of a ``with`` block ends the run. After an exception, the run has failed.

    Parameters
    ----------
    path : path-like
        The file. If it has runs, it keeps them and gets one more.
    info : RunInfo
        Facts of the run.
    expected_rows : int
        Likely number of rows.
    expected_repetitions : int
        Likely sum of ``samples.shape[0]`` over all rows. The file has room for the expected numbers at first, up to
        `MOST_RESERVED`. If there are more, the file is copied.
    expected_isolated : int
        Likely number of isolated repetitions, over all rows.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        The run's name in the file, such as ``"run0001"``.

    Raises
    ------
    ResultsError
        If the file cannot be written. Examples are: no permission, no such directory, no space for the expected rows, in
        use by another run, not HDF5. An existing file then stays as it was.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        info: RunInfo,
        *,
        expected_rows: int = 64,
        expected_repetitions: int = 64 * 20,
        expected_isolated: int = 0,
    ) -> None:
        self.path = Path(path)
        self._info = info
        self._facts = _facts(info)
        expected = expected_rows, expected_repetitions, expected_isolated
        widths = layout.widths(RUN, len(info.ranks))
        capacity = {
            name: min(count, MOST_RESERVED // widths[name])
            for name, count in zip(("rows", "samples", "isolated"), expected, strict=True)
        }
        self._section = Section(path, RUN, self._facts, capacity, len(info.ranks))
        self._section.begin()
        self.name = self._section.name

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return self._section.used["rows"]

    def append(
        self,
        row: Row,
        samples: np.ndarray | None,
        isolated: np.ndarray | None = None,
        *,
        timing: Timing | None = None,
    ) -> Timing:
        """Add one row. It is in the file when this returns.

        Parameters
        ----------
        row : Row
            The measurement.
        samples : ndarray or None
            Seconds of each repetition on each rank, shape ``(repetitions, ranks)``.
        isolated : ndarray, optional
            Start and end of each isolated repetition on each rank, in seconds on the ranks' common clock, shape
            ``(repetitions, ranks, 2)``.
        timing : Timing, optional
            The statistics of the row, see `hpccomm.results.timings.timing`. By default, they are computed from the
            samples.

        Returns
        -------
        Timing
            The statistics that are stored with the row.

        Raises
        ------
        ResultsError
            If the row cannot be written. The rows before it stay.
        UsageError
            If the samples do not have one column for each rank, or a name is too long.
        """
        self._section.check_open()
        timing, line = _line(self._info, row, samples, isolated, timing)
        wanted = lines.entries(ROWS, [line])
        if not self._section.fits(wanted):
            self._section.enlarge(wanted)
        self._section.append(ROWS, [line])
        return timing

    def add_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add an entry to the facts of the run. It is in the file when this returns.

        Parameters
        ----------
        name : str
            The entry's name.
        entry : mapping
            The entry, of JSON types.

        Raises
        ------
        ResultsError
            If the entry cannot be written. The rows stay.
        """
        self._section.check_open()
        self._facts["entries"][name] = entry
        self._section.rewrite(record=self._facts)

    def end(self, status: str, ended: datetime | None = None) -> None:
        """Write how the run ended, and give back unused capacity.

        Parameters
        ----------
        status : str
            ``"completed"``, or ``"failed: "`` and the reason.
        ended : datetime, optional
            The time of the end. Default is now.

        Raises
        ------
        ResultsError
            If the end cannot be written. The rows stay.
        UsageError
            If the run has already ended, or the status has another form.
        """
        self._section.check_open()
        if status != "completed" and not status.startswith("failed: "):
            raise UsageError(f"status {status!r} is not 'completed' or 'failed: ...'")
        self.note_end(status, ended)
        self._section.finish()

    def note_end(self, status: str, ended: datetime | None = None) -> None:
        """Write how the run ended, and leave the file open.

        Any thread may call it, even while another thread adds a row, since the row has other bytes of the file.

        Parameters
        ----------
        status, ended
            As for `end`.

        Raises
        ------
        ResultsError, UsageError
            As `end` does.
        """
        self._section.note_end(status, ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, where: object) -> None:
        if not self._section.is_open:
            return
        if kind is None:
            self.end("completed")
            return
        why = "interrupted" if kind is KeyboardInterrupt else f"{kind.__name__}: {error}"
        try:
            self.end(f"failed: {why}")
        except ResultsError as second:
            # The exception that leaves the block matters more than this one.
            _log.warning("the end of run %s is not recorded: %s", self.name, second)


EndedRun = tuple[RunInfo, Sequence[Row], Sequence[np.ndarray | None], str, datetime]
"""A run that has ended: its facts, rows, samples of each row, status, and time of the end."""


def add_runs(path: str | os.PathLike[str], runs: Sequence[EndedRun]) -> list[str]:
    """Add runs that have ended by one replacement of the file. Return their names in it.

    For one process. Blocks only for the file system. All runs are in the file when this returns. After an error, or if
    the process is killed before, the file has none of them.

    Raises
    ------
    ResultsError, SchemaMismatch
        As `Writer` does.
    UsageError
        If samples do not have one column for each rank, or a name is too long.
    """
    sections, added = [], []
    for info, rows, samples, _, _ in runs:
        added.append([_line(info, *each)[1] for each in zip(rows, samples, strict=True)])
        capacity = lines.entries(ROWS, added[-1])
        sections.append(Section(path, RUN, _facts(info), capacity, len(info.ranks)))

    def fill(file: FileIO) -> None:
        for section, each, (*_, status, ended) in zip(sections, added, runs, strict=True):
            section.write_to(file)
            section.append(ROWS, each)
            section.note_end(status, ended)

    if sections:
        sections[0].begin(sections[1:], fill)
        sections[0].close()
    return [each.name for each in sections]


def _facts(info: RunInfo) -> dict[str, Any]:
    return {**files.as_json(info), "entries": {}}


def _line(
    info: RunInfo,
    row: Row,
    samples: np.ndarray | None,
    isolated: np.ndarray | None = None,
    timing: Timing | None = None,
) -> tuple[Timing, Line]:
    """Return the statistics of a row, and its line."""
    times = _checked("samples", samples, len(info.ranks))
    stamps = _checked("isolated", isolated, len(info.ranks), 2)
    timing = timing or timings.timing(times, info.config.per_iter_skip, stamps)
    values = [getattr(row, each.name) for each in columns(Row)]
    values += [getattr(timing, each.name) for each in columns(Timing)]
    return timing, (values, (times, stamps))


def _checked(what: str, numbers: np.ndarray | None, *shape: int) -> np.ndarray:
    if numbers is None:
        return np.empty((0, *shape))
    if numbers.shape[1:] != shape:
        raise UsageError(
            f"{what} of shape {numbers.shape}; a run of {shape[0]} ranks wants "
            f"(repetitions, {', '.join(map(str, shape))})"
        )
    return np.ascontiguousarray(numbers, "<f8")
