"""The command line where its streams are closed, full or cut off, and under a launcher."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from damage import called

from hpccomm.results import reader

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("OMPI_", "PMI", "SLURM_", "HPCCOMM_"))
}
PERF = "perf all_reduce -b 4 -e 1M -f 2 -n 2 --backend loopback"


def shell(line: str, **environment: str) -> tuple[int, str, str]:
    """Run a line of shell in which ``hpccomm`` is the program; give status, output and errors."""
    defined = f'hpccomm() {{ "{sys.executable}" -m hpccomm "$@"; }}; set -o pipefail\n{line}'
    done = subprocess.run(
        ["bash", "-c", defined],
        capture_output=True,
        text=True,
        timeout=60,
        env=CLEAN | environment,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


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


def test_show_prints_the_table_that_was_printed(measured):
    path, printed = measured
    status, shown, errors = called("show", str(path))
    assert (status, errors) == (0, "")
    assert "1 rank on 1 node" in shown
    assert shown.endswith("#\n" + printed)


@pytest.mark.parametrize(
    "verb",
    [
        "--help",
        pytest.param("show {}", marks=pytest.mark.thorough),
        pytest.param("export {} --format csv", marks=pytest.mark.thorough),
        PERF,
    ],
)
def test_streams_that_take_nothing(measured, verb):
    command = f"hpccomm {verb.format(measured[0])}"
    assert without_reader(verb.format(measured[0])) == (141, "")
    status, _, errors = shell(f"{command} > /dev/full")
    assert status == 2
    assert re.fullmatch(r"hpccomm: error: .* cannot be written: No space left .*\n", errors)
    assert shell(f"{command} >&- 2>&- <&-") == (0, "", "")


def without_reader(words: str) -> tuple[int, str]:
    """Run a command that writes to a pipe whose reader has gone; give its status and errors."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "hpccomm", *words.split()],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=CLEAN,
            check=False,
        )
    return done.returncode, done.stderr


def test_rank_0_speaks_for_a_verb_that_all_ranks_run_and_others_print_where_they_run(
    measured, monkeypatch, tmp_path
):
    """What a rank starts as a process inherits the variables of its launcher."""
    path = str(measured[0])
    monkeypatch.setattr("hpccomm.tools.main.SILENCE", 0.0)
    monkeypatch.chdir(tmp_path)
    for rank in "01":
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
        for words in (
            "perf --help",
            "perf pairs --help",
            "perf memory --help",
            "perf copy --help",
            "tune --help",
            "perf --install-programs links",
        ):
            status, out, _ = called(*words.split())
            assert (status, out != "") == (0, rank == "0"), words
        for words in ("perf all_reduce --iters 0", "perf pairs --budget -1", "tune --segments x"):
            status, _, errors = called(*words.split())
            assert (status, errors != "") == (2, rank == "0"), words
        for words in (
            *("--help", "--version", "show --help", "explain CollectiveTimeout", "plot --help"),
            *(f"show {path}", f"export {path} --format csv"),
        ):
            status, out, _ = called(*words.split())
            assert (status, out != "") == (0, True), words
        for words in ("show nowhere.h5", "export nowhere.h5", "compare a.h5 b.h5", "no_verb", "-x"):
            status, _, errors = called(*words.split())
            assert status == 2, words
            assert errors.startswith("hpccomm: error: "), words
    # As a program it writes to the same streams.
    status, out, errors = shell(
        "hpccomm show nowhere.h5", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"
    )
    assert (status, out) == (2, "")
    assert errors.startswith("hpccomm: error: ")


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
