"""Registered memory is used on all ranks of a call or on none, whatever was called before."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from appending import add_tables
from mpi4py import MPI

import hpccomm
from hpccomm import Communicator
from hpccomm.calls.tuning_table import Pick, Table, TableRow
from hpccomm.errors import RankMismatch
from hpccomm.results.recording import BLOCKING
from hpccomm.tools.tune.measuring import policy_of

COUNT = 30_000
LARGE = 4_200_000  # elements of which each call is agreed
"""Every size from 0 bytes on has shm where arrays are registered."""


@pytest.fixture(scope="module")
def comm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Communicator]:
    """Give a communicator whose table has a row for registered arrays, the library's own for others."""
    with hpccomm.new_comm(mpi_comm=MPI.COMM_WORLD.Dup()) as usual:
        shape, table = policy_of(usual)[:2]
        if usual.size == 1 or shape.memory == "off":
            pytest.skip("needs several ranks on one node")
        file = usual.broadcast_object(str(tmp_path_factory.mktemp("table") / "t.h5"))
        rows = dict(table.rows)
        for collective in ("all_reduce", "broadcast"):
            rows[collective, "native"] = (TableRow(0, Pick("native")),)
            rows[collective, "registered"] = (TableRow(0, Pick("shm")),)
        large = TableRow(LARGE, Pick("pairwise"))
        rows["all_to_all", "native"] = (TableRow(0, Pick("native")), large)
        if usual.rank == 0:
            add_tables(Path(file), Table(shape, "2026-11-21", rows))
        usual.barrier()
    options = hpccomm.CommOptions(tuning_file=file)
    with hpccomm.new_comm(mpi_comm=MPI.COMM_WORLD.Dup(), options=options) as made:
        yield made


def reduced(comm: Communicator, x: np.ndarray, call: Callable[[], Any]) -> None:
    """Make a call, and look at the sum."""
    x[:] = np.arange(x.size) % 100 + comm.rank
    result = call()
    expected = np.arange(x.size) % 100 * comm.size + sum(range(comm.size))
    assert np.array_equal(x if result is None else result, expected.astype(x.dtype))


def arrays(comm: Communicator, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Return a registered array, and a plain one."""
    return comm.empty(count, np.float32), np.empty(count, np.float32)


def test_what_was_called_before_does_not_decide_how_a_call_is_carried_out(comm) -> None:
    registered, plain = arrays(comm)
    given = (plain, registered, plain, plain, registered, plain, registered[:], plain[:])
    ways = ["native", "shm", "native", "native", "shm", "native", "shm", "native"]
    with comm.record() as recorder:
        for x, way in zip(given, ways, strict=True):
            assert comm.explain("all_reduce", x).algorithm == way
            reduced(comm, x, lambda x=x: comm.all_reduce(x))
    if comm.rank == 0:
        told = recorder.recording
        made = [told.signatures[each] for each in told.calls["signature"][told.calls.of_rank(0)]]
        assert [each.values["algorithm"] for each in made] == ways
        assert [each.mode == BLOCKING for each in made] == [way == "native" for way in ways]
    for x, way in ((registered, "shm"), (plain, "native")):
        assert comm.explain("broadcast", x, comm.size - 1).algorithm == way
        x[:] = comm.rank
        comm.broadcast(x, comm.size - 1)
        assert (x == comm.size - 1).all()
        x[:] = comm.rank
        comm.all_reduce(x, op=hpccomm.ReduceOp.AVG)  # divided once, whoever carries it out
        assert (x == (comm.size - 1) / 2).all()


def test_every_form_of_a_call_goes_by_its_arrays(comm: Communicator) -> None:
    for count in (COUNT, LARGE):
        for x, way in zip(arrays(comm, count), ("shm", "native"), strict=True):
            plan = comm.plan("all_reduce", x)
            assert plan.choice.algorithm == way
            for _ in range(2):
                reduced(comm, x, plan)
            reduced(comm, x, lambda x=x: comm.all_reduce(x, async_op=True).wait())
            x[:] = 1
            with comm.batch():
                comm.all_reduce(x)
            assert (x == comm.size).all()


def test_of_one_rank_all_arrays_are_registered_or_they_count_as_plain(comm: Communicator) -> None:
    registered, plain = arrays(comm)
    other = comm.empty(COUNT, np.float32)
    for x, out, way in (
        (registered, other, "shm"),
        (registered, plain, "native"),
        (plain, registered, "native"),
    ):
        # On another rank both may be plain.
        given = x if comm.rank or way == "shm" else np.empty(COUNT, np.float32)
        assert comm.explain("all_reduce", given, out=out).algorithm == way
        reduced(comm, given, lambda x=given, out=out: comm.all_reduce(x, out=out))


def test_a_new_result_lies_where_x_does(comm: Communicator) -> None:
    registered, plain = arrays(comm)
    for x, kind in ((registered, True), (plain, False)):
        x[:] = comm.rank
        results = [comm.all_gather(x), comm.gather(x, 1), comm.all_reduce(x, out="new")]
        results += comm.gather_v(x, 1), comm.scatter(x.reshape(comm.size, -1), 1).reshape(-1)
        for y in results:
            if y is not None:
                assert comm.explain("broadcast", y).registered == kind
        assert (results[0] == np.arange(comm.size)[:, None]).all()
        assert (results[-1] == 1).all()
        if comm.rank == 1:
            assert (results[1] == results[0]).all()


def test_a_rank_without_rows_fits_both_kinds(comm: Communicator) -> None:
    counts = [5] * (comm.size - 1) + [0]
    expected = np.repeat(np.arange(comm.size), counts)
    for x in arrays(comm, counts[comm.rank]):
        x[:] = comm.rank
        for out in arrays(comm, sum(counts)) if comm.rank == 0 else (None, None):
            got = comm.gather_v(x, 0, counts, out=out)
            assert comm.rank or (got == expected).all()
            assert (comm.all_gather_v(x, counts) == expected).all()


@pytest.mark.parametrize("form", ["call", "asynchronous", "batch", "plan", "small", "shm", "root"])
def test_a_mixture_is_refused_on_all_ranks_with_the_remedy(comm: Communicator, form: str) -> None:
    registered, plain = arrays(comm, 3 if form == "small" else COUNT)
    other = comm.dup()  # which the mismatch fails
    odd = comm.rank == comm.size - 1
    x = plain if odd else registered
    x[:] = 7

    def call() -> None:
        if form == "batch":
            with other.batch():
                other.all_reduce(x)
        elif form == "plan":
            other.plan("all_reduce", x)
        elif form == "root":  # whose result is in memory of another kind than that of the others
            other.reduce(registered, comm.size - 1, out=plain if odd else None)
        else:
            work = other.all_reduce(
                x, async_op=form == "asynchronous", algorithm="shm" if form == "shm" else None
            )
            if form == "asynchronous":
                work.wait()

    with pytest.raises(RankMismatch) as raised:
        call()
    text = str(raised.value)
    assert f"rank {comm.size - 1}: " in text
    words = "memory plain", "memory registered", "x = comm.empty(shape, dtype)", "plain ones"
    assert form == "batch" or all(each in text for each in words), text
    assert (x == 7).all()


@pytest.mark.parametrize("algorithm", ["shm", "native"])
def test_a_mixture_after_both_kinds_were_agreed_on_is_found(comm, algorithm: str) -> None:
    other = comm.dup()  # which the mismatch fails
    registered, plain = arrays(comm)

    def call() -> None:
        other.all_reduce(x, algorithm=algorithm)

    for x in (registered, plain):
        reduced(other, x, call)
    x = plain if comm.rank == 0 else registered
    if algorithm == "native":  # which takes both alike
        reduced(other, x, call)
        with pytest.raises(RankMismatch, match="memory registered"):
            other.barrier()  # the ranks compare their calls so far
    else:
        x[:] = 7
        with pytest.raises(RankMismatch, match=r"comm\.empty"):
            call()
        assert (x == 7).all()


def test_a_plan_of_uneven_blocks_takes_the_librarys_call_where_it_suits_all(comm) -> None:
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
