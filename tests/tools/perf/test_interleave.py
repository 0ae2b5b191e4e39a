"""Two variants in one launch, or in alternating launches, and compared: `hpccomm perf --interleave`."""

import os
import re
import shlex

import pytest
from damage import called, output

from hpccomm.results import reader
from hpccomm.tools.perf.options import Variant, variant
from hpccomm.tools.perf.perf import run_launches

from ...conftest import launch_environment

RING, TREE = "HPCCOMM_ALGORITHM=ring", "HPCCOMM_ALGORITHM=tree"
SWEEP = ("perf", "all_reduce", "-b", "1K", "-e", "1K", "-n", "3")


def verdicts(text):
    """Return the last word of each case of a comparison."""
    return [line.split()[-1] for line in text.splitlines() if line.startswith("all_reduce")]


def test_environments_take_turns_in_one_launch_and_compare_the_same_from_its_file(
    tmp_path, shared_job
):
    path = tmp_path / "runs.h5"
    done = shared_job(2, "-m", "hpccomm", *SWEEP, "--interleave", RING, TREE, "--output", str(path))
    assert done.returncode == 0, done.stderr

    (run,) = reader.read(path)
    assert run.status == "completed"
    assert {row.wrong for row in run.rows} == {0}
    # Each was measured by what its environment sets.
    used = [(run.variant(index), row.algorithm, row.in_place) for index, row in enumerate(run.rows)]
    each_pass = {(*by, place) for by in ((RING, "ring"), (TREE, "tree")) for place in (False, True)}
    # In turns: each of ten passes has both, out of place and in place.
    assert [set(used[at : at + 4]) for at in range(0, len(used), 4)] == [each_pass] * 10

    def compared(*sides):
        return called("compare", path, path, "--base-variant", *sides)

    again = compared(RING, "--new-variant", TREE)[1]
    assert again[again.index("# Base:") :] in done.stdout
    status, mirrored, _ = compared(TREE, "--new-variant", RING)
    assert status == ("slower" in verdicts(mirrored))
    status, _, err = compared("tree")
    assert (status, f"its variants: '{RING}', '{TREE}'" in err) == (2, True)
    shown = output("show", path)
    assert f"# Variant: {RING}\n" in shown
    assert shown.count("# Avg bus bandwidth") == 2
    (hint,) = re.findall("^# To compare the variants: hpccomm (.*)", shown, re.MULTILINE)
    assert called(*shlex.split(hint))[1] == again


# What starts a rank may be any program.
@pytest.mark.parametrize(
    ("starts", "launches"), [(["env"], 1), pytest.param(None, 2, marks=pytest.mark.thorough)]
)
def test_launches_alternate_in_what_a_process_reads_once(
    tmp_path, monkeypatch, launcher, starts, launches
):
    for name, value in launch_environment().items():
        monkeypatch.setenv(name, value)
    path, said = tmp_path / "runs.h5", []
    slow, fast = "OMPI_MCA_coll=^tuned OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"
    words = (*SWEEP, "--backend", "loopback", "--output", str(path))
    variants = variant(slow), variant(fast)
    command = starts or [launcher, "-n", "1"]
    assert run_launches(words, command, launches, path, said.append, variants) == 0
    assert verdicts("".join(said)) == ["untested", "untested"]
    assert "OMP_NUM_THREADS: 1 and 2" in "".join(said)
    runs = reader.read(path)
    assert sorted(run.info.series["variant"] for run in runs) == sorted([slow, fast] * launches)
    numbers = [str(number) for number in range(1, launches + 1) for _ in variants]
    assert [run.info.series["launch"] for run in runs] == numbers
    for run in runs:
        threads = run.info.environment["OMP_NUM_THREADS"]
        assert f"OMP_NUM_THREADS={threads}" in run.info.series["variant"]


def test_words_are_algorithms_backends_and_variables():
    assert variant("ring") == Variant("ring", algorithm="ring")
    assert variant("mpi") == Variant("mpi", "mpi")
    assert variant("backend=auto auto A=b=c").algorithm == "auto"
    assert variant("backend=auto auto A=b=c").environment == {"A": "b=c"}
    before = dict(os.environ)
    with variant("HOME=/nowhere NEW_ONE=1").entered():
        assert (os.environ["HOME"], os.environ["NEW_ONE"]) == ("/nowhere", "1")
        del os.environ["NEW_ONE"]  # as a program may
    assert dict(os.environ) == before
