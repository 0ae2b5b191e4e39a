"""The order and the thread in which buckets are reduced, and errors there: by a compressor that notes what it sees."""

import gc
import json
import multiprocessing
import re
import threading
import time
import warnings
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from alone import python
from conftest import Mpiexec
from hypothesis import given, settings
from until import until

from hpccomm import Communicator, CommunicatorAborted, RankMismatch
from hpccomm.gradients import GradientSync
from hpccomm.gradients.parameters import Bucket
from hpccomm.runtime.service import Status
from hpccomm.testing import run_ranks

Gate = Callable[[list[int]], threading.Event | None]


class Noted:
    """A compressor that sums up, and notes when and in which thread each bucket was reduced.

    `gate` says what the last of the buckets that have begun waits for, if anything.
    """

    memory_bytes = 0

    def __init__(self, gate: Gate = lambda _: None) -> None:
        self.gate, self.index = gate, -1
        self.order: list[tuple[int, str]] = []

    def __repr__(self) -> str:
        return "Noted()"

    def channel(self, bucket: Bucket) -> "Noted":
        made = copy(self)
        made.index = bucket.index
        return made

    def reduce(self, x: Any, exchange: Any) -> None:
        self.order.append((self.index, threading.current_thread().name))
        gate = self.gate([index for index, _ in self.order])
        exchange.sum(x)
        if gate is not None:
            gate.wait(60)


def small(comm: Communicator, count: int, **others: Any) -> GradientSync:
    model = {f"p{n}": np.zeros(3) for n in range(count)}
    sizes = {"first_bucket_bytes": 1, "bucket_bytes": 1, "min_bucket_bytes": 0}
    return GradientSync(comm, model, op="sum", **sizes, **others)


class Broken(list[Any]):
    """Buckets that cannot be listed."""

    def __iter__(self) -> Any:
        raise MemoryError("no memory")


def test_an_error_between_two_buckets_ends_the_wait_as_well() -> None:
    def body(comm: Communicator) -> None:
        sync = small(comm, 2)
        sync._reducer._urgent = Broken()  # no public call fails between two
        with pytest.raises(MemoryError, match="no memory"):
            sync.wait_for("p1")
        with pytest.raises(MemoryError, match="no memory"):
            sync.wait()

    run_ranks(1, body)


@settings(max_examples=min(30, settings.default.max_examples))
@given(st.data())
def test_all_ranks_take_one_order_whatever_theirs_is(data: st.DataObject) -> None:
    ranks, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    names = [f"p{n}" for n in range(count)]
    orders = [data.draw(st.permutations(names)) for _ in range(ranks)]
    pauses = [data.draw(st.integers(0, 3)) for _ in range(ranks)]

    def body(comm: Communicator) -> Any:
        noted = Noted()
        sync = small(comm, count, compressor=noted)
        for _ in range(2):
            for number, name in enumerate(orders[comm.rank]):
                sync.ready(name, np.full(3, comm.rank + 1.0))
                if number % 4 == pauses[comm.rank]:
                    time.sleep(0.001)  # the thread may reduce what is there, or not
            sync.wait()
            for view in sync.gradients.values():
                assert (view == ranks * (ranks + 1) / 2).all()
        return [index for index, _ in noted.order]

    found = run_ranks(ranks, body)
    assert all(order == found[0] for order in found)
    assert sorted(found[0][:count]) == list(range(count))


def test_what_the_next_forward_pass_needs_first_overtakes() -> None:
    both = threading.Barrier(2)

    def body(comm: Communicator) -> Any:
        all_ready, seen = threading.Event(), threading.Event()

        def gate(begun: list[int]) -> threading.Event | None:
            return seen if 4 in begun[:-1] else all_ready if begun == [0] else None

        noted = Noted(gate)
        sync = small(comm, 5, compressor=noted)
        for name in ("p4", "p3", "p2", "p1", "p0"):  # all while the first bucket is under way
            sync.ready(name, np.ones(3))
        both.wait(60)
        all_ready.set()
        first = sync.wait_for("p0").copy()
        started = [index for index, _ in noted.order]
        seen.set()
        sync.wait()
        return first, started, noted.order

    for first, started, order in run_ranks(2, body):
        assert (first == 2).all()
        assert len(started) < 5
        # p4's bucket is number 0. While it was under way, the others became ready; the ranks learn it from the
        # next one, at the latest: that may be any.
        begun = [index for index, _ in order]
        assert begun == [0, begun[1], *(index for index in (4, 3, 2, 1) if index != begun[1])]
        assert order[0][1] == "hpccomm gradients"


def test_an_error_in_the_other_thread_is_raised_by_every_later_reduction() -> None:
    def fails(begun: list[int]) -> None:
        if begun[-1] == 1:
            raise ArithmeticError("a compressor's own")

    def body(comm: Communicator) -> None:
        sync = small(comm, 3, compressor=Noted(fails))
        for name in sync.gradients:
            sync.ready(name)
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="own"):
                sync.wait()

    run_ranks(2, body)


def test_the_thread_ends_with_what_it_serves() -> None:
    def body(comm: Communicator) -> None:
        sync = small(comm, 3)
        for _ in range(2):
            for name in sync.gradients:
                sync.ready(name)
            sync.wait()

    def serving() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if "gradients" in each.name}

    before = serving()
    run_ranks(2, body)
    gc.collect()
    until(lambda: serving() <= before)


def test_the_caller_reduces_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name == "hpccomm gradients":
            raise RuntimeError("can't start new thread")
        start(self)

    # A limit of threads does not hold for root, nor would it spare the threads of the ranks.
    monkeypatch.setattr(threading.Thread, "start", refused)

    def body(comm: Communicator) -> None:
        sync = small(comm, 3)
        for name in sync.gradients:
            sync.ready(name, np.ones(3))
        assert (sync.wait_for("p0") == 2).all()
        sync.wait()

    run_ranks(2, body)


def test_a_fork_while_the_other_thread_reduces_cannot_train() -> None:
    def body(comm: Communicator) -> int | None:
        begun, forked = threading.Event(), threading.Event()

        def gate(_: list[int]) -> threading.Event:
            begun.set()
            return forked

        sync = small(comm, 2, compressor=Noted(gate))
        sync.gradients["p1"][:] = 7
        sync.ready("p1")
        sync.ready("p0")
        begun.wait(60)
        child = multiprocessing.get_context("fork").Process(target=calls_raise, args=(sync,))
        child.start()
        child.join(20)
        child.kill()  # it has ended, or it hangs
        forked.set()
        sync.wait()
        assert (sync.gradients["p1"] == 7).all()
        return child.exitcode

    def calls_raise(sync: GradientSync) -> None:
        for call in (sync.wait, sync.zero, sync.sync, partial(sync.ready, "p0")):
            with pytest.raises(CommunicatorAborted):
                call()
        sync.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        assert run_ranks(1, body) == [0]


def test_ways_that_differ_are_told_in_the_first_step() -> None:
    text = r"the call is sync\(\) on rank 0 and ready\(\) and wait\(\) on rank 2"

    def body(comm: Communicator) -> None:
        sync = small(comm, 3)
        step = partial(sync.ready, "p0") if comm.rank == 2 else sync.sync
        with pytest.raises(RankMismatch, match=text) as caught:
            step()
        assert caught.value.ranks == (2,)
        assert sync.sync()  # nothing has begun

    run_ranks(3, body)


# Whole programs.

PROGRAM = """
import json, sys
import numpy as np
import mpi4py
if sys.argv[1] == "serialized":
    mpi4py.rc.thread_level = "serialized"
import hpccomm
from hpccomm.gradients import GradientSync

comm = hpccomm.new_comm(timeout=50)
model = {f"p{n}": np.zeros(100_000, np.float32) for n in range(4)}
sync = GradientSync(comm, model, first_bucket_bytes=1)
for step in range(3):
    for name, view in sync.gradients.items():
        view[...] = comm.rank
        sync.ready(name)
    sync.wait()
right = all((view == (comm.size - 1) / 2).all() for view in sync.gradients.values())
if sys.argv[1] == "left by others" and comm.rank == 0:
    for name in model:
        sync.ready(name)
if sys.argv[1] == "raises":
    for name in list(model)[: 4 - comm.rank]:
        sync.ready(name)
    if comm.rank == 1:
        raise KeyError("of this rank")
    sync.wait()
print(json.dumps({"right": right, "background": comm.background}), flush=True)
"""


@pytest.mark.parametrize("how", ["left by others", "raises", "serialized"])
def test_programs_end_by_themselves(mpiexec: Mpiexec, how: str) -> None:
    done = mpiexec(2, "-c", PROGRAM, how, timeout=60)
    told = [json.loads(each) for each in re.findall("{.*?}", done.stdout)]  # maybe in one line
    if how == "raises":
        assert done.returncode == Status.RAISED, done
        assert "KeyError: 'of this rank'" in done.stderr
        return
    assert done.returncode == 0, done
    assert told == [{"right": True, "background": how != "serialized"}] * 2


AT_EXIT = """
import atexit, threading

@atexit.register
def last():  # after hpccomm's own, as it was registered before
    for name in sync.gradients:
        sync.ready(name, np.ones(3))
    sync.wait_for("p0")
    sync.wait()
    print([each.name for each in threading.enumerate() if "gradients" in each.name], flush=True)

import numpy as np
import hpccomm
from hpccomm.gradients import GradientSync

model = {f"p{n}": np.zeros(3) for n in range(3)}
sync = GradientSync(hpccomm.new_comm("loopback"), model, first_bucket_bytes=1, bucket_bytes=1, min_bucket_bytes=0)
"""


def test_at_the_exit_of_the_program_the_caller_reduces_and_nothing_is_waited_for() -> None:
    done = python("-c", AT_EXIT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
