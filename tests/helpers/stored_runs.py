"""Runs with known times, for charts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from hpccomm.results import timings
from hpccomm.results.schema import Config, RankInfo, Row, RunInfo
from hpccomm.results.writer import Writer

SIZES = [8 << 2 * step for step in range(8)]


def info(**facts):
    """Return the facts of a run on two nodes."""
    ranks = tuple(
        RankInfo(rank, 0, f"node{rank}", rank, 100 + rank, "0", -1, "", "host memory", "")
        for rank in range(2)
    )
    config = Config(8, SIZES[-1], 4, 0, 20, 5)
    started = datetime(2026, 11, 1, tzinfo=UTC)
    made = RunInfo(started, "user", "srun", ("hpccomm", "perf"), (), config, ranks, {}, {}, {})
    return replace(made, **facts)


def write(
    path: Path, algorithms: dict[str, tuple[float, float]], *, days=0, wrong=0, **facts
) -> Path:
    """Write a run: for each algorithm a latency (us) and a bandwidth (GB/s) give the time of each size."""
    started = info().started + timedelta(days=days)
    rows = len(algorithms) * len(SIZES)
    room = {
        "expected_rows": rows,
        "expected_repetitions": 20 * rows,
        "expected_isolated": 20 * rows,
    }
    with Writer(path, info(started=started, **facts), **room) as writer:
        for algorithm, (latency, bandwidth) in algorithms.items():
            for size in SIZES:
                time = latency + size / bandwidth / 1e3
                samples = np.full((20, 2), time * 1e-6) * np.linspace(0.9, 1.1, 20)[:, None]
                stamps = np.zeros((20, 2, 2))
                stamps[:, 1, 0], stamps[:, :, 1] = 1e-6, time * 1e-6
                row = Row(
                    *("all_reduce", "mpi", algorithm, "float", "sum", -1, size, size // 4),
                    in_place=False,
                    time=time,
                    algbw=size / time / 1e3,
                    busbw=size / time / 1e3,
                    wrong=wrong,
                    iterations=20,
                )
                timing = timings.timing(samples, 0, stamps, sync="round-time")
                writer.append(row, samples, stamps, timing=timing)
    return path
