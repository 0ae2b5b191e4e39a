"""The choice of `auto` on agreed facts about registered memory: right for all later calls."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm.dispatch.policy import Pick, Table, TableRow

if TYPE_CHECKING:
    from mpi4py import MPI

COUNT = 30_000
LARGE = 5_000_000  # elements of which each call is agreed
"""Every size from 0 bytes on has shm where arrays are registered."""


@pytest.fixture
def comm(mpi_comm: "MPI.Comm", monkeypatch: pytest.MonkeyPatch) -> Iterator[hpccomm.Communicator]:
    """Give a communicator whose table has a row for registered arrays, the library's own for others."""
    with hpccomm.new_comm(mpi_comm=mpi_comm) as made:
        if made.size == 1 or made._core.backend.collectives.shared is None:
            pytest.skip("needs several ranks on one node")
        policy = made._core.lanes.host.dispatch.policy
        table = policy.table
        rows = dict(table.rows)
        for collective in ("all_reduce", "broadcast"):
            rows[collective, "native"] = (TableRow(0, Pick("native")),)
            rows[collective, "registered"] = (TableRow(0, Pick("shm")),)
        rows["all_to_all", "native"] = (
            TableRow(0, Pick("native")),
            TableRow(LARGE, Pick("pairwise")),
        )
        changed = Table(table.shape, table.measured, rows)
        monkeypatch.setattr(
            made._core.lanes.host.dispatch,
            "policy",
            type(policy)(policy.shape, changed, policy.source, policy.network),
        )
        yield made


def reduced(comm: hpccomm.Communicator, x: np.ndarray, call: Callable[[], Any]) -> None:
    """Make a call, and look at the sum."""
    x[:] = np.arange(x.size) % 100 + comm.rank
    result = call()
    expected = np.arange(x.size) % 100 * comm.size + sum(range(comm.size))
    assert np.array_equal(x if result is None else result, expected.astype(x.dtype))


def takes(comm: hpccomm.Communicator, x: np.ndarray) -> str:
    return comm.explain("all_reduce", x).algorithm


def test_calls_go_by_the_arrays_of_those_before_and_any_mixture_works(
    comm: hpccomm.Communicator,
) -> None:
    registered, plain = comm.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
    assert takes(comm, registered) == "native"  # nothing is agreed yet
    reduced(comm, registered, lambda: comm.all_reduce(registered))
    assert takes(comm, registered) == takes(comm, plain) == "shm"
    for turn in range(2 * comm.size):
        x = registered if turn % comm.size == comm.rank else plain
        reduced(comm, x, lambda x=x: comm.all_reduce(x))
        y = plain if turn % comm.size == comm.rank else registered
        reduced(comm, y, lambda y=y: comm.all_reduce(y, op=hpccomm.ReduceOp.SUM))
    out = comm.empty(COUNT, np.float32)
    reduced(comm, plain, lambda: comm.all_reduce(plain, out=out))  # another kind: not in place


def test_one_plain_array_leaves_a_kind_of_call_to_the_library(comm: hpccomm.Communicator) -> None:
    x = np.empty(COUNT) if comm.rank == 0 else comm.empty(COUNT, np.float64)
    for _ in range(2):
        reduced(comm, x, lambda: comm.all_reduce(x))
        assert takes(comm, x) == "native"
    # Averages are divided once, whoever carries the call out.
    for mine in (x, comm.empty(COUNT, np.float64)):
        mine[:] = comm.rank
        comm.all_reduce(mine, op=hpccomm.ReduceOp.AVG)
        assert (mine == (comm.size - 1) / 2).all()


@by_default_on(2)
def test_a_plan_and_each_large_call_go_by_their_own_arrays(comm: hpccomm.Communicator) -> None:
    for count in (COUNT, LARGE):
        registered, plain = comm.empty(count, np.float32), np.empty(count, np.float32)
        mixed = plain if comm.rank == comm.size - 1 else registered
        for x, way in ((registered, "shm"), (mixed, "native"), (plain, "native")):
            plan = comm.plan("all_reduce", x)
            assert plan.choice.algorithm == way
            for _ in range(2):
                reduced(comm, x, plan)
        for x in (registered, mixed, plain, registered):
            reduced(comm, x, lambda x=x: comm.all_reduce(x))


def test_what_a_plan_agrees_on_holds_for_that_plan_alone(comm: hpccomm.Communicator) -> None:
    for count, first in ((COUNT + 1, "native"), (COUNT + 2, "shm")):
        registered, plain = comm.empty(count, np.float32), np.empty(count, np.float32)
        plan = comm.plan("all_reduce", plain if first == "native" else registered)
        assert plan.choice.algorithm == first
        reduced(comm, plain if first == "native" else registered, plan)
        assert takes(comm, registered) == takes(comm, plain) == "native"
        reduced(comm, registered, lambda x=registered: comm.all_reduce(x))
        assert takes(comm, registered) == takes(comm, plain) == "shm"
        reduced(comm, plain, lambda x=plain: comm.all_reduce(x))


@by_default_on(2)
def test_what_was_called_before_does_not_decide_how_fast_a_call_is(
    comm: hpccomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = comm.empty(COUNT, np.float32), comm.empty(COUNT, np.float32)
    plain = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
    ramp = np.arange(COUNT, dtype=np.float32) % 100

    def met(name: str, arrays: tuple[np.ndarray, np.ndarray]) -> bool:
        """Make a call, look at what came of it, and tell whether the next one looks for registered arrays."""
        x, out = arrays
        x[:] = ramp + comm.rank
        if name == "broadcast":
            call, out, expected = {"root": 1}, x, ramp + 1
        elif name == "all_reduce":
            call, expected = {"out": out}, ramp * comm.size + sum(range(comm.size))
        else:
            call = {"op": hpccomm.ReduceOp.AVG, "out": out}
            expected = ramp + (comm.size - 1) / 2
        collective = name.split()[0]
        getattr(comm, collective)(x, **call)
        assert np.array_equal(out, expected)
        return comm.explain(collective, x, **call).algorithm == "shm"

    for name in ("all_reduce", "broadcast", "all_reduce average"):
        if name == "broadcast":  # the ranks need not compare their calls for that
            monkeypatch.setattr(comm._core.check, "_setting", "off")
        assert not any(met(name, plain) for _ in range(20))
        took = [met(name, registered) for _ in range(17)]
        assert all(took[took.index(True) :])  # soon, though the ranks do not meet in each call
        took = [met(name, plain) for _ in range(18)]
        assert not any(took[took.index(False) :])
        # In turn they come to the faster way as well.
        took = [met(name, registered if turn % 3 else plain) for turn in range(24)]
        assert all(took[took.index(True) :])


def test_calls_on_plain_arrays_seldom_meet() -> None:
    from hpccomm.communicator.lanes.host import Habit

    habit, meetings = Habit(), []
    for number in range(1, 1001):  # as `either` does
        habit.left -= 1
        if not habit.left:
            meetings.append(number)
            habit.met(False)
    assert meetings[:6] == [1, 2, 4, 8, 16, 32]
    assert len(meetings) <= 1000 / 16 + 4


def test_asynchronous_calls_and_batches_stay_with_the_library(comm: hpccomm.Communicator) -> None:
    x = comm.empty(COUNT, np.float32)
    reduced(comm, x, lambda: comm.all_reduce(x))
    reduced(comm, x, lambda: comm.all_reduce(x, async_op=True).wait())
    with comm.batch():
        x[:] = 1
        comm.all_reduce(x)
    assert (x == comm.size).all()


def test_a_plan_of_uneven_blocks_takes_the_librarys_call_where_it_suits_all(
    comm: hpccomm.Communicator,
) -> None:
    rng = np.random.default_rng(7)
    table = rng.integers(0, 4, (comm.size, comm.size))
    for large, way in ((LARGE, "pairwise"), (0, "native")):
        # The last rank keeps most of its rows: the others cannot know by themselves.
        table[-1, -1] = large
        sent, came = table[comm.rank].tolist(), table[:, comm.rank].tolist()
        x = np.repeat(np.arange(comm.size) + 10.0 * comm.rank, sent)
        expected = np.repeat(np.arange(comm.size) * 10.0 + comm.rank, came)
        out = comm.empty(sum(came), np.float64)
        plan = comm.plan("all_to_all_v", x, sent, came, out=out)
        assert plan.choice.algorithm == way
        for _ in range(2):
            out.fill(-1)
            assert plan() is out
            assert (out == expected).all()
        # Calls know nothing of each other's counts.
        assert comm.explain("all_to_all_v", x, sent, came, out=out).algorithm == "pairwise"
        comm.all_to_all_v(x, sent, came, out=out)
        assert (out == expected).all()
