"""Runs with known times, for charts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from appending import example_info, example_row

from hpccomm.results import timings
from hpccomm.results.writer import Writer

SIZES = [8 << 2 * step for step in range(8)]
STARTED = datetime(2026, 11, 1, tzinfo=UTC)


def info(**facts):
    """Return the facts of a run on two nodes."""
    made = example_info(2, 1, maximum_bytes=SIZES[-1], step_factor=4)
    return replace(made, **{"started": STARTED, "skipped": (), **facts})


def write(
    path: Path, algorithms: dict[str, tuple[float, float]], *, days=0, wrong=0, **facts
) -> Path:
    """Write a run: for each algorithm a latency (us) and a bandwidth (GB/s) give the time of each size."""
    with Writer(path, info(started=STARTED + timedelta(days=days), **facts)) as writer:
        for algorithm, (latency, bandwidth) in algorithms.items():
            for size in SIZES:
                time = latency + size / bandwidth / 1e3
                samples = np.full((20, 2), time * 1e-6) * np.linspace(0.9, 1.1, 20)[:, None]
                stamps = np.zeros((20, 2, 2))
                stamps[:, 1, 0], stamps[:, :, 1] = 1e-6, time * 1e-6
                speed = size / time / 1e3
                found = {"algorithm": algorithm, "bytes": size, "count": size // 4, "time": time}
                row = example_row(0, **found, algbw=speed, busbw=speed, wrong=wrong)
                timing = timings.timing(samples, 0, stamps, sync="round-time")
                writer.append(row, samples, stamps, timing=timing)
    return path
