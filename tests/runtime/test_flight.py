"""Records of calls, conclusions about waiting ones, and dumps."""

import gc
import json
import logging
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alone import python
from conftest import Mpiexec

import hpccomm
from hpccomm.errors import CommunicationError, PeerLost, RankMismatch
from hpccomm.gradients import GradientSync
from hpccomm.runtime import recorder
from hpccomm.testing import run_ranks


def of(comm: hpccomm.Communicator) -> list[recorder.CallRecord]:
    """Return what is recorded of a rank's calls on a communicator."""
    origin = comm._core.calls.origin  # a dump has all ranks of a process
    return [entry for entry in recorder.calls() if entry[recorder.ORIGIN] == origin]


def test_collectives_have_the_same_number_on_all_ranks_and_every_call_its_place() -> None:
    def main(comm: hpccomm.Communicator) -> list[tuple[str, int, int, str]]:
        x = np.ones(4)
        comm.barrier()
        before = of(comm)[-1][recorder.NUMBER]
        comm.all_reduce(x)
        if comm.rank == 0:  # messages do not count, so ranks that send none keep step
            comm.send(x, 1)
        elif comm.rank == 1:
            comm.recv(x, 0)
        comm.gather_v(x[: comm.rank])
        work = comm.broadcast(x, async_op=True)
        comm.plan("all_gather", x)()
        work.wait()
        comm.all_gather_object(comm.rank)
        return [
            (
                entry[recorder.LABEL].name,
                entry[recorder.NUMBER] - before,
                entry[recorder.SEQUENCE],
                recorder.described(entry[recorder.SITE]),
            )
            for entry in of(comm)
            if entry[recorder.NUMBER] > before or not entry[recorder.NUMBER]
        ]

    recorded = run_ranks(3, main)
    numbered = [[(name, n) for name, n, _, _ in each if n > 0] for each in recorded]
    assert numbered[0] == numbered[1] == numbered[2]
    assert [n for _, n in numbered[0]] == list(range(1, len(numbered[0]) + 1))
    assert [name for name, _ in numbered[0] if name in ("all_reduce", "broadcast", "gather_v")]
    assert "send" in [name for name, *_ in recorded[0]]
    for each in recorded:
        sequences = [sequence for _, _, sequence, _ in each]
        assert sequences == sorted(set(sequences))
        assert all("test_flight.py line" in site for name, n, _, site in each if n > 0), each


def test_a_place_in_hpccomm_is_the_programs_line_that_led_there_and_no_older_one() -> None:
    """Calls of a training name its line. A later one from hpccomm.testing, say, does not."""
    scope: dict[str, Any] = {}
    later = "def later(comm, x):\n    comm.all_reduce(x)\n"
    exec(compile(later, f"{recorder.PACKAGE}testing/elsewhere.py", "exec"), scope)

    def main(comm: hpccomm.Communicator) -> list[tuple[str, str]]:
        before = len(of(comm))
        x = np.ones(8, np.float32)
        training = GradientSync(comm, {"x": x})
        training.ready("x", x)
        training.wait()
        training.close()
        scope["later"](comm, x)
        return [
            (
                entry[recorder.LABEL].name,
                recorder.described(entry[recorder.SITE], entry[recorder.BEGIN]),
            )
            for entry in of(comm)[before:]
        ]

    for *of_training, (_, last) in run_ranks(2, main):
        assert of_training
        assert all("test_flight.py line" in site for _, site in of_training), of_training
        assert last == ""


def test_the_last_calls_are_kept_and_no_more() -> None:
    def main(comm: hpccomm.Communicator) -> None:
        x = np.ones(1)
        for _ in range(recorder.CAPACITY + 10):
            comm.all_reduce(x)
        entries = of(comm)
        assert len(entries) == len(recorder.calls()) == recorder.CAPACITY
        numbers = [entry[recorder.NUMBER] for entry in entries]
        assert numbers == list(range(numbers[0], numbers[0] + recorder.CAPACITY))
        assert all(
            entry[recorder.ENDED] >= 0 and entry[recorder.ERROR] is None for entry in entries
        )

    run_ranks(1, main)


def caught(function: Callable[[], object]) -> CommunicationError:
    """Return the error of a call that must fail between the ranks."""
    with pytest.raises(CommunicationError) as raised:
        function()
    return raised.value


FAILS = """
import sys, tempfile
import hpccomm, numpy as np
from hpccomm.runtime import dump
from hpccomm.testing import run_ranks

folder, tempfile.tempdir = sys.argv[1:]
dump.process.directory, dump.process.job = folder, "job"  # else the first communicator says where

def main(comm):
    try:
        comm.recv_object(0, tag=np.int64(3), timeout=0.1)  # which is no number to JSON
    except hpccomm.CollectiveTimeout:
        print("told")

run_ranks(1, main)
run_ranks(1, main)
if tempfile.tempdir != "/proc/none":
    assert str(dump.dump().parent) == f"{dump.process.directory}/job"  # as later ones
"""


@pytest.mark.parametrize(
    "where", ["{}/own", "/proc/none", "{}/file/folder", "{}/" + "long" * 64, "none at all"]
)
def test_a_record_that_cannot_be_written_lies_elsewhere_and_hides_no_failure(
    tmp_path: Path, where: str
) -> None:
    """Root may write into every folder of a disk: these refuse it, too."""
    (tmp_path / "file").touch()
    folder, temporary = where.format(tmp_path), str(tmp_path / "temporary")
    if where == "none at all":
        folder = temporary = "/proc/none"
    done = python("-c", FAILS, folder, temporary)
    assert (done.returncode, done.stdout) == (0, "told\n" * 2), done.stderr
    (line,) = [each for each in done.stderr.splitlines() if "the last calls" in each]
    files = [*tmp_path.glob("own/job/rank_0.json")]
    files += tmp_path.glob("temporary/hpccomm-dumps-*/job/rank_0.json")
    if where == "none at all":
        assert "could not be written" in line
        assert not files
        return
    (file,) = files
    assert f"the last calls are in {file.parent}" in line
    assert (f"as {folder} cannot be written to" in line) == ("own" not in where)
    assert json.loads(file.read_text())["entries"]


def test_one_rank_says_where_the_records_are_if_not_where_they_belong(
    tmp_path: Path, mpiexec: Mpiexec
) -> None:
    program = """
from mpi4py import MPI
import hpccomm
from hpccomm.backends.bootstrap import presence
from hpccomm.runtime import dump

presence.ANSWER_SECONDS = 60  # a rank that does not answer for long says it, too
with hpccomm.new_comm():
    dump.write("what fails on every rank")
    MPI.COMM_WORLD.Barrier()
"""
    job = mpiexec(2, "-c", program, env={"HPCCOMM_DUMP_DIR": "/proc", "TMPDIR": str(tmp_path)})
    assert job.returncode == 0, job.stderr
    assert len({*tmp_path.glob("hpccomm-dumps-*/*/rank_*.json")}) == 2
    assert job.stderr.count("the last calls are in") == 1, job.stderr
    assert job.stderr.count("as /proc cannot be written to") == 1


def test_sigusr1_writes_the_calls_of_a_rank_that_is_blocked_in_the_library(
    tmp_path: Path, mpiexec: Mpiexec
) -> None:
    program = """
import json, os, pathlib, signal, time
from mpi4py import MPI
import numpy as np
import hpccomm

# The first communicators of the ranks differ: all write into one folder nevertheless.
hpccomm.new_comm(mpi_comm=MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank))
hpccomm.dump()

def written():
    (file,) = pathlib.Path(os.environ["HPCCOMM_DUMP_DIR"]).glob("*/rank_0.json")
    return json.loads(file.read_text())

def ask_until_it_is_blocked(other):
    until, said = time.monotonic() + 50, written()
    while (last := (said["entries"] or [{}])[-1]).get("state") != "started" or (
        last["profiling_name"] != "mpi:all_reduce"
    ):
        time.sleep(0.3)  # time to get from Python into the library
        os.kill(other, signal.SIGUSR1)
        while written()["time"] == said["time"]:
            assert time.monotonic() < until, said
            time.sleep(0.01)
        said = written()
    print(json.dumps(said))  # the file may be written once more

def step(comm, x):
    if comm.rank == 1:
        ask_until_it_is_blocked(other)
    comm.all_reduce(x)

comm = hpccomm.new_comm(timeout=60)
x = np.ones(4)
comm.all_reduce(x)
other = comm.all_gather_object(os.getpid())[0]
step(comm, x)
"""
    done = mpiexec(2, "-c", program, env={"HPCCOMM_DUMP_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.iterdir())) == 1
    assert len(list(tmp_path.glob("*/rank_*.json"))) == 2
    dump = json.loads(done.stdout)
    assert dump["reason"] == "SIGUSR1"
    last = dump["entries"][-1]
    assert last["frames"][0]["name"] == "step"
    assert any("all_reduce" in stack for stack in dump["stacks"])


def test_no_garbage_is_collected_while_the_interpreter_holds_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CPython 3.11 would wait for ever, now and then (issue 106883)."""
    look, enabled = sys._current_frames, []  # a name of CPython's, which shows the moment
    monkeypatch.setattr(sys, "_current_frames", lambda: [enabled.append(gc.isenabled()), look()][1])
    assert threading.get_ident() in recorder.frames()
    assert (enabled, gc.isenabled()) == ([False], True)
    gc.disable()
    try:
        recorder.frames()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow("three times, a rank must have left a call for two seconds")
def test_a_call_that_ends_by_another_exception_ends_for_the_others() -> None:
    met = threading.Barrier(2)
    own = hpccomm.WaitTimeout("own", operation="recv")
    raised = [KeyboardInterrupt(), ValueError("a handler's"), own]

    def ends_a_call(comm: hpccomm.Communicator, error: BaseException) -> None:
        def hook(_: object) -> None:
            raise error

        comm.register_pre_hook(hook)
        with pytest.raises(type(error)):
            comm.all_reduce(np.ones(4))

    def main(comm: hpccomm.Communicator) -> list[CommunicationError]:
        told = []
        for error in raised:
            part = comm.dup()
            part.all_reduce(np.ones(4))
            if comm.rank == 1:
                ends_a_call(part, error)  # it is caught, and the program goes on with `comm`
            else:
                told.append(caught(lambda part=part: part.all_reduce(np.ones(4))))
            met.wait(60)
            comm.barrier()
        return told

    begin = time.perf_counter()
    told, _ = run_ranks(2, main)
    assert time.perf_counter() - begin < 30  # of three deadlines of 60
    for error, why in zip(told, raised, strict=True):
        assert type(error) is PeerLost
        assert error.ranks == (1,)
        assert f"rank 1 on node {platform.node()}" in str(error)
        kind = "own" if why is own else type(why).__name__
        assert f"has given up: {kind}" in str(error)
        assert "has not called" not in str(error)


class Raising(logging.Handler):
    """A handler of the program's."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("its disk is full")


def test_a_logging_handler_that_raises_ends_neither_a_call_nor_the_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def main(comm: hpccomm.Communicator) -> CommunicationError:
        comm.register_abort_hook(lambda _: 1 / 0)  # which is logged, whoever ends the communicator
        x = np.ones(4)
        return caught(lambda: comm.all_gather_object(x) if comm.rank else comm.all_reduce(x))

    logger, handler = logging.getLogger("hpccomm"), Raising()
    logger.addHandler(handler)
    try:
        assert {type(each) for each in run_ranks(2, main)} == {RankMismatch}
    finally:
        logger.removeHandler(handler)
    assert any(thread.name == "hpccomm-service" for thread in threading.enumerate())
    assert "a logging handler failed on it: OSError('its disk is full')" in capfd.readouterr().err
    # A record of this failure would lie here: `conftest` sets HPCCOMM_DUMP_DIR to nothing.
    assert not [*tmp_path.iterdir()]
