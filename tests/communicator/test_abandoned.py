"""A `Work` dropped without a wait warns, and undelivered errors are logged."""

import gc
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from hpccomm import BufferMismatch
from hpccomm.testing import run_ranks

ROOT = Path(__file__).parents[2]


def dropped(act) -> list[warnings.WarningMessage]:
    """The warnings of one rank that does something with asynchronous calls."""
    gc.collect()  # what earlier tests left in circles is warned of here, not below
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_ranks(1, act)
        gc.collect()
    return [each for each in caught if issubclass(each.category, ResourceWarning)]


def test_a_work_that_is_dropped_is_warned_of_with_its_call_and_line() -> None:
    def act(comm) -> None:
        comm.all_reduce(np.ones(3), async_op=True)

    (warning,) = dropped(act)
    assert "asynchronous all_reduce" in str(warning.message)
    assert "act(), test_abandoned.py line" in str(warning.message)
    assert warning.filename == __file__
    assert warning.lineno == act.__code__.co_firstlineno + 1


def test_one_that_is_asked_is_not() -> None:
    def act(comm) -> None:
        comm.all_reduce(np.ones(3), async_op=True).wait()
        comm.all_reduce(np.ones(3), async_op=True).done()
        comm.all_reduce(np.ones(3), async_op=True).exception()
        with comm.batch(async_op=True) as batch:
            comm.broadcast(np.ones(3))
        batch.work.wait()

    assert dropped(act) == []


def test_it_is_said_once_for_a_line() -> None:
    program = (
        "import numpy as np\n"
        "from hpccomm.testing import run_ranks\n"
        "def act(comm):\n"
        "    for _ in range(5):\n"
        "        comm.barrier(async_op=True)\n"
        "run_ranks(1, act)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "default", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ResourceWarning: the Work of an asynchronous barrier") == 1


def test_an_error_that_nobody_saw_is_logged_at_finalize(caplog: pytest.LogCaptureFixture) -> None:
    def act(comm) -> None:
        peer = 1 - comm.rank
        seen = comm.recv(np.empty(2), peer, async_op=True)
        unseen = comm.recv(np.empty(3), peer, async_op=True)
        for _ in range(2):
            comm.send(np.empty(5), peer)
        with pytest.raises(BufferMismatch):
            seen.wait()
        while not unseen.done():  # which tells not how it ended
            pass

    with caplog.at_level(logging.ERROR, "hpccomm"):
        run_ranks(2, act, timeout=60)
    unseen = [each.getMessage() for each in caplog.records if "neither wait()" in each.getMessage()]
    assert len(unseen) == 2  # one on each rank
    for each in unseen:
        assert each.startswith("recv (call 2 of communicator 'world'"), each
        assert "test_abandoned.py line" in each
        assert "BufferMismatch" in each
