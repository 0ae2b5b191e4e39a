"""Recordings as Perfetto's timeline.

What is outside: Perfetto's trace processor, where ``TRACE_PROCESSOR`` names its program ``trace_processor_shell``.
"""

import gzip
import json
import os
from collections import Counter
from dataclasses import replace

import pytest
from damage import called, output
from programs_made import message
from recordings_made import MICRO, all_reduce, repeated, stepped

from hpccomm.results import recording_file
from hpccomm.results.recording import ASYNC
from hpccomm.tools.runs import export as perfetto


def mixed():
    """Return two ranks: one is late, sends a message, and waits for an asynchronous call, beside which another runs."""
    one, behind = all_reduce(1 << 20), all_reduce(1 << 20, ASYNC)
    scan = replace(all_reduce(8), operation="scan")
    beside, last = (behind, 9, 15), (scan, 16, 17)
    first = (one, 5, 7), (behind, 8, 14, 13, 1), beside, (message("dst", 1), 10, 11), last
    second = (one, 1, 7), (behind, 8, 14), beside, (message("src", 0), 9.000001, 11), last
    return repeated(first, second, steps=1, unit=1000 * MICRO)


def written(recording, path):
    perfetto.write(recording, path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path) as file:
        return json.load(file)["traceEvents"]


def test_timeline_has_every_call_and_its_times(tmp_path):
    events = written(mixed(), tmp_path / "t.json")
    calls = [each for each in events if each.get("cat") == "call"]
    assert len(calls) == 10
    late = {each["pid"]: each for each in calls if each["args"]["number"] == 1}
    assert (late[1]["ts"], late[1]["dur"], late[2]["ts"], late[2]["dur"]) == (4000, 2000, 0, 6000)
    assert late[1]["args"]["dtype"] == "float32"
    assert late[1]["args"]["site"] == "step(), train.py line 9"
    assert [each["ts"] for each in calls if each["name"] == "recv"] == [8000.001]
    (waited,) = (each for each in events if each.get("cat") == "wait")
    assert (waited["name"], waited["ts"], waited["dur"]) == ("wait for all_reduce", 12000, 1000)
    late = [each for each in events if each.get("cat") == "late"]
    assert (0, 4000) in {(each["ts"], each["dur"]) for each in late if "rank 0" in each["name"]}


def test_slices_of_a_thread_nest(tmp_path):
    """As the format has it, slices of one thread lie in each other or beside each other."""
    for recording in (mixed(), stepped(3, 5, lambda rank, step: 1000 + rank * step, 7)):
        threads = {}
        for each in written(recording, tmp_path / f"{recording.ranks}.json"):
            if each["ph"] == "X":
                key = each["pid"], each["tid"]
                begin = round(each["ts"] * 1000)
                threads.setdefault(key, []).append((begin, -begin - round(each["dur"] * 1000)))
        for slices in threads.values():
            outer = []
            for begin, end in sorted(slices):
                while outer and outer[-1] <= begin:
                    outer.pop()
                assert not outer or -end <= outer[-1]
                outer.append(-end)


def test_arrows_lead_from_send_to_receive_and_from_the_last_arrival(tmp_path):
    events = written(mixed(), tmp_path / "t.json.gz")
    arrows = {}
    for each in events:
        if each["ph"] in "sf":
            ends = arrows.setdefault((each["cat"], each["id"]), [])
            ends.append((each["ph"], each["pid"], each["ts"]))
    assert sorted(kind for kind, _ in arrows) == ["arrival", "message"]
    assert [("s", 1, 4000.001), ("f", 2, 4000.002)] in arrows.values()
    assert [("s", 1, 9000.001), ("f", 2, 9000.002)] in arrows.values()


def processor():
    """Return Perfetto's TraceProcessor and how it is configured; skip where its program cannot be had."""
    api = pytest.importorskip("perfetto.trace_processor")
    shell = os.environ.get("TRACE_PROCESSOR")
    if not shell:
        pytest.skip("the package perfetto has no trace_processor_shell; TRACE_PROCESSOR names none")
    return lambda path: api.TraceProcessor(
        trace=str(path), config=api.TraceProcessorConfig(bin_path=shell, load_timeout=60)
    )


def test_perfettos_trace_processor_finds_every_call(tmp_path):
    open_trace = processor()
    recording = mixed()
    perfetto.write(recording, tmp_path / "t.json")
    with open_trace(tmp_path / "t.json") as trace:
        found = trace.query(
            "select s.name, s.ts, s.dur, p.pid from slice s join thread_track t on s.track_id = t.id "
            "join thread using (utid) join process p using (upid) where s.category = 'call'"
        )
        calls, first = recording.calls, 1000 * MICRO
        expected = Counter(
            (recording.signatures[signature].operation, begin - first, end - begin, rank + 1)
            for signature, begin, end, rank in zip(
                *(calls[each].tolist() for each in ("signature", "begin", "end")),
                calls.ranks().tolist(),
                strict=True,
            )
        )
        assert Counter((each.name, each.ts, each.dur, each.pid) for each in found) == expected
        names = {each.name for each in trace.query("select name from process")}
        assert {"rank 0 on node0", "rank 1 on node0"} <= names
        # An arrow ends at the innermost slice: the part of the call after the other rank came.
        flows = trace.query(
            "select o.name as begun, i.name as within, p.name as ended from flow join slice o on slice_out = o.id "
            "join slice i on slice_in = i.id join slice p on i.parent_id = p.id order by 1"
        )
        assert [(each.begun, each.within, each.ended) for each in flows] == [
            ("all_reduce", "transfer", "all_reduce"),
            ("send", "transfer", "recv"),
        ]
        errors = trace.query(
            "select name from stats where severity in ('error', 'data_loss') and value > 0"
        )
        assert [each.name for each in errors] == []


def test_the_verb_writes_a_new_file(tmp_path):
    recording_file.write(tmp_path / "t.h5", mixed())
    export = "export", tmp_path / "t.h5", "--format", "perfetto"
    to_file = "--output", tmp_path / "t.json.gz"
    output(*export, *to_file)
    assert to_file[1].read_bytes().startswith(b"\x1f\x8b")
    assert "File exists" in called(*export, *to_file)[2]
    assert "give --output PATH" in called(*export)[2]
