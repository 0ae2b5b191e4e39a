"""How long a large results file takes to open, list, show and draw: 10,000 rows of 1,000 repetitions on 64 ranks.

python benchmarks/archive.py --make big.h5      makes it: 5 GB of samples, which takes minutes
python benchmarks/archive.py big.h5             times whole processes: median of 5, in seconds
"""

import argparse
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from hpccomm.results.schema import Config, RankInfo, Row, RunInfo
from hpccomm.results.writer import Writer

ROWS, REPETITIONS, RANKS = 10_000, 1_000, 64
TIMES = 5


def make(path: Path) -> None:
    """Write the file; times have the few digits of a real clock."""
    ranks = tuple(
        RankInfo(
            rank, 0, f"node{rank // 8}", rank // 8, 1000 + rank, "0", -1, "", "host memory", ""
        )
        for rank in range(RANKS)
    )
    config = Config(8, 1 << 20, 2, 0, REPETITIONS, 5)
    started = datetime(2026, 11, 1, tzinfo=UTC)
    info = RunInfo(started, "user", "srun", ("hpccomm", "perf"), (), config, ranks, {}, {}, {})
    chance = np.random.default_rng(0)
    with Writer(path, info, expected_rows=ROWS, expected_repetitions=ROWS * REPETITIONS) as writer:
        for number in range(ROWS):
            size = 8 << number // 2 % 18
            micros = 10 + size / 1e4
            times = (
                np.round(micros * (1 + chance.exponential(0.02, (REPETITIONS, RANKS))), 2) * 1e-6
            )
            row = Row(
                *(
                    "all_reduce",
                    "mpi",
                    f"algorithm{number // 36}",
                    "float",
                    "sum",
                    -1,
                    size,
                    size // 4,
                ),
                in_place=bool(number % 2),
                time=micros,
                algbw=size / micros / 1e3,
                busbw=size / micros / 1e3,
                wrong=0,
                iterations=REPETITIONS,
            )
            writer.append(row, times)


def seconds(*words: str) -> float:
    """Return the median time of a whole process of hpccomm."""
    taken = []
    for _ in range(TIMES):
        began = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "hpccomm", *words], check=True, stdout=subprocess.DEVNULL
        )
        taken.append(perf_counter() - began)
    return median(taken)


def main() -> None:
    """Make the file, or time what reads it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--make", action="store_true", help="write the file first")
    args = parser.parse_args()
    if args.make:
        began = perf_counter()
        make(args.file)
        print(f"written in {perf_counter() - began:.0f} s, {args.file.stat().st_size / 1e9:.2f} GB")
    with tempfile.TemporaryDirectory() as folder:
        picture = str(Path(folder) / "picture.svg")
        for name, words in (
            ("list", ("show", str(args.file), "--list")),
            ("show", ("show", str(args.file))),
            ("plot", ("plot", "--runs", str(args.file), "--output", picture)),
        ):
            print(f"{name:5} {seconds(*words):.2f} s", flush=True)


if __name__ == "__main__":
    main()
