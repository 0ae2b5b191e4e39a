"""Runs of example data, each row different from all others, and what is known of their files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hpccomm.calls import policy
from hpccomm.calls.tuning_table import Table
from hpccomm.results.reader import Run
from hpccomm.results.schema import Config, RankInfo, Row, RunInfo
from hpccomm.results.writer import Writer


def example_info(ranks: int = 4, per_node: int = 2, **settings: object) -> RunInfo:
    """Return the facts of a run of all_reduce."""
    config = {"minimum_bytes": 8, "maximum_bytes": 1024, "step_factor": 2, "step_bytes": 0}
    config |= {"iterations": 20, "warmup_iters": 5, **settings}
    return RunInfo(
        started=datetime(2026, 11, 20, 9, 8, 7, tzinfo=UTC),
        user="mué",
        launcher="mpiexec",
        arguments=("hpccomm", "perf", "all_reduce", "-e", "1K"),
        skipped=("float band",),
        config=Config(**config),
        ranks=tuple(
            RankInfo(
                *(rank, 0, f"node{rank // per_node}", rank // per_node, 1000 + rank, str(rank)),
                *(-1, "", "host memory", ""),
            )
            for rank in range(ranks)
        ),
        versions={"hpccomm": "0.1.0", "nccl": "2.32.3"},
        environment={"NCCL_DEBUG": "INFO"},
        slurm={"SLURM_JOB_ID": "17"},
    )


def example_row(index: int, **changes: object) -> Row:
    """Rows in turn out of place and in place, each different from all others."""
    size = 8 << (index // 2 % 20)
    values = {
        "collective": "all_reduce",
        "backend": "mpi",
        "algorithm": "auto",
        "dtype": "float",
        "op": "sum",
        "root": -1,
        "bytes": size,
        "count": size // 4,
        "in_place": bool(index % 2),
        "time": 10.5 + index,
        "algbw": 1.25 * index,
        "busbw": 2.5 * index,
        "wrong": 0,
        "iterations": 20,
        "finished": 1.8e9 + index,
    }
    return Row(**(values | changes))


def example_samples(index: int, repetitions: int, ranks: int = 4) -> np.ndarray:
    """Return times that tell the row, the repetition and the rank: whole microseconds, in seconds."""
    return (index + np.arange(repetitions * ranks).reshape(repetitions, ranks)) / 1e6


def begin_run(
    path: Path,
    lengths: Sequence[int] = (0,),
    *,
    rows: Iterable[Row] = (),
    info: RunInfo | None = None,
    **expected: int,
) -> Writer:
    """Begin a run of the example's first rows, or of other ones, with so many repetitions each."""
    info = info or example_info()
    writer = Writer(path, info, **expected)
    for index, row in enumerate(rows or map(example_row, range(len(lengths)))):
        length = lengths[index] if index < len(lengths) else 0
        samples = example_samples(index, length, len(info.ranks)) if length else None
        writer.append(row, samples)
    return writer


def add_run(path: Path, *rows: Any, status: str = "completed", **keywords: Any) -> Path:
    """Add a run as `begin_run` does, and end it; return the path."""
    begin_run(path, *rows, **keywords).end(status)
    return path


def check_run(run: Run, lengths: Sequence[int]) -> None:
    """Check that a run has the example's first rows, whole, with so many repetitions each."""
    assert run.rows == tuple(map(example_row, range(len(lengths))))
    for index, length in enumerate(lengths):
        expected = example_samples(index, length, len(run.info.ranks))
        np.testing.assert_array_equal(run.samples(index), expected)


def add_tables(path: Path, *tables: Table) -> str:
    """Add a run with each table of tune; return the path as a setting takes it."""
    for each in tables:
        with Writer(path, example_info()) as writer:
            writer.add_entry(policy.ENTRY, each.document())
    return str(path)


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Check that the block leaves the files of a folder as they are, and adds none."""

    def files() -> dict[Path, bytes]:
        return {each: each.read_bytes() if each.is_file() else b"" for each in folder.iterdir()}

    before = files()
    yield
    assert files() == before
