"""Records of calls, conclusions about waiting ones, and dumps."""

import gc
import json
import logging
import math
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from alone import python
from conftest import Mpiexec
from until import until

import hpccomm
from hpccomm.errors import CommunicationError, PeerLost, RankMismatch
from hpccomm.gradients import GradientSync
from hpccomm.runtime import recorder
from hpccomm.runtime.service import service
from hpccomm.testing import run_ranks

Call = tuple[str, int, int, str]
"""Name, number and sequence of a call, and the program's line."""


def of(comm: hpccomm.Communicator) -> list[recorder.CallRecord]:
    """Return what is recorded of a rank's calls on a communicator."""
    origin = comm._core.calls.origin  # a dump has all ranks of a process
    return [entry for entry in recorder.calls() if entry[recorder.ORIGIN] == origin]


def described(entry: recorder.CallRecord) -> Call:
    site = recorder.described(entry[recorder.SITE], entry[recorder.BEGIN])
    return entry[recorder.LABEL].name, entry[recorder.NUMBER], entry[recorder.SEQUENCE], site


def test_collectives_have_the_same_number_on_all_ranks_and_every_call_its_place() -> None:
    def main(comm: hpccomm.Communicator) -> list[Call]:
        x = np.ones(4)
        comm.barrier()
        before = len(of(comm))
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
        return [described(entry) for entry in of(comm)[before:]]

    recorded = run_ranks(3, main)
    numbered = [[(name, number) for name, number, *_ in each if number] for each in recorded]
    assert numbered[0] == numbered[1] == numbered[2]
    names, numbers = zip(*numbered[0], strict=True)
    assert [*numbers] == [*range(numbers[0], numbers[0] + len(numbers))]
    assert {"all_reduce", "gather_v", "broadcast"} <= {*names}
    assert [name for each in recorded for name, number, *_ in each if not number] == [
        "send",
        "recv",
    ]
    for each in recorded:
        sequences = [sequence for _, _, sequence, _ in each]
        assert sequences == sorted(set(sequences))
        assert all("test_flight.py line" in site for *_, site in each), each


def test_a_place_in_hpccomm_is_the_programs_line_that_led_there_and_no_older_one() -> None:
    """Calls of a training name its line. A later one from hpccomm.testing, say, does not."""
    scope: dict[str, Any] = {}
    later = "def later(comm, x):\n    comm.all_reduce(x)\n"
    exec(compile(later, f"{recorder.PACKAGE}testing/elsewhere.py", "exec"), scope)

    def main(comm: hpccomm.Communicator) -> list[str]:
        before, x = len(of(comm)), np.ones(8, np.float32)
        training = GradientSync(comm, {"x": x})
        training.ready("x", x)
        training.wait()
        training.close()
        scope["later"](comm, x)
        return [described(entry)[-1] for entry in of(comm)[before:]]

    for *of_training, last in run_ranks(2, main):
        assert of_training
        assert all("test_flight.py line" in site for site in of_training), of_training
        assert last == ""


def test_the_last_calls_are_kept_and_no_more() -> None:
    def main(comm: hpccomm.Communicator) -> None:
        for _ in range(recorder.CAPACITY + 10):
            comm.all_reduce(np.ones(1))
        entries = of(comm)
        assert len(entries) == len(recorder.calls()) == recorder.CAPACITY
        first = entries[0][recorder.NUMBER]
        for number, entry in enumerate(entries, first):
            assert (entry[recorder.NUMBER], entry[recorder.ERROR]) == (number, None)
            assert entry[recorder.ENDED] >= 0

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
    assert dump.meaning() == ""  # it is said where they are
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
    while ("mpi:all_reduce", "started") not in [(e["profiling_name"], e["state"]) for e in said["entries"]]:
        time.sleep(0.3)  # nothing shows when it has come from Python's part of the call into the library
        os.kill(other, signal.SIGUSR1)
        before = said["time"]
        while said["time"] == before:
            assert time.monotonic() < until, said
            time.sleep(0.01)
            said = written()
    print(json.dumps(said))  # the file may be written once more

def step(comm, x):
    if comm.rank == 1:
        ask_until_it_is_blocked(other)
    comm.all_reduce(x)

comm = hpccomm.new_comm(timeout=60)
other = comm.all_gather_object(os.getpid())[0]
step(comm, np.ones(4))
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


class Watched:
    """Counts how often it is looked after, and with it all communicators."""

    looks = 0

    def look(self, now: float) -> None:
        self.looks += 1


def test_an_error_of_a_compiled_package_is_said_to_be_raised_at_the_programs_line() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        h5py.File("/not/there")
    files = [each.path for each in raised.traceback]
    assert str(files[-1]).endswith(".pyx")  # else h5py is no example any more
    assert "test_flight.py line" in recorder.described(recorder.site_of_traceback(raised.tb))


@pytest.mark.parametrize("setting", ["raise", "report"])
def test_a_late_rank_is_told_of_a_deadline_unless_the_call_waits_on(
    setting: str, capfd: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def call(comm: hpccomm.Communicator, timeout: float) -> type[BaseException] | None:
        with pytest.raises(CommunicationError) if setting == "raise" else nullcontext() as raised:
            comm.all_reduce(np.ones(4), timeout=timeout)
        return raised and raised.type

    def main(comm: hpccomm.Communicator) -> type[BaseException] | None:
        comm.barrier()
        if comm.rank == 0:
            ended = call(comm, 0.05)
            over.set()
            return ended
        until(lambda: over.is_set() or "the call waits on" in capfd.readouterr().err)
        watched = Watched()
        service.watch(watched.look)
        until(lambda: watched.looks > 1)  # what it is told, it has taken in
        return call(comm, 60)

    ended = run_ranks(2, main, options=hpccomm.CommOptions(on_timeout=setting))
    failed = [hpccomm.CollectiveTimeout, hpccomm.CommunicatorAborted]
    assert ended == (failed if setting == "raise" else [None, None])


@pytest.mark.slow("three times, a rank must have left a call for two seconds")
def test_a_call_that_ends_by_another_exception_ends_for_the_others() -> None:
    own = hpccomm.WaitTimeout("own", operation="recv")
    raised = {"KeyboardInterrupt": KeyboardInterrupt(), "ValueError": ValueError(), "own": own}

    def main(comm: hpccomm.Communicator, error: BaseException) -> CommunicationError | None:
        def hook(_: object) -> None:
            raise error

        part, x = comm.dup(), np.ones(4)
        part.all_reduce(x)
        if comm.rank == 0:
            told = caught(lambda: part.all_reduce(x, timeout=math.inf))
        else:
            part.register_pre_hook(hook)
            with pytest.raises(type(error)):
                part.all_reduce(x)
            told = None
        comm.barrier()  # it is caught, and the program goes on with `comm`
        return told

    for kind, error in raised.items():
        told, _ = run_ranks(2, main, error)
        assert type(told) is PeerLost
        assert told.ranks == (1,)
        assert f"rank 1 on node {platform.node()}" in str(told)
        assert f"has given up: {kind}" in str(told)
        assert "has not called" not in str(told)


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
