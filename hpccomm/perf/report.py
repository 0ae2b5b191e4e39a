"""What a run writes: the table, CSV, nccl-tests' JSON, the results file. On rank 0 alone."""

import itertools
import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import ResultsError
from hpccomm.perf.flags import Options
from hpccomm.results import csv_text, nccl_json, table
from hpccomm.results.schema import Row, RunInfo

_log = logging.getLogger(__name__)

Samples = NDArray[np.float64]


class Report:
    """Writes a run down, row by row. A context manager: leaving it ends the run.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    options : Options
        Says which files are written. All are opened here, before anything is measured.
    expected_rows : int
        Rows that the run will have, as far as is known.
    out, err : text stream
        For the table, and for progress and wrong results.

    Raises
    ------
    ResultsError
        If a file cannot be written, now or later.
    """

    def __init__(
        self, info: RunInfo, options: Options, expected_rows: int, out: TextIO, err: TextIO
    ) -> None:
        self._info = info
        self._columns = table.Columns.of(info)
        self._out = out
        self._progress = Progress(err)
        self._err = err
        self._rows: list[Row] = []
        self._kept: list[Samples | None] = []
        self._block: list[Row] = []
        self._json: TextIO | None = None
        self._csv: TextIO | None = None
        self._writer: Any = None
        with ExitStack() as opened:
            if options.json is not None:
                self._json = opened.enter_context(_open_new(options.json))
            if options.csv is not None:
                self._csv = opened.enter_context(_open_csv(options.csv))
            if options.output is not None:
                from hpccomm.results.writer import Writer  # h5py takes long to import

                self._writer = opened.enter_context(
                    Writer(
                        options.output,
                        info,
                        expected_rows=expected_rows,
                        expected_repetitions=expected_rows * options.config.iterations,
                    )
                )
            # The files are this object's from here on, and closed when it is left.
            self._opened = opened.pop_all()
        if self._json is not None:
            self._print(f"# Writing JSON output to {self._json.name}\n")

    def begin(self, collective: str, backend: str, algorithm: str) -> None:
        """Print what stands before a table, and its heading."""
        self._block = []
        self._print(table.run_header(self._info, collective, backend, algorithm))
        self._print(table.heading(self._columns))

    def add(self, halves: Sequence[tuple[Row, Samples]], wrong: Sequence[str]) -> None:
        """Add one line: the row out of place and the row in place, or the first alone.

        Parameters
        ----------
        halves : sequence of (Row, ndarray of float64, shape (repetitions, ranks))
            The rows, with the seconds of their repetitions.
        wrong : sequence of str
            Sentences about wrong results.
        """
        for row, samples in halves:
            if self._writer is not None:
                self._writer.append(row, samples)
            if self._csv is not None:
                _put(self._csv, csv_text.line(self._run_name(), self._info, row))
            self._rows.append(row)
            self._kept.append(samples if self._json and self._columns.per_iteration else None)
            self._block.append(row)
        out_row, out_samples = halves[0]
        in_row, in_samples = halves[1] if len(halves) > 1 else (None, None)
        # On disk first, then shown.
        self._print(table.line(out_row, in_row, self._columns, out_samples, in_samples))
        for sentence in wrong:
            _put(self._err, f"hpccomm: wrong result: {sentence}\n")

    def finish(self, collective: str) -> None:
        """Print what stands behind a table."""
        self._print(table.footer(self._block, collective))

    def show(self, text: str) -> None:
        """Print a line that belongs to no table."""
        self._print(text)

    def progress(self, doing: str) -> None:
        """Say what is measured, on a terminal."""
        self._progress.show(doing)

    @property
    def wrong(self) -> int:
        """Wrong elements so far."""
        return table.summary(self._rows)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.clear()
        try:
            try:
                if self._json is not None:
                    self._write_json(self._json, [] if error is None else [f"{error}"])
            finally:
                # Closes the files, and tells the writer how the run ended.
                self._opened.__exit__(kind, error, traceback)
        except (OSError, ResultsError) as second:
            if error is None:
                raise
            # The exception on its way out matters more than this one.
            _log.info("the end of the run is not written: %s", second)

    def _write_json(self, file: TextIO, errors: list[str]) -> None:
        document = nccl_json.document(
            self._info,
            self._rows,
            self._kept.__getitem__,
            ended=datetime.now().astimezone(),
            errors=errors,
        )
        _put(file, json.dumps(document, indent=1) + "\n")

    def _run_name(self) -> str:
        return "" if self._writer is None else str(self._writer.name)

    def _print(self, text: str) -> None:
        self._progress.clear()
        _put(self._out, text)


class Progress:
    """One line on a terminal that says what is going on; nothing where there is no terminal.

    Standard error is asked, since Open MPI gives every rank's standard output a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._stream is not None:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Remove the line, so that others can be printed."""
        if self._stream is not None and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def _put(file: TextIO, text: str) -> None:
    """Write, and see it through to the system."""
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        raise _refused(getattr(file, "name", "the output"), error) from None


def _open_new(path: Path) -> TextIO:
    """Open a file that is not there yet; like nccl-tests, add .0, .1, ... to a name that is taken."""
    tried = path
    for number in itertools.count():
        try:
            return tried.open("x")
        except FileExistsError:
            tried = Path(f"{path}.{number}")
        except OSError as error:
            raise _refused(tried, error) from None
    raise AssertionError  # the numbers do not end


def _open_csv(path: Path) -> TextIO:
    """Open a file to add rows to; a new one gets the heading."""
    heading = csv_text.heading()
    try:
        file = path.open("a+", newline="")
    except OSError as error:
        raise _refused(path, error) from None
    file.seek(0)
    first = file.readline(len(heading))
    if not first:
        _put(file, heading)
    elif first != heading:
        file.close()
        raise ResultsError(f"{path} holds something else than rows of hpccomm; name another file")
    return file


def _refused(path: Path | str, error: OSError) -> ResultsError:
    return ResultsError(
        f"{path} cannot be written: {error.strerror or error}; name a file that can"
    )
