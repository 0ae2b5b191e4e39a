"""The output of a run, on rank 0: the table, CSV, the JSON of nccl-tests, and the results file.

`sweep` and `hpccomm simulate` pass it each table and line.
"""

import contextlib
import itertools
import json
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.bootstrap.launch import OPEN_MPI, launched
from hpccomm.errors import ResultsError, UsageError
from hpccomm.results import exports, table, timings
from hpccomm.results.expectations import Judge, bound
from hpccomm.results.facts import UNKNOWN, Others
from hpccomm.results.files import check_output
from hpccomm.results.schema import Row, RunInfo, Timing
from hpccomm.runtime import service
from hpccomm.runtime.service import Status, before_end, write_stderr
from hpccomm.tools.output import Progress
from hpccomm.tools.perf.options import Options
from hpccomm.tools.perf.tables import MeasuredRow, TableNames
from hpccomm.units import counted

_log = logging.getLogger(__name__)

Samples = NDArray[np.float64]


class Report:
    """The report of a run, written row by row. A context manager: leaving it ends the run.

    Parameters
    ----------
    info : RunInfo
        Facts of the run.
    options : Options
        The options, which name the files. All are opened here, before anything is measured.
    expected_rows : int
        The expected number of rows.
    out, err : text stream
        Streams for the table, and for wrong results.
    progress : Progress
        The progress. Its line is hidden while others are printed, and removed when the report is left.

    Attributes
    ----------
    wrong : int
        Number of wrong elements so far.
    slow : int
        Number of tables so far whose average bus bandwidth is too low.
    info : RunInfo
        Facts of the run.
    progress : Progress
        Shows the current measurement.
    others : Others
        The use of the machine by other processes so far.

    Raises
    ------
    ResultsError
        If a file cannot be written, now or later.
    """

    def __init__(
        self,
        info: RunInfo,
        options: Options,
        expected_rows: int,
        out: TextIO,
        err: TextIO,
        progress: Progress,
    ) -> None:
        self.info, self.progress = info, progress
        self._out, self._err = out, err
        self.wrong = self.slow = 0
        self.others = UNKNOWN
        self._least = options.least_busbw
        # Rows are kept for the JSON alone: a run may have no end.
        self._rows: list[Row] = []
        self._samples: list[Samples | None] = []
        self._tally = table.TableTally()
        self._judge = None
        if options.expected is not None:
            self._judge = Judge(options.expected, info, options.near)
        self._isolated: list[tuple[Row, Timing]] = []
        self._begun: str | None = None  # the collective whose table has no end yet
        self._json: Path | None = None
        if options.json is not None:  # tested, and written at the end
            self._json = _new_file(options.json)
            self._json.unlink()
        self._csv: TextIO | None = None
        self._writer: Any = None
        self._left = False
        with ExitStack() as opened:
            if options.csv is not None:
                self._csv = opened.enter_context(_open_csv(options.csv))
            # Last, since its run stays in the file if another file is refused.
            if options.output is not None:
                self._writer = opened.enter_context(_writer(options, info, expected_rows))
            # From here on this object owns the files, and leaving it closes them.
            self._opened = opened.pop_all()
        before_end(self._end_at_once, first=True)
        if self._json is not None:
            self.show(f"# Writing JSON output to {self._json}\n")

    def begin(self, tables: Sequence[TableNames]) -> None:
        """Print the header of a table, and its heading. `tables` has one table; for variants, a table of each."""
        self._tally = table.TableTally()
        self._isolated = []
        self.show(table.run_header(self.info, *tables[0]))
        self.show(table.heading(self.info.config))
        self._begun = tables[0][0]

    def add(self, halves: Sequence[MeasuredRow], wrong: Sequence[str]) -> None:
        """Add one line: the row out of place and the row in place, or only the first.

        Parameters
        ----------
        halves : sequence of MeasuredRow
            The rows.
        wrong : sequence of str
            Sentences about wrong results.
        """
        # On disk first, then shown.
        self.keep(halves)
        for half in halves:
            self._tally.add(half.row)
            if self._judge is not None:
                self._judge.add(timings.typical(half.row, half.timing))
        self._isolated += [(half.row, half.timing) for half in halves if half.timing.sync]
        self.show(table.line(self.info, *((half.row, half.samples) for half in halves)))
        self.complain(wrong)

    def keep(self, halves: Sequence[MeasuredRow]) -> None:
        """Write rows to the files, without printing them."""
        for half in halves:
            row, samples = half.row, half.samples
            if self._writer is not None:
                self._writer.append(row, samples, half.isolated, timing=half.timing)
            if self._csv is not None:
                name = "" if self._writer is None else self._writer.name
                variant = half.timing.variant or self.info.series.get("variant", "")
                _put(self._csv, exports.line(name, self.info, row, samples, variant))
            self.wrong += max(0, row.wrong)
            if self._json is not None:
                self._rows.append(row)
                self._samples.append(samples if self.info.config.per_iter_timing else None)
        self.progress.advance(len(halves))

    def complain(self, wrong: Sequence[str]) -> None:
        """Print sentences about wrong results."""
        for sentence in wrong:
            _put(self._err, f"hpccomm: wrong result: {sentence}\n")

    def finish(self, others: Others = UNKNOWN) -> None:
        """Print the footer of a table. `others` is the use of the machine by other processes so far."""
        self.others = others
        assert self._begun is not None
        collective, self._begun = self._begun, None
        least, most = self._least, bound(self.info, collective)
        self.show(table.footer(self._tally, collective, most, least=least, failed=others.failed))
        self.slow += table.too_slow(self._tally, self._least)
        if self._judge is not None:
            self.show(self._judge.finish(others.failed))
        self.show(table.isolated_text(self._isolated))

    def conclude(self) -> Status:
        """Print and store the remarks on all tables; return the status of the checks."""
        self.show(self.others.line)
        self.others.store(self._writer)
        if self._judge is not None:
            self.show(self._judge.nothing())
            self.wrong += not self._judge.judged
            self.slow += self._judge.failed
        if self.slow and not self.wrong and self.others.busy:
            return Status.UNDECIDED
        return Status.RAISED if self.wrong or self.slow else Status.DONE

    def show(self, text: str) -> None:
        """Print text in place of the progress line."""
        with self.progress.hidden():
            _put(self._out, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        self.progress.close()
        if isinstance(error, KeyboardInterrupt):
            self._break_off(interrupted=True)
        self._left = True
        try:
            try:
                if self._json is not None:
                    said = "interrupted" if kind is KeyboardInterrupt else f"{error}"
                    self._write_json(self._json, [] if error is None else [said])
            finally:
                # Closes the files, and hands the writer how the run ended.
                self._opened.__exit__(kind, error, where)
        except (OSError, ResultsError) as second:
            if error is None:
                raise
            # The first exception matters more than this one.
            _log.info("the end of the run is not written: %s", second)

    def _end_at_once(self) -> None:
        """Write everything that would be lost when hpccomm ends the process. Any thread may call it."""
        if self._left:
            return
        interrupted = service.ending() in (Status.TERMINATED, Status.INTERRUPTED)
        if interrupted and self._writer is not None:
            with contextlib.suppress(ResultsError, UsageError):
                self._writer.note_end("failed: interrupted")
        self._break_off(interrupted=interrupted)
        if interrupted and self._json is not None:
            with contextlib.suppress(OSError, ResultsError):
                self._write_json(self._json, ["interrupted"])
        self._left = True

    def _break_off(self, *, interrupted: bool) -> None:
        """Close the table if the run was interrupted, and print where the rows are. Any thread may call it."""
        text = rows = ""
        if interrupted and self._begun is not None:
            most = bound(self.info, self._begun)
            text = table.footer(self._tally, self._begun, most, interrupted=True)
            self._begun = None
        if self._writer is not None:
            path, number = self._writer.path, self._writer.rows
            rows = (
                f"hpccomm: {counted(number, 'row')} {'is' if number == 1 else 'are'} kept in {path} as "
                f"{self._writer.name}: see hpccomm show {shlex.quote(str(path))}"
            )
        # The text that must not wait goes first: a launcher that does not read any more lets its pipes fill.
        self.progress.say_last(f"{text}{rows}\n" if _cut_off() else "")
        if text:
            # Not through the stream's buffer: it is empty, and the main thread may hold its lock.
            try:
                os.write(self._out.fileno(), text.encode(errors="backslashreplace"))
            except ValueError:  # no file
                self._out.write(text)
            except OSError:  # the reader is gone
                pass
        if rows:
            write_stderr(rows)

    def _write_json(self, path: Path, errors: list[str]) -> None:
        document = exports.document(
            self.info,
            self._rows,
            self._samples.__getitem__,
            ended=datetime.now().astimezone(),
            errors=errors,
        )
        written = _write_new(path, json.dumps(document, indent=1) + "\n")
        if written != path:  # another run took the name in the meantime
            self.show(f"# JSON output is in {written}\n")


class InterleavedReport(Report):
    """The report of a run of two variants: it stores their rows, and prints their comparison."""

    _measured: dict[str, list[MeasuredRow]]  # by the names of the variants

    def begin(self, tables: Sequence[TableNames]) -> None:
        """Print the header of a collective's passes."""
        self._measured = {self.info.series[side]: [] for side in ("base", "new")}
        collectives, *others = zip(*tables, strict=True)
        backends, algorithms = (" and ".join(dict.fromkeys(names)) for names in others)
        header = table.run_header(self.info, collectives[0], backends, algorithms)
        self.show(f"{header}#\n# Interleaved, in random order: {' and '.join(self._measured)}\n")

    def add(self, halves: Sequence[MeasuredRow], wrong: Sequence[str]) -> None:
        """Add the rows of a variant."""
        self.keep(halves)
        self.complain(wrong)
        for half in halves:
            self._measured[half.timing.variant].append(half)

    def finish(self, others: Others = UNKNOWN) -> None:
        """Print the comparison of a collective."""
        from hpccomm.results.comparison import matching, verdict  # by which h5py is imported

        self.others, (base, new) = others, self._measured
        base_rows, new_rows = (
            [matching.LaunchRow(each.row, each.timing) for each in rows]
            for rows in self._measured.values()
        )
        matched = matching.matched_passes(base_rows, new_rows)
        comparison = verdict.compare_passes(
            matched, (base, new), verdict.Rules(busy=bool(others.busy))
        )
        self.show(f"#\n{verdict.text(comparison)}\n")


def _writer(options: Options, info: RunInfo, rows: int) -> Any:
    """Return the writer that adds a run to the results file."""
    from hpccomm.results.writer import Writer  # h5py takes long to import

    rates = rows * options.config.iterations
    assert options.output is not None
    return Writer(
        options.output,
        info,
        expected_rows=rows,
        expected_repetitions=rates,
        expected_isolated=rates if options.sync else 0,
    )


def _cut_off() -> bool:
    """Whether the output of this process is not read any more.

    From Ctrl-C on, Open MPI's mpiexec drops it. It sends SIGTERM after a quarter of a second, and SIGKILL
    after another.
    """
    place = launched()
    ended = service.ending() == Status.TERMINATED
    return ended and place is not None and place.launcher == OPEN_MPI


def _put(file: TextIO, text: str) -> None:
    """Write a text, and flush it."""
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        raise _refused(getattr(file, "name", "the output"), error) from None


def _write_new(path: Path, text: str) -> Path:
    """Write a new file, whole or not at all; returns its name."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        return part.replace(_new_file(path))
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _refused(path, error) from None


def _new_file(path: Path) -> Path:
    """Make a new empty file. If the name is taken, add .0, .1, ... to it, like nccl-tests."""
    tried, numbers = path, itertools.count()
    while True:
        try:
            tried.touch(exist_ok=False)
            return tried
        except FileExistsError:
            tried = Path(f"{path}.{next(numbers)}")
        except OSError as error:
            raise _refused(tried, error) from None


@contextlib.contextmanager
def _open_csv(path: Path) -> Iterator[TextIO]:
    """Open a file to add rows to. A new one gets the heading, and is removed if an error leaves it without rows."""
    heading = exports.heading()
    try:
        # Any bytes can be read, so that a file of something else is recognised.
        check_output(path)
        file = path.open("a+", newline="", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise _refused(path, error) from None
    with file:
        file.seek(0)
        first = file.readline(len(heading))
        if not first:
            _put(file, heading)
        elif first != heading:
            raise ResultsError(
                f"{path} holds something else than rows of this version of hpccomm; name another file"
            )
        try:
            yield file
        except BaseException:
            if os.fstat(file.fileno()).st_size == len(heading):
                path.unlink()
            raise


def _refused(path: Path | str, error: OSError) -> ResultsError:
    return ResultsError(
        f"{path} cannot be written: {error.strerror or error}; "
        + ("the run needs its output" if path == "<stdout>" else "name a file that can")
    )
