"""What a recording holds of each kind of call, against a clock beside it that the program reads itself."""

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccomm
from hpccomm.gradients import GradientSync
from hpccomm.results import recording_file
from hpccomm.results.recording import ASYNC, STEP, Recording

CLOCK_NS = 2
"""Times are rounded to whole nanoseconds."""


@pytest.fixture
def folder(comm: Any, tmp_path: Path) -> Path:
    """Give one folder to all ranks."""
    return Path(comm.broadcast_object(str(tmp_path)))


class Timed:
    """Makes calls, and notes when each was made and was done."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []

    def __call__(self, operation: str, call: Any, *args: Any, **keywords: Any) -> Any:
        begin = time.perf_counter()
        result = call(*args, **keywords)
        self.spans.append((operation, begin, time.perf_counter()))
        return result


def of_rank(recording: Recording, rank: int) -> list[Any]:
    """Return the calls of a rank, with the fields of their signatures."""
    where = recording.calls.of_rank(rank)
    columns = {name: recording.calls[name][where].tolist() for name in recording.calls.columns}
    rows = []
    for row in zip(*columns.values(), strict=True):
        rows.append(SimpleNamespace(**dict(zip(columns, row, strict=True))))
        signature = recording.signatures[rows[-1].signature]
        for name in ("operation", "mode", "nbytes", "group"):
            setattr(rows[-1], name, getattr(signature, name))
    return rows


def beside(comm: Any, recorder: Any, spans: list[tuple[float, float]]) -> Iterator[Any]:
    """Give rank 0 each rank's calls, and the begins and ends that the rank read, in nanoseconds."""
    for rank, read in enumerate(comm.gather_object(spans) or ()):
        yield of_rank(recorder.recording, rank), [(begin * 1e9, end * 1e9) for begin, end in read]


def every_call(comm: Any, made: Timed) -> None:
    """Make a call of each kind, for the second time: the first ones also agree on it."""
    x, out, other = np.ones(6), np.empty(6), 1 - comm.rank
    plan = comm.plan("all_reduce", x)
    messages = comm.plan("send_recv", x, dst=other, out=out, src=other)
    made("all_reduce", comm.all_reduce, x)
    made("broadcast", comm.broadcast, np.ones((2, 3)))
    made("all_reduce", comm.all_reduce, x, algorithm="ring")
    made("barrier", comm.barrier)
    made("send_recv", comm.send_recv, x, other, out, other)
    made("all_reduce", plan)
    made("send_recv", messages)
    made("all_reduce", comm.all_reduce, 1.0)
    made("broadcast_object", comm.broadcast_object, "an object")
    made("all_gather_v", comm.all_gather_v, x, [6, 6])
    with pytest.raises(hpccomm.UsageError):  # it is refused before it is made
        comm.all_reduce("no array")


@pytest.mark.parametrize("in_file", [True, False])
def test_each_call_is_recorded_once_where_and_when_it_was_made(comm, folder, in_file: bool) -> None:
    if comm.size != 2:
        pytest.skip("each of two ranks is the other's peer")
    every_call(comm, Timed())
    made, path = Timed(), folder / "t.h5"
    with comm.record(path if in_file else None) as recorder:
        every_call(comm, made)
    everyone = comm.gather_object(made.spans)
    if everyone is None:
        return
    recording = recording_file.read_recordings(path)[-1] if in_file else recorder.recording
    assert recording is not None
    assert recording.status == "completed"
    assert [each.ranks for each in recording.groups] == [(0, 1)]
    assert recording.groups[0].name == comm.name
    assert [each.name for each in folder.iterdir()] == (["t.h5"] if in_file else [])
    for rank, spans in enumerate(everyone):
        calls = [each for each in of_rank(recording, rank) if each.operation != "plan"]
        assert [each.operation for each in calls] == [name for name, *_ in spans]
        for each, (_, begin, end) in zip(calls, spans, strict=True):
            assert begin * 1e9 - CLOCK_NS <= each.begin <= each.end <= end * 1e9 + CLOCK_NS
            assert each.waited == each.end - each.begin
            assert not each.failed
        whole = [each for each in calls if (each.operation, each.nbytes) == ("all_reduce", 48)]
        assert len(whole) == 3
        assert len({each.buffer for each in whole}) == 1
    numbers = [[each.number for each in of_rank(recording, rank)] for rank in (0, 1)]
    assert numbers[0] == numbers[1]
    assert sum(number > 0 for number in numbers[0]) == len(set(numbers[0]) - {0})


def test_an_asynchronous_call_has_when_it_was_asked_for_and_how_long_it_blocked(comm: Any) -> None:
    x, spans = np.ones(1 << 18), []
    with comm.record() as recorder:
        for _ in range(3):
            work = comm.all_reduce(x, async_op=True)
            if comm.rank == 0:
                time.sleep(0.05)  # rank 0 is late, and the others wait: their time is recorded
            asked = time.perf_counter()
            work.wait()
            spans.append((asked, time.perf_counter()))
            comm.barrier()
            recorder.step()
    for rows, own in beside(comm, recorder, spans):
        calls = [each for each in rows if each.mode == ASYNC]
        assert [each.operation for each in rows].count(STEP) == 3
        for each, (asked, end) in zip(calls, own, strict=True):
            assert asked - CLOCK_NS <= each.asked
            assert max(each.asked + each.waited, each.end) <= end + CLOCK_NS
            assert each.waited >= each.end - each.asked


def test_gradients_are_reduced_beside_the_program_which_waits_in_the_end(comm: Any) -> None:
    model = {name: np.zeros(1 << 17) for name in "ab"}
    sync = GradientSync(comm, model, bucket_bytes=1 << 20, first_bucket_bytes=1 << 20)
    steps = []
    with comm.record() as recorder:
        for _ in range(3):
            sync.ready("b", np.ones(1 << 17))
            time.sleep(0.03)  # another gradient is computed, in the time of the first call
            asked = time.perf_counter()
            sync.ready("a", np.ones(1 << 17))
            sync.wait()
            steps.append((asked, time.perf_counter()))
    sync.close()
    for rows, own in beside(comm, recorder, steps):
        marks = [each.begin for each in rows if each.operation == STEP]
        assert len(marks) == 3
        calls = [each for each in rows if each.mode == ASYNC]
        for asked, end in own:
            assert sum(asked <= mark <= end for mark in marks) == 1
            mine = [each for each in calls if asked <= each.asked <= end]
            assert mine
            assert sum(each.waited for each in mine) <= end - asked + CLOCK_NS
            assert not any(each.waited for each in mine if each.end < asked)


def test_all_communicators_are_recorded_also_those_made_meanwhile(comm: Any) -> None:
    before = comm.split(comm.rank, name="before")
    with comm.record() as recorder:
        before.barrier()
        with comm.split(0, comm.size - comm.rank, name="reversed") as made:
            made.barrier()
    before.barrier()
    if comm.rank == 0:
        groups = {each.name: each.ranks for each in recorder.recording.groups}
        assert groups["reversed"] == tuple(reversed(range(comm.size)))
        for rank in range(comm.size):
            rows = of_rank(recorder.recording, rank)
            names = [recorder.recording.groups[each.group].name for each in rows]
            assert names.count("before") == 1
            made_by = [(each.operation, name) for each, name in zip(rows, names, strict=True)]
            assert [name for made, name in made_by if made == "barrier"] == ["before", "reversed"]
    before.finalize()


@pytest.mark.mpi(min_size=2)
def test_a_recorder_that_has_ended_says_on_all_ranks_who_kept_others_waiting(comm, folder) -> None:
    late = comm.size - 1
    for path in (None, folder / "t.h5"):
        with comm.record(path) as recorder:
            assert recorder.lateness is None
            for _ in range(5):
                if comm.rank == late:
                    time.sleep(0.05)  # for which the others are kept waiting
                comm.barrier()
        lateness = recorder.lateness
        assert lateness.collectives.tolist() == [5] * comm.size
        assert lateness.last[late] >= 4
        # Of a sleep others wait at least four fifths, unless they are late themselves.
        assert lateness.kept_waiting[late] > 0.2e9 * (comm.size - 1) * 4 / 5
        assert str(lateness).splitlines()[1].split()[0] == str(late)
    assert comm.stats()["barrier", "0 B"].calls == 10


def test_a_file_that_cannot_be_written_is_refused_on_all_ranks(comm: Any, folder: Path) -> None:
    with pytest.raises(hpccomm.ResultsError, match="rank 0"):
        comm.record(folder / "missing" / "t.h5")
    comm.record().close()


def test_a_part_that_one_rank_has_lost_is_told_on_all_ranks(comm: Any, folder: Path) -> None:
    recorder, last = comm.record(folder / "t.h5"), comm.size - 1
    comm.barrier()
    if comm.rank == last:
        recording_file.part_path(folder / "t.h5", last).unlink()
    with pytest.raises(hpccomm.ResultsError, match=f"rank {last}: .*No such file"):
        recorder.close()


def test_parts_that_cannot_be_removed_are_told_on_all_ranks(comm: Any, folder, monkeypatch) -> None:
    def refused(*_: Any, **__: Any) -> None:  # as in a sticky folder, where they are another user's
        raise PermissionError(errno.EPERM, "planted")

    recorder = comm.record(folder / "t.h5")
    comm.barrier()
    recorder.leave("failed: planted")
    comm.barrier()
    # The tests' user is root, whom no sticky folder refuses.
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(hpccomm.ResultsError, match="rank 0"):
        comm.record(folder / "t.h5")


def test_an_exception_leaves_what_was_recorded(mpi_comm: MPI.Comm, folder: Path) -> None:
    def fails() -> None:
        with hpccomm.new_comm(mpi_comm=mpi_comm) as comm, comm.record(folder / "t.h5"):
            comm.barrier()
            raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError):
        fails()
    mpi_comm.Barrier()
    if mpi_comm.rank == 0:
        (recording,) = recording_file.read_recordings(folder / "t.h5")
        assert recording.status.startswith("failed: ZeroDivisionError: planted")
        assert recording.calls.count == mpi_comm.size
    with hpccomm.new_comm(mpi_comm=mpi_comm) as comm:  # whose end is that of its recording
        comm.record(folder / "t.h5")
        comm.barrier()  # the parts that were left are in the file now
    if mpi_comm.rank == 0:
        first, second = recording_file.read_recordings(folder / "t.h5")
        assert first.calls.count == second.calls.count
        assert list(second.operations()) == ["barrier"]
