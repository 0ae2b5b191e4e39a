"""A replay makes the calls of the recorded program: what is recorded of both is compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings_made import stepped

import hpccomm
from hpccomm import ANY, Communicator
from hpccomm.results import recording_file
from hpccomm.results.recording import STEP
from hpccomm.testing import run_ranks
from hpccomm.tools.main import main

STEPS = 6

pytestmark = pytest.mark.mpi(min_size=2)  # the programs have messages to other ranks


def step(comm: Communicator, other: Communicator) -> None:
    """Make calls of all kinds."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    comm.all_reduce(np.ones((8, 4), np.float32))
    later = other.all_reduce(np.ones(5000), hpccomm.ReduceOp.MAX, async_op=True)
    comm.reduce(np.ones(7, np.int32), 1, op=hpccomm.ReduceOp.MIN)
    comm.broadcast(np.ones(9), 1)
    comm.all_gather(np.ones(3), out=np.empty((n, 3)))
    comm.all_gather(comm.empty(3, np.float64), out=comm.empty((n, 3), np.float64))
    comm.all_gather_v(np.ones(rank + 1), [each + 1 for each in range(n)])
    comm.reduce_scatter(np.ones(4 * n), out=np.empty(4))
    comm.all_to_all(np.ones((n, 5)), out=np.empty((n, 5)))
    rows = [each + rank for each in range(n)]
    comm.all_to_all_v(np.ones(sum(rows)), rows, rows)
    comm.gather(np.ones(6), 1, out=np.empty((n, 6)) if rank == 1 else None)
    comm.scatter(np.ones((n, 6)) if rank == 0 else None, out=np.empty(6))
    comm.scan(np.ones(3), out=np.empty(3), exclusive=True)
    comm.all_reduce(np.ones(4), hpccomm.premul_sum(0.5))
    comm.neighbor_all_to_all(np.ones(6), [right, left, None], out=np.empty(6))
    comm.barrier()
    later.wait()
    comm.send_recv(np.ones(10 + rank), right, np.empty(10 + left), left, 3)
    with comm.batch():
        comm.send(np.ones(100), right, 1)
        comm.recv(np.empty(100), left, 1)
    with comm.batch():
        comm.all_reduce(np.ones(2))
        comm.broadcast(np.ones(2), 0)
    came = comm.recv(np.empty(3), left, 5, async_op=True)
    comm.send(np.ones(3), right, 5)
    came.wait()
    comm.broadcast_object({"x": list(range(40))}, 1)
    comm.all_gather_object("a text that is not so short")
    if rank == 0:
        comm.send_object("y" * 300, 1, 2)
    elif rank == 1:
        comm.recv_object(0, 2)


def sequence(path: Path, rank: int, ranks: int) -> list[Any]:
    """Return the calls of a rank, without marks: as they are recorded but for their times and places."""
    recording = recording_file.read_recordings(path)[-1]
    names = [tuple(r for r in each.ranks if r < ranks) for each in recording.groups]
    chosen = recording.calls["signature"][recording.calls.of_rank(rank)]
    each = [recording.signatures[number] for number in chosen]
    return [
        (one.operation, names[one.group], one.nbytes, one.mode, one.values, one.site)
        for one in each
        if one.operation != STEP
    ]


def record(comm: Communicator, path: Path, make: Callable[[], object], steps: int = STEPS) -> None:
    with comm.record(path) as recorder:
        for _ in range(steps):
            make()
            recorder.step()


def program(comm: Communicator, path: Path) -> None:
    with comm.dup() as other:
        record(comm, path, lambda: step(comm, other))


@pytest.fixture
def files(comm: Communicator, tmp_path: Path) -> tuple[Path, Path]:
    """Give the paths of a recording and of a replay, the same on all ranks."""
    folder = Path(comm.broadcast_object(str(tmp_path)))
    return folder / "t.h5", folder / "r.h5"


def replay(*words: object) -> int:
    return main(["replay", *map(str, words), "--timeout", "9"])


def test_a_replay_makes_the_recorded_calls(comm, files, capsys) -> None:
    program(comm, files[0])
    assert replay(files[0], "--output", files[1], "--warm-up", 1) == 0
    if comm.rank == 0:
        assert "left out" not in capsys.readouterr().out
        for rank in range(comm.size):
            due, made = (sequence(each, rank, comm.size) for each in files)
            assert made == due[len(due) // STEPS :]  # the first mark begins the first step


def test_fewer_ranks_leave_out_what_is_of_the_others(comm, files, capsys) -> None:
    if comm.size != 2:
        pytest.skip("two ranks of three")
    if comm.rank == 0:
        run_ranks(3, program, files[0])
    comm.barrier()
    assert replay(files[0], "--output", files[1], "--without-gaps", "--steps", 12) == 0
    if comm.rank == 0:
        text = capsys.readouterr().out
        assert "2 ranks of 3" in text
        assert "left out" not in text
        made = sequence(files[1], 1, comm.size)
        gathered = [each[4]["count"] for each in made if each[0] == "all_gather_v"]
        assert gathered == [[1, 2]] * 12
        ring = [(each[4]["dst"], each[4]["src"]) for each in made if each[0] == "send_recv"]
        assert ring == [(None, 0)] * 12


def test_algorithms_take_turns(comm: Communicator, files: tuple[Path, Path], capsys) -> None:
    x = np.ones(64)
    record(comm, files[0], lambda: [comm.all_reduce(x), comm.barrier()])
    assert replay(files[0], "--output", files[1], "--algorithm", "recorded,ring") == 0
    assert replay(files[0], "--algorithm", "bruck") == 2
    if comm.rank == 0:
        text, error = capsys.readouterr()
        assert "Algorithms: ring, taken by all_reduce" in text
        assert "--algorithm bruck: no call of these steps has it" in error
        due, *_ = sequence(files[0], 0, comm.size)
        made = [each for each in sequence(files[1], 0, comm.size) if each[0] == "all_reduce"]
        ways = [each[4]["algorithm"] for each in made]
        assert ways == [due[4]["algorithm"], "ring"] * (STEPS - 1)


def test_a_wait_for_asynchronous_calls_is_not_counted_as_a_replayed_call(comm, files) -> None:
    large, small = np.ones(1 << 19), np.ones(2)

    def make() -> None:
        later = comm.all_reduce(large, async_op=True)
        comm.all_reduce(small)
        later.wait()

    record(comm, files[0], make)
    assert replay(files[0], "--output", files[1]) == 0
    if comm.rank == 0:
        made = [each[0] for each in sequence(files[1], 0, comm.size)]
        assert made.count("all_reduce") == 2 * (STEPS - 1)


def test_ranks_and_steps_may_have_no_calls(comm, files, capsys) -> None:
    alone, turns = comm.split_ranks([0]), iter(range(STEPS))
    record(comm, files[0], lambda: alone and next(turns) % 2 == 0 and alone.all_reduce(np.ones(2)))
    assert replay(files[0]) == 0
    counted = f" {0.4 / comm.size:.1f}  "
    assert comm.rank or counted in capsys.readouterr().out.split("all_reduce")[-1]


def test_what_a_recording_does_not_say_is_left_out(comm, files, capsys) -> None:
    x, own = np.ones(4), np.zeros(1)

    def make() -> None:
        comm.all_reduce(x, op=lambda a, b: a + b)
        comm.all_reduce(x)
        if comm.rank == 0:
            comm.send(x, 1)
        elif comm.rank == 1:
            comm.recv(None, ANY)
        with comm.window(own) as window:
            window.put(np.ones(1), 0)

    record(comm, files[0], make)
    assert replay(files[0]) == 0
    if comm.rank == 0:
        text = capsys.readouterr().out
        assert f"{5 * comm.size} calls, all_reduce: its op is a function" in text
        assert "5 calls, recv: " in text
        assert "put: it moves" in text


def test_what_cannot_be_replayed_is_refused(comm, files, capsys) -> None:
    if comm.rank == 0:
        recording_file.write(files[0], stepped(1, 4, lambda *_: 1000, 1000))
    comm.barrier()
    assert replay(files[0]) == 2
    assert replay(files[0], "--run", "recording0002") == 2
    if comm.rank == 0:
        error = capsys.readouterr().err
        assert f"is of 1 rank, and this job has {comm.size}; start 1 or fewer" in error
        assert "'recording0002'; it has recording0001" in error
