"""Example data; run as a program, it appends rows to a file and says so, until it is killed."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hpccomm.results.schema import Config, RankInfo, Row, RunInfo
from hpccomm.results.writer import Writer

REPETITIONS = 400


def example_info(ranks: int = 4, **settings: object) -> RunInfo:
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
                *(rank, 0, f"node{rank // 2}", rank // 2, 1000 + rank, str(rank)),
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
    """Return times that tell the row, the repetition and the rank."""
    return index + np.arange(repetitions * ranks, dtype=np.float64).reshape(repetitions, ranks)


def one_row(path: Path, samples: np.ndarray | None = None) -> None:
    """Add a run of the first row."""
    with Writer(path, example_info()) as writer:
        writer.append(example_row(0), samples)


def main(path: Path) -> None:
    """Append rows, of which the test kills the process in the midst."""
    # Less capacity than is needed, so that the file grows on the way.
    with Writer(path, example_info(), expected_rows=16, expected_repetitions=1000) as writer:
        for index in range(300):
            writer.append(example_row(index), example_samples(index, REPETITIONS))
            print(writer.name, index, flush=True)
    print("ended", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
