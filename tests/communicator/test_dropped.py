"""A communicator dropped without finalize() gives a warning, and its place is reused.

MPICH has place for 2,048 communicators of its own, which are some 500 of hpccomm's, a node's included.
"""

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Mpiexec

import hpccomm
from hpccomm.calls import core
from hpccomm.runtime import answering
from hpccomm.testing import run_ranks


def warned(act: Callable[[Any], object], ranks: int = 1) -> list[warnings.WarningMessage]:
    gc.collect()  # what earlier tests left in circles is warned of here, not below
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_ranks(ranks, act)
        gc.collect()
    return [each for each in caught if "without finalize()" in str(each.message)]


@pytest.mark.parametrize(
    "make",
    [
        lambda comm: comm.dup(),
        lambda comm: comm.split(0),
        lambda comm: comm.split_ranks([0]),
        lambda comm: hpccomm.new_comm("loopback"),
    ],
    ids=["dup", "split", "split_ranks", "new_comm"],
)
def test_one_that_is_dropped_is_warned_of_with_its_line(make) -> None:
    def act(comm) -> None:
        make(comm).barrier()

    (warning,) = warned(act)
    assert warning.category is ResourceWarning
    assert f"{Path(__file__).name} line {make.__code__.co_firstlineno}" in str(warning.message)
    assert warning.filename == __file__


def test_one_that_has_an_end_is_not() -> None:
    def act(comm) -> None:
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
import numpy as np
import hpccomm
from hpccomm.backends.mpi.backend import MpiBackend

make_backend, close_backend = MpiBackend.__init__, MpiBackend.close
there = 0  # communicators that hold some of the library's

def counted_make(self, *arguments, **keywords):
    global there
    there += 1
    make_backend(self, *arguments, **keywords)

def counted_close(self):
    global there
    there -= 1
    close_backend(self)

MpiBackend.__init__, MpiBackend.close = counted_make, counted_close

def held():
    gc.collect()
    return there

def cycle(comm):
    made = [comm.dup()]
    made.append(made)
    return made[0]

def by_plan(comm):
    return comm.dup().plan("all_reduce", np.ones(3))  # which is all that has it

def node(comm):
    return comm.dup().node_comm

def own(comm):
    return comm.split(comm.rank if comm.rank else None)

def program():
    with hpccomm.new_comm(timeout=20) as comm:
        made = own(comm)
        for make in (
            lambda: comm.dup(), lambda: comm.split(0, -comm.rank), lambda: comm.split_ranks([0, 1]),
            lambda: hpccomm.new_comm(), lambda: cycle(comm), lambda: node(comm), lambda: by_plan(comm),
            lambda: own(comm),
        ):
            before = held()
            for _ in range(3):
                made = make()
                if made is not None and hasattr(made, "barrier"):
                    made.barrier()
                    made.all_reduce(np.ones(2))
                elif made is not None:
                    made()
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
            assert not kept._core.calls.closed
            kept = None
        comm.dup().finalize()
        made = comm.dup()  # and of what is dropped under way, so does this
        work = made.recv(np.ones(3), 1 - comm.rank, async_op=True)
        made.send(np.ones(3), 1 - comm.rank)
        made = None
        comm.dup().finalize()
        work.wait()
        assert (comm.all_reduce(np.ones(3)) == comm.size).all()

try:
    program()
finally:
    MpiBackend.__init__, MpiBackend.close = make_backend, close_backend
"""


def test_the_place_of_dropped_ones_is_used_again(shared_job: Mpiexec) -> None:
    job = shared_job(2, "-c", PROGRAM)
    assert job.returncode == 0, job.stderr


def test_the_error_of_a_library_without_place_counts_them(monkeypatch) -> None:
    monkeypatch.setattr(core, "_dropped", [object()] * 3)
    with (
        pytest.raises(hpccomm.CommunicationError, match=r"dropped 3 .* finalize .* full"),
        core.counting(),
    ):
        raise hpccomm.CommunicationError("full")
    with pytest.raises(hpccomm.PeerLost, match=r"^gone$"), core.counting():
        raise hpccomm.PeerLost("gone")


def test_nobody_answers_for_one_that_is_gone() -> None:
    def act(comm) -> None:
        gc.collect()
        before = len(answering._answering)
        for _ in range(5):
            comm.dup().barrier()
        gc.collect()
        assert len(answering._answering) == before

    assert len(warned(act)) == 5
