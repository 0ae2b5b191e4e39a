"""`hpccomm perf pairs` as a job: what it prints, stores and answers."""

import argparse
import json
import os
import re
import sys
from contextlib import ExitStack
from subprocess import Popen

import pytest
from damage import called, output

from hpccomm.results import pairs, reader
from hpccomm.runtime.service import Status
from hpccomm.tools.perf.pairs import expected

PAIRS = ("-m", "hpccomm", "perf", "pairs", "-b", "64K", "--streams", "3")


def test_every_pair_is_measured_stored_shown_and_drawn(tmp_path, shared_job):
    path, verdict = tmp_path / "pairs.h5", tmp_path / "verdict.json"
    # Ranks share cores: nothing is slow here but what cannot be.
    healthy = ("--threshold", "0.1%", "--latency-threshold", "0.1%")
    files = ("--output", path, "--json", verdict)
    done = shared_job(3, *PAIRS, *healthy, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# 3 of 3 pairs of 3 ranks on 1 node" in done.stdout
    assert "# Nothing is slow" in done.stdout
    document = json.loads(verdict.read_text())
    assert (document["healthy"], document["drain"], len(document["links"])) == (True, [], 3)
    (run,) = reader.read(path)
    measured, _ = pairs.read(run)
    assert [(link.a, link.b) for link in measured.links] == [(0, 1), (0, 2), (1, 2)]
    assert all(link.latency > 0 and link.bandwidth > 1e6 for link in measured.links)
    assert done.stdout[done.stdout.index("# 3 of 3 pairs") :] in output("show", path)
    output("show", "--verify", path)
    for name in ("csv", "json", "expect"):
        status, out, err = called("export", path, "--format", name)
        assert (status, out, "is of pairs of ranks" in err) == (2, "", True)
    picture = tmp_path / "pairs.svg"
    output("plot", "--pairs", path, "--output", picture)
    assert "nothing is slow" in picture.read_text()


def test_what_is_not_as_expected_is_status_1(mpiexec):
    words = ("--expect", "bandwidth=90000G,latency=5us")
    done = mpiexec(2, *PAIRS, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "# SLOW pair 0 and 1" in done.stdout


@pytest.mark.slow("other processes take the cores from two ranks")
def test_beside_busy_loops_nothing_is_decided(tmp_path, mpiexec):
    # At load 25, a script that read these lines drained sound hosts in 4 of 6 runs.
    words = ("--expect", "latency=1us", "--json", tmp_path / "verdict.json")
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            loop = stack.enter_context(Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        done = mpiexec(2, *PAIRS, *words, env={"HPCCOMM_BUSY": "0.1"})
    assert done.returncode == Status.UNDECIDED, done.stdout + done.stderr
    assert re.search(r"# Other processes +: \d+% of the cores of .*; busy, above 10%", done.stdout)
    assert re.search(r"# UNDECIDED \S+: busy\n", done.stdout)
    assert not re.search("SLOW|DRAIN|Nothing is slow", done.stdout)
    document = json.loads((tmp_path / "verdict.json").read_text())
    assert (document["healthy"], document["drain"]) == (None, [])


def test_no_budget_is_so_small_that_unmeasured_pairs_pass_for_healthy(shared_job):
    done = shared_job(3, *PAIRS, "--budget", "0.000001")
    assert "# 1 of 3 pairs" in done.stdout


def test_a_file_that_is_refused_is_refused_before_anything_is_measured(tmp_path, shared_job):
    path, verdict = tmp_path / "pairs.h5", tmp_path / "verdict.json"
    verdict.mkdir()
    for words, said in (
        (("--output", path, "--json", verdict), "it is a folder"),
        (("--output", "nowhere/run.h5"), "is not a folder that can be written to"),
    ):
        done = shared_job(2, *PAIRS, *words)
        assert done.returncode == 2
        assert said in done.stderr
    assert not path.exists()


def test_an_expectation_has_one_number_and_one_unit():
    both = {"expected_latency": pytest.approx(5e-6), "expected_bandwidth": 1e10}
    assert expected("latency=5us,bandwidth=10G") == both
    assert expected("bandwidth=2.5e3m") == {"expected_bandwidth": 2.5e9}
    wrong = (
        "bandwidth=10GMK bandwidth=GG bandwidth=infG bandwidth=-1G latency=nanus latency=5 speed=5"
    )
    for text in wrong.split():
        with pytest.raises(argparse.ArgumentTypeError, match="give latency=5us,bandwidth=10G"):
            expected(text)
