"""Counters in Prometheus' text format, read by Prometheus' own parser, and the ranges of NVIDIA's profilers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CALLS = """
import time
import numpy as np
import hpccomm
from hpccomm import CommOptions
from hpccomm.errors import HpccommError
from hpccomm.testing import run_ranks

def main(comm):
    for _ in range(3):
        comm.all_reduce(np.ones(4))
    comm.all_reduce(np.ones(1000), async_op=True).wait()
    if comm.rank:
        comm.send(np.ones(2), 0)
    else:
        comm.recv(np.ones(2), 1)
{more}

run_ranks(2, main{options})
"""


def run(more="", options="", **environment):
    program = CALLS.format(more=more, options=options)
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=100
    )
    assert not done.returncode, done.stderr
    return done


def families(path):
    parser = pytest.importorskip("prometheus_client.parser")
    return {each.name: each for each in parser.text_string_to_metric_families(path.read_text())}


def samples(family, **labels):
    return [
        each.value
        for each in family.samples
        if all(each.labels.get(name) == value for name, value in labels.items())
    ]


def test_prometheus_reads_the_counters(tmp_path):
    run(HPCCOMM_METRICS_FILE=str(tmp_path / "hpccomm.prom"))
    assert [each.name for each in tmp_path.iterdir()] == ["hpccomm.0.prom"]
    found = families(tmp_path / "hpccomm.0.prom")
    assert set(found) == {
        f"hpccomm_{each}" for each in ("calls", "bytes", "seconds", "failures", "slow_calls")
    }
    assert {each.type for each in found.values()} == {"counter"}
    for rank in ("0", "1"):
        small = {"communicator": "world", "rank": rank, "call": "all_reduce", "size": "to 1 KiB"}
        assert samples(found["hpccomm_calls"], **small) == [3]
        assert samples(found["hpccomm_bytes"], **small) == [96]
        assert 0 < samples(found["hpccomm_seconds"], **small)[0] < 100
        large = small | {"size": "to 64 KiB"}
        assert samples(found["hpccomm_bytes"], **large) == [8000]
    assert samples(found["hpccomm_calls"], call="send", rank="1") == [1]


def test_failures_and_slow_calls_are_counted(tmp_path):
    more = """
    try:
        comm.barrier() if comm.rank else time.sleep(0.6)
        comm.all_reduce(np.ones(3 + comm.rank))
    except HpccommError:
        pass
"""
    options = ", options=CommOptions(slow_call=0.3)"
    run(more, options, HPCCOMM_METRICS_FILE=str(tmp_path / "of %r.prom"))
    found = families(tmp_path / "of 0.prom")
    assert sum(samples(found["hpccomm_failures"])) >= 1
    assert sum(samples(found["hpccomm_slow_calls"], rank="1")) == 1


def test_names_are_escaped(tmp_path):
    more = """
    with comm.dup(name='a "b"\\n\\\\') as other:
        other.barrier()
"""
    run(more, HPCCOMM_METRICS_FILE=str(tmp_path / "%r"))
    names = {
        each.labels["communicator"] for each in families(tmp_path / "0")["hpccomm_calls"].samples
    }
    assert names == {"world", 'a "b"\n\\'}


def test_a_reader_never_finds_half_of_it(tmp_path):
    more = f"""
    from hpccomm.runtime import metrics
    from pathlib import Path
    comm.barrier()
    if comm.rank:
        for _ in range(300):
            metrics.write()
    else:
        metrics.write()
        for _ in range(300):
            last = Path({str(tmp_path / "0.prom")!r}).read_text().splitlines()[-1]
            assert last.startswith(("hpccomm_slow_calls_total", "# TYPE hpccomm_slow_calls_total")), last
    comm.barrier()
"""
    run(more, HPCCOMM_METRICS_FILE=str(tmp_path / "%r.prom"))


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path):
    done = run(HPCCOMM_METRICS_FILE=str(tmp_path / "lacking" / "m.prom"), HPCCOMM_DEBUG="1")
    assert "metrics cannot be written" in done.stderr


def test_calls_are_ranges_of_the_stand_in():
    """On the stand-in for CuPy: no profiler and no GPU has shown them."""
    more = """
    comm.barrier()
    if comm.rank == 0:
        from cupy.cuda import nvtx
        print(sorted(set(nvtx.shown)))
        print(nvtx._ranges())
"""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'tests/standin'}"
    said = run(more, HPCCOMM_NVTX="1", PYTHONPATH=paths, STANDIN_DEVICES="2").stdout
    assert "('range', 'all_reduce 32 bytes, world')" in said
    assert "('mark', 'all_reduce 8000 bytes, world')" in said
    assert "('range', 'all_reduce 8000 bytes, world')" not in said
    assert said.endswith("[]\n")


def test_without_a_device_ranges_are_left_out():
    done = run(HPCCOMM_NVTX="1", HPCCOMM_DEBUG="1")
    assert "HPCCOMM_NVTX has no effect" in done.stderr
