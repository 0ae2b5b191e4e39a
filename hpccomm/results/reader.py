"""Reading a results file: its runs, their facts, rows and samples."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import h5py
import numpy as np

from hpccomm.errors import ResultsError
from hpccomm.results import layout, storage
from hpccomm.results.schema import Row, RunInfo

INTERRUPTED = "interrupted"
"""Status of a run that has no end: it was killed, or is still running."""


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
        Who, where and with what.
    rows : tuple of Row
        The measurements in the order in which they were made.
    status : str
        ``"completed"``, ``"failed: "`` and why, or ``"interrupted"`` for a run without an end.
    ended : datetime or None
        When it ended, in the time zone in which it started.
    """

    path: Path
    name: str
    info: RunInfo
    rows: tuple[Row, ...]
    status: str
    ended: datetime | None

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
            If the file cannot be read any more.
        """
        with _intact(self.path) as file:
            run = storage.runs(file)[self.name]
            row = layout.dataset(run, "rows")[range(len(self.rows))[index]]
            begin, length = int(row["first_sample"]), int(row["repetitions"])
            samples: np.ndarray = layout.dataset(run, "samples")[begin : begin + length]
            return samples


def read(path: str | os.PathLike[str]) -> list[Run]:
    """Read the runs of a results file, oldest first. Samples are read only by `Run.samples`.

    A file whose run was killed, or is being written, can be read as well.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    list of Run
        Interrupted runs too.

    Raises
    ------
    ResultsError
        If the file cannot be read, is not HDF5 or is damaged.
    SchemaMismatch
        If it is another program's HDF5 file or of another schema version.
    """
    with _intact(Path(path)) as file:
        return [_read_run(Path(path), name, run) for name, run in storage.runs(file).items()]


def choose(runs: list[Run], wanted: str | None) -> Run:
    """Choose a run by its name or number.

    Parameters
    ----------
    runs : list of Run
        As `read` gives them.
    wanted : str or None
        A name; a number from 1, or from -1 backwards; None is the last.

    Returns
    -------
    Run
        One of `runs`.

    Raises
    ------
    ResultsError
        If there is no such run; the message lists those that there are.
    """
    if not runs:
        raise ResultsError("the file holds no run")
    if wanted is None:
        return runs[-1]
    for run in runs:
        if run.name == wanted:
            return run
    try:
        number = int(wanted)
    except ValueError:
        number = 0
    if 1 <= abs(number) <= len(runs):
        return runs[number - 1 if number > 0 else number]
    raise ResultsError(
        f"{runs[0].path} has no run {wanted!r}; it has {', '.join(run.name for run in runs)}, "
        f"or by number 1 to {len(runs)}"
    )


@contextmanager
def _intact(path: Path) -> Iterator[h5py.File]:
    """Open a results file; what the schema promises and the file lacks is a `ResultsError`."""
    with storage.opened(path) as file, storage.reported(path, "read"), storage.intact(path):
        yield file


def _read_run(path: Path, name: str, run: h5py.Group) -> Run:
    info = layout.read_info(run)
    state = layout.dataset(run, "state")[()]
    ended = None
    status = INTERRUPTED
    if state["ended"]:
        ended = datetime.fromtimestamp(float(state["ended"]), UTC).astimezone(info.started.tzinfo)
        status = state["status"].decode()
    rows = layout.dataset(run, "rows")[: int(state["rows"])]
    return Run(
        path=path,
        name=name,
        info=info,
        rows=tuple(layout.decode_row(row) for row in rows),
        status=status,
        ended=ended,
    )
