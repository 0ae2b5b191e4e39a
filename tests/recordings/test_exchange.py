"""Recordings as Perfetto's timeline and Chakra's traces.

What is outside: Perfetto's trace processor, where there is one (``TRACE_PROCESSOR`` names its ``trace_processor_shell``;
the package perfetto fetches it else), and the schema and the reader of MLCommons Chakra, from its package.
"""

import gzip
import json
import os
from collections import Counter

import pytest
from recordings_made import MICRO, MadeCall, all_reduce, made, stepped

from hpccomm.cli import main
from hpccomm.recordings.exchange import chakra, perfetto
from hpccomm.results import recording_file
from hpccomm.results.recording import ASYNC, POLLED, CallSignature


def mixed():
    """Return two ranks: one is late, sends a message, and waits for an asynchronous call, beside which another runs."""
    size = 1 << 20
    send = CallSignature("send", 0, 8000, POLLED, {"dst": 1, "src": None, "tag": 7})
    receive = CallSignature("recv", 0, 8000, POLLED, {"dst": None, "src": 0, "tag": 7})
    scan = CallSignature(
        "scan", 0, 8, POLLED, {"operation": "scan", "dtype": "float64", "count": 1}
    )
    ms = 1000 * MICRO
    first = [
        MadeCall(all_reduce(size), 1, 5 * ms, 7 * ms),
        MadeCall(all_reduce(size, ASYNC), 2, 8 * ms, 14 * ms, 13 * ms, 1 * ms),
        MadeCall(all_reduce(size, ASYNC), 3, 9 * ms, 15 * ms),
        MadeCall(send, 0, 10 * ms, 11 * ms),
        MadeCall(scan, 4, 16 * ms, 17 * ms),
    ]
    second = [
        MadeCall(all_reduce(size), 1, 1 * ms, 7 * ms),
        MadeCall(all_reduce(size, ASYNC), 2, 8 * ms, 14 * ms),
        MadeCall(all_reduce(size, ASYNC), 3, 9 * ms, 15 * ms),
        MadeCall(receive, 0, 9 * ms + 1, 11 * ms),
        MadeCall(scan, 4, 16 * ms, 17 * ms),
    ]
    return made([first, second])


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
    shown = [
        each for each in events if each.get("cat") == "late" and each["name"] == "rank 0 is late"
    ]
    assert (0, 4000) in {(each["ts"], each["dur"]) for each in shown}


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


def read_back(path):
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2", exc_type=ImportError)
    from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

    with openFileRd(str(path)) as file:
        about, nodes = schema.GlobalMetadata(), []
        assert decodeMessage(file, about)
        node = schema.Node()
        while decodeMessage(file, node):
            nodes.append(node)
            node = schema.Node()
    return schema, about, nodes


def attributes(node):
    return {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}


def test_chakras_own_reader_reads_the_traces(tmp_path):
    (note,) = chakra.write(mixed(), tmp_path / "t")
    assert "no scan" in note
    schema, about, nodes = read_back(tmp_path / "t.0.et")
    assert about.version == "1.0.0"
    assert [each.id for each in nodes] == list(range(len(nodes)))
    kinds = [schema.NodeType.Name(each.type).removesuffix("_NODE") for each in nodes]
    expected = ["COMP", "COMM_COLL"] * 3 + ["COMP", "COMM_SEND", "COMP", "COMP", "COMP"]
    assert kinds == expected
    assert nodes[-1].name == "scan"
    first = nodes[1]
    assert (first.start_time_micros, first.duration_micros) == (4000, 2000)
    assert attributes(first) == {
        "is_cpu_op": False, "comm_type": schema.ALL_REDUCE, "comm_size": 1 << 20, "pg_name": "0"
    }  # fmt: skip
    send = attributes(nodes[7])
    assert (send["comm_dst"], send["comm_tag"], send["comm_size"]) == (1, 7, 8000)
    # The program goes on beside asynchronous calls.
    assert [list(each.data_deps) for each in nodes[:8]] == [[], [0], [1], [2], [2], [4], [4], [6]]
    assert [list(each.data_deps) for each in nodes[8:]] == [[7], [8, 3], [9]]
    computed = [each.duration_micros for each in nodes if each.type == schema.COMP_NODE]
    assert computed == [4000, 1000, 1000, 1000, 2000, 2000, 1000]
    _, _, other = read_back(tmp_path / "t.1.et")
    (receive,) = [each for each in other if each.type == schema.COMM_RECV_NODE]
    assert attributes(receive)["comm_src"] == 0
    assert json.loads((tmp_path / "t.groups.json").read_text()) == {"0": [0, 1]}


def test_a_wait_makes_what_follows_depend_on_the_call(tmp_path):
    ms = 1000 * MICRO
    begun = MadeCall(all_reduce(8, ASYNC), 1, 0, 4 * ms, 2 * ms, 2 * ms)
    chakra.write(made([[begun, MadeCall(all_reduce(8), 2, 4 * ms, 5 * ms)]]), tmp_path / "t")
    *_, nodes = read_back(tmp_path / "t.0.et")
    assert [each.name for each in nodes] == ["all_reduce", "compute", "all_reduce"]
    assert [sorted(each.data_deps) for each in nodes] == [[], [], [0, 1]]


def test_the_verb_writes_both(tmp_path, capsys):
    recording_file.write(tmp_path / "t.h5", mixed())
    export = ["export", str(tmp_path / "t.h5"), "--format"]
    assert main.main([*export, "perfetto", "--output", str(tmp_path / "t.json.gz")]) == 0
    assert (tmp_path / "t.json.gz").read_bytes().startswith(b"\x1f\x8b")
    assert main.main([*export, "chakra", "--output", str(tmp_path / "c")]) == 0
    assert (tmp_path / "c.1.et").stat().st_size
    assert main.main([*export, "perfetto", "--output", str(tmp_path / "t.json.gz")]) == 2
    assert main.main([*export, "chakra"]) == 2
    said = capsys.readouterr().err
    assert "File exists" in said
    assert "give --output PATH" in said
