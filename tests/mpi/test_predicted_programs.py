"""The prediction of a program that ran, from its recording, is the recorded program."""

import time
from typing import Any

import numpy as np
import pytest

from hpccomm import ReduceOp
from hpccomm.results.recording import collectives
from hpccomm.tools.programs.program import five_numbers, model, predict
from hpccomm.tools.programs.steps import steps


def step(comm: Any, half: Any) -> None:
    """Make calls of each kind that waits in its own way: one rank is late."""
    x, large, few = np.ones(1 << 16, np.float32), np.ones(1 << 17), np.ones(4)
    other, out = 1 - comm.rank, np.empty(1 << 17)
    time.sleep(0.002 * comm.rank)
    works = [comm.all_reduce(each, op=ReduceOp.MAX, async_op=True) for each in (x, x.copy())]
    half.all_reduce(few)
    time.sleep(0.001)
    for work in works:
        work.wait()
    if comm.rank == 0:
        comm.send(few, other)
        time.sleep(0.0005)
        comm.send(large, other)
    else:
        comm.recv(few, other)
        comm.recv(out, other)
    comm.send_recv(large, other, out, other)
    with comm.batch():
        comm.send(few, other)
        comm.recv(np.empty(4), other)
    comm.broadcast(few)
    comm.reduce(few)
    comm.barrier()


@pytest.mark.parametrize("most", [1, 20_000])
def test_a_recorded_program_is_predicted_as_it_was(comm: Any, most: int) -> None:
    if comm.size != 2:
        pytest.skip("a program of two ranks")
    half = comm.split(0)
    with comm.record() as recorder:
        for _ in range(20):
            step(comm, half)
            recorder.step()
    if comm.rank == 0:
        recording = recorder.recording
        program = model(recording, steps(recording, collectives(recording)), most)
        prediction = predict(program)
        assert prediction.seconds == pytest.approx(program.seconds, rel=0.01)
        five = five_numbers(prediction, np.zeros(len(program.events)))
        assert five.sum() / 2 == pytest.approx(program.seconds, rel=0.01)
        assert (five > -1e-9).all()
