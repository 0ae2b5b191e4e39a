"""Recordings as Perfetto's timeline.

What is outside: Perfetto's trace processor, where ``TRACE_PROCESSOR`` names its program ``trace_processor_shell``.
"""

import gzip
import json
import os
from collections import Counter

import pytest
from recordings_made import MICRO, MadeCall, all_reduce, made, stepped

from hpccomm.results import recording_file
from hpccomm.results.recording import ASYNC, POLLED, CallSignature
from hpccomm.tools import main
from hpccomm.tools.runs import export as perfetto


def mixed():
    """Return two ranks: one is late, sends a message, and waits for an asynchronous call, beside which another runs."""
    size = 1 << 20
    send = CallSignature("send", 0, 8000, POLLED, {"dst": 1, "src": None, "tag": 7})
    receive = CallSignature("recv", 0, 8000, POLLED, {"dst": None, "src": 0, "tag": 7})
    scan = CallSignature(
        "scan", 0, 8, POLLED, {"operation": "scan", "dtype": "float64", "count": 1}
    )
    ms = 1000 * MICRO
    one, behind = all_reduce(size), all_reduce(size, ASYNC)
    both = [MadeCall(behind, 3, 9 * ms, 15 * ms), MadeCall(scan, 4, 16 * ms, 17 * ms)]
    first = [
        MadeCall(one, 1, 5 * ms, 7 * ms),
        MadeCall(behind, 2, 8 * ms, 14 * ms, 13 * ms, 1 * ms),
        MadeCall(send, 0, 10 * ms, 11 * ms),
    ]
    second = [
        MadeCall(one, 1, 1 * ms, 7 * ms),
        MadeCall(behind, 2, 8 * ms, 14 * ms),
        MadeCall(receive, 0, 9 * ms + 1, 11 * ms),
    ]
    return made([sorted(each + both, key=lambda call: call.begin) for each in (first, second)])


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
    receive = next(each for each in calls if each["name"] == "recv")
    assert receive["ts"] == 8000.001
    waits = [each for each in events if each.get("cat") == "wait"]
    assert [(each["name"], each["ts"], each["dur"]) for each in waits] == [
        ("wait for all_reduce", 12000, 1000)
    ]
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
            arrows.setdefault((each["cat"], each["id"]), []).append(
                (each["ph"], each["pid"], each["ts"])
            )
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


def test_the_verb_writes_a_new_file(tmp_path, capsys):
    recording_file.write(tmp_path / "t.h5", mixed())
    export = ["export", str(tmp_path / "t.h5"), "--format"]
    assert main.main([*export, "perfetto", "--output", str(tmp_path / "t.json.gz")]) == 0
    assert (tmp_path / "t.json.gz").read_bytes().startswith(b"\x1f\x8b")
    assert main.main([*export, "perfetto", "--output", str(tmp_path / "t.json.gz")]) == 2
    assert main.main([*export, "perfetto"]) == 2
    said = capsys.readouterr().err
    assert "File exists" in said
    assert "give --output PATH" in said
