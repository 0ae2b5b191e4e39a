"""``hpccomm record`` becomes a program, whose calls are in the file when it has ended, however it does."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alone import python
from until import until

from hpccomm.results import recording_file

Job = Callable[..., subprocess.CompletedProcess[str]]

CALLS = """
import hpccomm, numpy, sys
with hpccomm.new_comm() as comm:
    for _ in range(10):
        comm.all_reduce(numpy.ones(1))
sys.exit(int(sys.argv[1]) if comm.rank else 0)
"""

OUTER = """
import hpccomm, subprocess, sys
with hpccomm.new_comm() as comm:
    comm.barrier()
    subprocess.run([sys.executable, "program.py", "0"], check=True)
"""

FOREVER = """
import hpccomm, numpy, time
comm = hpccomm.new_comm()
while True:
    comm.all_reduce(numpy.ones(1))
    time.sleep(0.001)
"""


def record(file: Path, *command: str) -> list[str]:
    """Return the arguments of Python."""
    return ["-m", "hpccomm", "record", "--output", str(file), "--", *command]


def test_each_run_is_added_and_its_status_is_the_programs(mpiexec: Job, tmp_path: Path) -> None:
    file, program = tmp_path / "t.h5", tmp_path / "program.py"
    program.write_text(CALLS)
    done = mpiexec(2, *record(file, sys.executable, str(program), "5"))
    assert done.returncode == 5, done.stderr
    assert f"20 calls of 2 ranks are recording0001 of {file}" in done.stderr
    assert f"hpccomm advise {file}" in done.stderr
    # What a recorded program starts runs unrecorded.
    (tmp_path / "outer.py").write_text(OUTER)
    alone = python(*record(file, sys.executable, "-m", "outer"), check=True, cwd=tmp_path)
    assert "not recorded: rank 0: another program records to" in alone.stderr
    assert "recording0002" in alone.stderr
    recordings = recording_file.read_recordings(file)
    assert [each.status for each in recordings] == ["completed"] * 2
    assert [each.calls.starts.tolist() for each in recordings] == [[0, 10, 20], [0, 1]]
    assert list(recordings[1].operations()) == ["barrier"]
    assert not list(tmp_path.glob("*.rank*"))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import mpi4py", "begins where the program starts MPI"),
        ("import hpccomm; hpccomm.new_comm().all_reduce([1], 'avg')", "rank 0 made no call that"),
    ],
)
def test_a_program_without_recorded_calls_is_not_sent_to_advise(
    tmp_path: Path, program: str, said: str
) -> None:
    done = python(*record(tmp_path / "t.h5", sys.executable, "-c", program))
    assert done.stderr.count(said) == 1, done.stderr
    if "mpi4py" in program:
        refused = python("-m", "hpccomm", "advise", str(tmp_path / "t.h5"))
        assert "no file for a program that uses neither mpi4py nor hpccomm" in refused.stderr
    assert "next: hpccomm advise" not in done.stderr
    assert (done.returncode == 0) == ("avg" not in program)


def test_a_killed_program_has_lost_less_than_five_seconds(tmp_path: Path) -> None:
    file, program = tmp_path / "t.h5", tmp_path / "program.py"
    program.write_text(FOREVER)
    process = subprocess.Popen([sys.executable, *record(file, sys.executable, str(program))])
    try:
        part = recording_file.part_path(file, 0)
        until(part.exists)
        until(lambda: recording_file.joined(file).calls.count)
        killed = time.perf_counter_ns()  # one clock for all processes
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (recording,) = recording_file.read_recordings(file)
    assert recording.status == "interrupted"
    assert 0 < killed - recording.calls["end"].max() < 5e9
    assert list(recording.operations()) == ["all_reduce"]
