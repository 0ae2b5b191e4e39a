"""The advice on a program that was recorded as it ran. `tests/tools/programs/test_advice.py` has made ones."""

from typing import Any

import numpy as np

from hpccomm.tools.programs.advice import Analysis, advise


def test_a_late_rank_comes_first(comm: Any) -> None:
    matrix, last = np.ones((96, 96), np.float32), comm.size - 1
    with comm.record() as recorder:
        for _ in range(30):
            for _ in range(300 if comm.rank == last else 30):
                np.matmul(matrix, matrix)
            comm.all_reduce(np.ones(4))
            recorder.step()
    if comm.rank == 0 and last > 0:
        first = advise(Analysis(recorder.recording))[0]
        assert first.cause == "balance"
        assert f"rank {last}" in first.what
        assert "test_advised.py" in first.why
