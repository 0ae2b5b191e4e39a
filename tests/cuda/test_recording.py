"""What a recording holds of calls on streams: the host's time is exact, and their end is when it was seen."""

import time

import cupy
import numpy as np
import pytest
from nccl_ranks import ranked

from hpccomm.results.recording import DEVICE


@pytest.mark.processes
@ranked(2)
def test_calls_on_streams_are_recorded_with_their_stream_and_end(comm) -> None:
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.ones(4, np.float32)
        comm.all_reduce(x)
        begin = time.perf_counter_ns()
        with comm.record() as recorder:
            for _ in range(3):
                comm.all_reduce(x)
            work = comm.all_reduce(x, async_op=True)
            asked = time.perf_counter_ns()
            work.wait(block=True)
            stream.synchronize()
            with comm.batch():
                comm.all_reduce(x)
                comm.broadcast(cupy.ones(4))
            stream.synchronize()
        end = time.perf_counter_ns()
    recording = comm.broadcast_object(recorder.recording)
    signatures, calls = recording.signatures, recording.calls
    mode = np.array([signatures[number].mode for number in calls["signature"]])
    here = calls.of_rank(comm.rank)
    where = np.arange(len(mode))[here][mode[here] == DEVICE]
    calls = {name: calls[name][where] for name in calls.columns}
    operations = [signatures[number].operation for number in calls["signature"]]
    assert operations == ["all_reduce"] * 4 + ["batch"]
    assert (calls["stream"] == stream.ptr).tolist() == [True] * 3 + [False, True]
    assert len(set(calls["buffer"])) == 1
    assert (calls["buffer"] != 0).all()
    assert begin <= calls["begin"].min()
    assert (calls["begin"] < calls["end"]).all()
    assert (calls["waited"] > 0).all()
    assert calls["end"].max() <= end
    assert (calls["asked"] > 0).tolist() == [False] * 3 + [True, False]
    assert calls["asked"][3] >= asked
    assert not calls["failed"].any()
