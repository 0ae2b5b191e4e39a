"""`hpccomm perf copy`: its copies, their number and ends, and that wrong bytes are found.

How often, and which direction counts, are nvbandwidth's: ``WARMUP_COUNT`` and ``doMemcpyCore`` in memcpy.cpp,
``defaultLoopCount`` in common.h, and "Bidirectional Host <-> Device Bandwidth Tests" in its README. The stand-in shows
no speed.
"""

import re
from itertools import product

import numpy as np
import pytest
from damage import called

import hpccomm
from hpccomm.results import reader
from hpccomm.tools import nvml
from hpccomm.tools.perf import links
from hpccomm.tools.perf.links import Rate

pytestmark = pytest.mark.standin

WARM, TIMED = 4, 16


@pytest.fixture(autouse=True)
def two(monkeypatch):
    """Two devices are seen: the stand-in's eight are 56 pairs."""
    # The number of devices is no setting.
    monkeypatch.setattr(links, "visible_devices", lambda: 2)


def rows(out):
    """Return what, where, wrong bytes, and all that follows."""
    lines = (re.split(r" {2,}", line.strip()) for line in out.splitlines() if line[0] != "#")
    return [(line[0], line[1], line[5], line[6:]) for line in lines]


def test_every_copy_is_verified_stored_and_shown(tmp_path):
    path = tmp_path / "links.h5"
    status, out, err = called("perf", "copy", "-b", "4K,8K", "-n", "2", "--output", str(path))
    assert status == 0, err
    found = {(what, where) for what, where, *_ in rows(out)}
    gpus, ways = (0, 1), ("host_to_device", "device_to_host")
    host = product(ways, gpus, ("pinned", "pinned, both ways", "pageable"))
    peers = product(((0, 1), (1, 0)), ("", ", both ways"))
    assert found == {
        *((way, f"GPU {gpu}, {how}") for way, gpu, how in host),
        *(("device_copy", f"GPU {gpu}") for gpu in gpus),
        *(("device_to_device", f"GPU {a} to GPU {b}{how}") for (a, b), how in peers),
    }
    assert {wrong for _, _, wrong, _ in rows(out)} == {"0"}
    (run,) = reader.read(path)
    assert len(run.rows) == 2 * len(found)
    for row in run.rows:
        # A copy within a device is read and written there; over a link its bytes count once.
        times = 2 if row.collective == "device_copy" else 1
        assert row.busbw == pytest.approx(times * row.bytes / row.time / 1e3)
    status, shown, _ = called("show", str(path))
    assert status == 0
    assert out[out.index("# what") :] in shown


def test_copies_are_warmed_up_timed_back_to_back_and_go_both_ways_all_the_while(seen):
    with hpccomm.new_comm("loopback") as comm:
        rates = {rate.where: rate for rate in links.copy_rates(comm, (4096,))[0]}

    def put(where):
        """Return the copies and marks of a rate, each with its stream."""
        del seen[:]
        seconds, wrong = rates[where].repeat(TIMED)
        assert (len(seconds), wrong) == (TIMED, 0)
        stream = {"memcpyAsync": -1, "eventRecord": -1}
        return [(name, of[stream[name]]) for name, *of in seen if name in stream]

    found = put("GPU 0, pinned")
    ours = [name for name, stream in found if stream == found[0][1]]
    copy, mark = "memcpyAsync", "eventRecord"
    assert ours[: WARM + 1 + 2 * TIMED] == [*[copy] * WARM, mark, *[copy, mark] * TIMED]
    found = put("GPU 0, pinned, both ways")
    ours, others = found[0][1], found[1][1]
    assert ours != others
    last = max(at for at, each in enumerate(found) if each == (copy, ours))
    assert found[:last].count((copy, others)) >= WARM + TIMED - 1
    assert found[last:].count((copy, others)) >= TIMED


def test_so_many_are_timed_as_nvbandwidth_does_and_the_median_counts(monkeypatch):
    def repeat(times):
        asked.append(times)
        return np.array([1e-4, *[1e-3] * (times - 2), 1.0]), 0

    def plan(comm, sizes):
        asked.append(sizes)
        return [Rate("host_to_device", "GPU 0, pinned", 10**9, repeat)], {}

    asked = []
    monkeypatch.setattr(links, "copy_rates", plan)  # copies of 256 MiB and of known times
    _, out, _ = called("perf", "copy")
    assert asked == [(256 << 20,), TIMED]
    assert "1000000000      1000.0  1000.00" in out


def test_bytes_that_did_not_come_are_wrong(monkeypatch):
    monkeypatch.setenv("STANDIN_NO_COPIES", "1")
    status, out, _ = called("perf", "copy", "-b", "4K", "-n", "2")
    assert status == 1
    for what, where, wrong, _ in rows(out):
        assert wrong == str(4096 * (1 + ("both" in where))), (what, where)


def test_a_line_has_its_path_and_the_share_of_its_peak(monkeypatch, seen, tmp_path):
    """A source gets access to its peer, which it may have already (704): nvbandwidth's writes, in the source's context."""
    peaks = {"host": 63.0, "own": 3352.0, "peer": 450.0}

    def path(one, other):
        kind = "host" if other is None else "own" if one == other else "peer"
        return nvml.GpuLink(f"path of {kind}", peaks[kind])

    monkeypatch.setattr(nvml, "path", path)  # there is no NVML here
    file = tmp_path / "links.h5"
    status, out, err = called("perf", "copy", "-b", "1M", "-n", "1", "--output", str(file))
    assert status == 0, err
    asked = {tuple(of) for name, *of in seen if name == "deviceEnablePeerAccess"}
    assert asked == {(0, 1), (1, 0)}
    (run,) = reader.read(file)
    for row, (what, where, _, rest) in zip(run.rows, rows(out), strict=True):
        if where.startswith("GPU 1 to GPU 0"):
            assert rest == ["through the host's memory"]
            continue
        kind = {"device_copy": "own", "device_to_device": "peer"}.get(what, "host")
        share = f"{row.busbw / peaks[kind]:.0%}"
        assert rest == [share, f"path of {kind}: {peaks[kind]:g} GB/s"]
