"""What is dropped is told of: a communicator without its finalize(), a `Work` without a wait, an error unseen.

The place of a dropped communicator is used again. MPICH has place for 2,048 communicators of its own, which are some 500 of hpccomm's, a node's included.
"""

import gc
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HEAD, Mpiexec

import hpccomm
from hpccomm import BufferMismatch
from hpccomm.runtime import answering
from hpccomm.testing import run_ranks


def warned(act: Callable[[Any], object], ranks: int = 1, shown: Any = "always") -> list[Any]:
    """Return the warnings of what ranks leave behind."""
    gc.collect()  # what earlier tests left in circles is warned of here, not below
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(shown)
        run_ranks(ranks, act)
        gc.collect()
    return [each for each in caught if issubclass(each.category, ResourceWarning)]


DROPPED = [
    ("without finalize()", lambda comm: comm.dup().barrier()),
    ("without finalize()", lambda comm: comm.split(0).barrier()),
    ("without finalize()", lambda comm: comm.split_ranks([0]).barrier()),
    ("without finalize()", lambda comm: hpccomm.new_comm("loopback").barrier()),
    ("asynchronous all_reduce", lambda comm: comm.all_reduce(np.ones(3), async_op=True)),
]


@pytest.mark.parametrize(("said", "act"), DROPPED)
def test_what_is_dropped_is_warned_of_with_its_line_and_answers_no_more(said, act) -> None:
    for shown in ("always", "default"):

        def repeats(comm: Any, shown: str = shown) -> None:
            for _ in range(3):
                act(comm)

        gc.collect()
        before = len(answering.communicators())
        found = warned(repeats, shown=shown)
        assert len(answering.communicators()) == before
        # By Python's default once for a line and text, which has the names of most communicators.
        texts = [str(each.message) for each in found]
        assert len(texts) == (3 if shown == "always" else len(set(texts)))
        for each in found:
            assert said in str(each.message)
            assert f"{Path(__file__).name} line {act.__code__.co_firstlineno}" in str(each.message)
            assert each.filename == __file__
            assert each.lineno == act.__code__.co_firstlineno


def test_what_has_an_end_is_not() -> None:
    def act(comm) -> None:
        for asked in ("wait", "done", "exception"):
            getattr(comm.all_reduce(np.ones(3), async_op=True), asked)()
        with comm.batch(async_op=True) as batch:
            comm.broadcast(np.ones(3))
        batch.work.wait()
        comm.dup().finalize()
        comm.dup().abort()
        with comm.dup() as other:
            plan = other.plan("all_reduce", np.ones(3))
        node, pair = comm.node_comm, comm.split(0)
        work = pair.all_reduce(np.ones(3), async_op=True)
        work.wait()
        pair.finalize()
        node.barrier()
        del plan

    assert warned(act, ranks=2) == []


PROGRAM = """
import gc
from hpccomm.backends.mpi.backend import MpiBackend

def held():  # communicators that hold some of the library's
    gc.collect()
    return sum(type(each) is MpiBackend for each in gc.get_objects())

def cycle(comm):
    made = [comm.dup()]
    made.append(made)
    return made[0]

def by_plan(comm):
    return comm.dup().plan("all_reduce", np.ones(3))  # which is all that has it

def own(comm):
    return comm.split(comm.rank if comm.rank else None)

with hpccomm.new_comm(timeout=20) as comm:
    made = own(comm)
    for make in (
        lambda: comm.dup(), lambda: comm.split(0, -comm.rank), lambda: comm.split_ranks([0, 1]),
        lambda: hpccomm.new_comm(), lambda: cycle(comm), lambda: comm.dup().node_comm, lambda: by_plan(comm),
        lambda: own(comm),
    ):
        before = held()
        for _ in range(5):
            made = make()
            if made is not None:
                getattr(made, "barrier", made)()
            comm.dup().finalize()  # where the ranks meet
        made = None
        assert held() <= before + 3, (held(), before)

    # One that is dropped on some ranks alone stays as it is.
    kept = comm.dup()
    if comm.rank == 0:
        known, kept = kept, None
        del known
    for _ in range(2):
        comm.dup().finalize()
    if comm.rank == 1:
        assert kept.send_recv(np.ones(1), 1, np.zeros(1), 1)[0] == 1
        kept = None
    comm.dup().finalize()
    made = comm.dup()  # and of what is dropped under way, so does this
    work = made.recv(np.ones(3), 1 - comm.rank, async_op=True)
    made.send(np.ones(3), 1 - comm.rank)
    made = None
    comm.dup().finalize()
    work.wait()
    assert (comm.all_reduce(np.ones(3)) == comm.size).all()
"""


def test_the_place_of_dropped_ones_is_used_again(shared_job: Mpiexec) -> None:
    job = shared_job(2, "-c", HEAD + PROGRAM)
    assert job.returncode == 0, job.stderr


def test_the_error_of_a_library_without_place_counts_them(shared_job: Mpiexec) -> None:
    """Those wait for the ranks to meet: where the library has no place, its error comes here."""
    program = """
import pytest
from hpccomm.calls.core import counting

def told(error, words):
    with pytest.raises(type(error), match=words), counting():
        raise error

with hpccomm.new_comm() as comm:
    made = [comm.dup() for _ in range(3)]
    del made
    told(hpccomm.CommunicationError("full"), "dropped 3 of them")
    told(hpccomm.PeerLost("gone"), "gone")
    comm.dup().finalize()
    told(hpccomm.CommunicationError("full"), "dropped 0 of them")
"""
    job = shared_job(2, "-c", HEAD + program)
    assert job.returncode == 0, job.stderr


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
        run_ranks(2, act)
    unseen = [each.getMessage() for each in caplog.records if "neither wait()" in each.getMessage()]
    assert len(unseen) == 2  # one on each rank
    told = re.compile(
        r"recv \(call 2 of communicator 'world'.*test_dropped.py line .*BufferMismatch"
    )
    assert all(map(told.match, unseen)), unseen
