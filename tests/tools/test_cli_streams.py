"""The command line where its streams are closed, full or cut off, and under a launcher."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from damage import called

from hpccomm.backends.bootstrap.mpi import load
from hpccomm.results import reader

from ..conftest import launch_environment

CLEAN = launch_environment()
PERF = "perf all_reduce -b 4 -e 1M -f 64 -n 2 --backend loopback"


def ran(command: list[str], **options: Any) -> tuple[int, str, str]:
    """Run a command outside of any job; give status, output and errors."""
    options = {"stdout": subprocess.PIPE, "env": CLEAN} | options
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """Run a line of shell in which ``hpccomm`` is the program."""
    defined = f'hpccomm() {{ "{sys.executable}" -m hpccomm "$@"; }}; set -o pipefail\n{line}'
    return ran(["bash", "-c", defined], env=CLEAN | environment)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Give a stored run, and what it printed."""
    path = tmp_path_factory.mktemp("run") / "run.h5"
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - CLEAN.keys():
            patch.delenv(name)
        status, printed, errors = called(*PERF.split(), "-I", "1", "--output", str(path))
    assert (status, errors) == (0, "")
    return path, printed


@pytest.mark.parametrize(
    "verb",
    ["--help", PERF, *(pytest.param(verb, marks=pytest.mark.thorough) for verb in ("show {}", "export {} --format csv"))],
)  # fmt: skip
def test_streams_that_take_nothing(measured, verb):
    words = verb.format(measured[0])
    assert without_reader(words) == (141, "")
    status, _, errors = shell(f"hpccomm {words} > /dev/full")
    assert status == 2
    assert re.fullmatch(r"hpccomm: error: .* cannot be written: No space left .*\n", errors)
    assert shell(f"hpccomm {words} >&- 2>&- <&-") == (0, "", "")


def without_reader(words: str) -> tuple[int, str]:
    """Run a command that writes to a pipe whose reader has gone; give its status and errors."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        status, _, errors = ran([sys.executable, "-m", "hpccomm", *words.split()], stdout=pipe)
    return status, errors


def test_rank_0_speaks_for_a_verb_that_all_ranks_run(measured, monkeypatch, tmp_path):
    """Others print where they run. What a rank starts as a process inherits the variables of its launcher."""
    path, printed = measured
    status, shown, errors = called("show", str(path))
    assert (status, errors) == (0, "")
    assert "1 rank on 1 node" in shown
    assert shown.endswith("#\n" + printed)
    load()  # no rank is let wait where MPI holds them together
    monkeypatch.chdir(tmp_path)
    perf = ("perf", "perf pairs", "perf memory", "perf copy", "tune")
    spoken = (*(f"{verb} --help" for verb in perf), "perf --install-programs links")
    misused = ("perf all_reduce --iters 0", "perf pairs --budget -1", "tune --segments x")
    of_each = ("--help", "--version", "show --help", "explain CollectiveTimeout", "plot --help")
    of_each += (f"show {path}", f"export {path} --format csv")
    missing = ("show nowhere.h5", "export nowhere.h5", "compare a.h5 b.h5", "no_verb", "-x")
    for rank in "01":
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        speaks = rank == "0"
        told = (spoken, 0, speaks), (misused, 2, speaks), (of_each, 0, True), (missing, 2, True)
        for lines, ends, said in told:
            for words in lines:
                status, out, errors = called(*words.split())
                assert (status, (errors if ends else out) != "") == (ends, said), words
    # As a program it writes to the same streams.
    rank_1 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    status, out, errors = shell("hpccomm show nowhere.h5", **rank_1)
    assert (status, out, errors[:16]) == (2, "", "hpccomm: error: ")


def test_an_interrupt_from_the_keyboard_says_what_is_kept(tmp_path):
    path = tmp_path / "run.h5"
    command = [sys.executable, "-m", "hpccomm", *PERF.split(), "-N", "0", "--output", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN
    ) as process:
        assert process.stdout is not None
        while "float" not in process.stdout.readline():
            pass
        assert f"# Run run0001 of {path}: running: " in shell(f"hpccomm show {path}")[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    kept = rf"hpccomm: \d+ rows? (is|are) kept in {path} as run0001: see hpccomm show {path}\n"
    assert process.returncode == 130, errors
    assert re.fullmatch(f"{kept}hpccomm: interrupted\n", errors), errors
    (run,) = reader.read(path)
    assert run.status == "failed: interrupted"
