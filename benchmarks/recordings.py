"""How long a large recording takes to open, and to advise on.

Run it as it is::

    python benchmarks/recordings.py "open 64 10000000" "advise 64 10000000"

A figure is what is done, the ranks, and the calls of all of them: ``open`` reads the file, and the columns
that every verb needs; ``advise`` is the whole command. The program computes unevenly between 20
collectives a step.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from contest import jobs, program
from contest.promises import Figure
from hpccomm.results.recording import (
    POLLED,
    STEP,
    Calls,
    CallSignature,
    RecordedGroup,
    Recording,
    RecordingFacts,
)
from hpccomm.results.recording_file import read_recordings, write

COLLECTIVES = 20
"""Of a step."""


def recording(path: Path, ranks: int, calls: int) -> Recording:
    """Return a program: ranks compute, and the last one starts a collective."""
    each = calls // ranks
    chance = np.random.default_rng(0)
    signature = np.arange(each) % (COLLECTIVES + 1)
    mark = signature == COLLECTIVES
    arrival = np.abs(chance.normal(2e5, 2e4, (ranks, each))).astype(np.int64) * ~mark
    transfer = np.abs(chance.normal(1e5, 1e4, each)).astype(np.int64) * ~mark
    end = np.cumsum(arrival.max(axis=0) + transfer)
    begin = (np.concatenate(([0], end[:-1])) + arrival).reshape(-1)
    ends = np.tile(end, ranks)
    zeros = np.zeros(ranks * each, np.int64)
    columns = {
        "signature": np.tile(signature.astype("<i4"), ranks),
        "number": np.tile(np.cumsum(~mark) * ~mark, ranks),
        "begin": begin,
        "end": ends,
        "asked": zeros,
        "waited": ends - begin,
        "buffer": np.tile((1 << 40) + 4096 * signature, ranks),
        "stream": zeros,
        "failed": zeros.astype("u1"),
    }
    signatures = [
        CallSignature("all_reduce", 0, 1 << 10 + n % 10, POLLED, {"dtype": "float32", "op": "sum"})
        for n in range(COLLECTIVES)
    ]
    hosts = tuple(f"node{rank // 8}" for rank in range(ranks))
    return Recording(
        path,
        "recording0001",
        RecordingFacts(datetime(2026, 11, 1, tzinfo=UTC), "user", ("train.py",), hosts),
        (RecordedGroup("world", "world", tuple(range(ranks))),),
        (*signatures, CallSignature(STEP, -1, 0, POLLED)),
        Calls(np.arange(ranks + 1) * each, columns),
    )


def measured(name: str, _request: argparse.Namespace) -> Figure:
    """Measure one case."""
    verb, ranks, calls = name.split()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.h5"
        write(path, recording(path, int(ranks), int(calls)))
        begin = time.perf_counter()
        if verb == "open":
            (stored,) = read_recordings(path)
            for column in ("signature", "number", "begin", "end", "waited"):
                _ = stored.calls[column]
            seconds = time.perf_counter() - begin
        else:
            seconds = jobs.seconds(*jobs.HPCCOMM, verb, str(path))
        return Figure(seconds, f"{path.stat().st_size / int(calls):.2f} bytes a call")


if __name__ == "__main__":
    program.alone(__doc__, "open 64 10000000", measured)
