"""What other programs' recorders wrote down becomes a recording.

What is outside: PyTorch, whose own dump of two processes is read where it is installed; the names of the fields of
NCCL's calls there are those of torch 2.13's dumps. Of NCCL Inspector, the two examples in its README.
"""

import json
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest

from hpccomm.cli import main
from hpccomm.results import recording_file

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

def train(x):
    dist.all_reduce(x)

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
x = torch.ones(1000)
for _ in range(3):
    train(x)
group = dist.new_group([0, 1])
dist.broadcast(x, 0, group=group)
dist.barrier()
with open(f"{folder}/rank_{rank}", "wb") as file:
    file.write(_distributed_c10d._dump_fr_trace())
dist.barrier()
dist.destroy_process_group()
"""


def imported(tmp_path, files, capsys):
    assert main.main(["import", *map(str, files), "--output", str(tmp_path / "t.h5")]) == 0
    (recording,) = recording_file.read(tmp_path / "t.h5")
    return recording, capsys.readouterr().out


def rows(recording, rank, *columns):
    of_rank = recording.calls.of_rank(rank)
    names = [recording.signatures[at].operation for at in recording.calls["signature"][of_rank]]
    return list(
        zip(names, *(recording.calls[each][of_rank].tolist() for each in columns), strict=True)
    )


@pytest.mark.slow("two processes import PyTorch")
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorchs_own_dump(tmp_path, capsys):
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "100"}
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [each.wait(100) for each in programs] == [0, 0]
    files = [tmp_path / f"rank_{rank}" for rank in range(2)]
    recording, said = imported(tmp_path, files, capsys)
    assert "10 calls of 2 ranks" in said
    assert "the ends of 10 of 10 calls are not known" in said
    assert [each.ranks for each in recording.groups] == [(0, 1)] * 2
    for rank in range(2):
        found = rows(recording, rank, "number")
        assert found[:3] == [("all_reduce", number) for number in (1, 2, 3)]
        assert found[3:] == [("broadcast", 1), ("barrier", 4)]
    first = recording.signatures[0]
    assert (first.nbytes, first.values["dtype"], first.values["count"]) == (4000, "float32", 1000)
    assert first.site.startswith("train(), ")


def entry(name, number, created, *, sizes=((256,), (256,)), **more):
    shapes = [list(each) for each in sizes]
    return {
        "frames": [{"name": "f", "filename": "/lib/torch/a.py", "line": 1}, {"name": "step", "filename": "/t.py", "line": 7}],
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{name}", "time_created_ns": 10**18 + created, "duration_ms": None,
        "input_sizes": shapes[:1], "input_dtypes": ["BFloat16"], "output_sizes": shapes[1:],
        "output_dtypes": ["BFloat16"], "state": "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": True, "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(path, *entries):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    path.write_bytes(
        pickle.dumps(
            {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": list(entries)}, 2
        )
    )
    return path


def test_times_sizes_and_messages_of_nccls_calls(tmp_path, capsys):
    noticed = {"time_discovered_completed_ns": 10**18 + 9_000_000}
    first = dump(
        tmp_path / "nccl_trace_rank_0",
        entry("_all_gather_base", 1, 0, sizes=((256,), (768,)), duration_ms=2.5, **noticed),
        entry("reduce_scatter_tensor_coalesced", 2, 3_000_000, sizes=((768,), (256,)), **noticed),
        entry("send 0->1", 2, 4_000_000, is_p2p=True, **noticed),
    )
    second = dump(
        tmp_path / "nccl_trace_rank_1",
        entry("recv 1<-0", 2, 5_000_000, is_p2p=True, **noticed),
        entry("all_reduce", 3, 6_000_000, state="started", retired=False),
    )
    recording, said = imported(tmp_path, [first, second], capsys)
    assert "1 of 3 ranks have no dump" in said
    assert recording.groups[0].ranks == (0, 1, 2)
    assert rows(recording, 0, "number", "begin", "end", "failed") == [
        ("all_gather", 1, 0, 2_500_000, 0),
        ("reduce_scatter", 2, 3_000_000, 9_000_000, 0),
        ("send", 0, 4_000_000, 9_000_000, 0),
    ]
    # It hangs: it was not complete when the rank's last event was written down.
    assert rows(recording, 1, "begin", "end", "failed")[1] == (
        "all_reduce",
        6_000_000,
        9_000_000,
        1,
    )
    by_name = {each.operation: each for each in recording.signatures}
    assert [by_name[each].nbytes for each in ("all_gather", "reduce_scatter")] == [1536, 1536]
    assert [by_name[each].values["count"] for each in ("all_gather", "reduce_scatter")] == [
        256,
        256,
    ]
    assert (by_name["send"].values["dst"], by_name["recv"].values["src"]) == (1, 0)
    assert by_name["send"].site == "step(), t.py line 7"


class Evil:
    def __reduce__(self):
        return os.system, ("false",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"pg_config": {}, "entries": Evil()}, 2))
    assert main.main(["import", str(tmp_path / "rank_0"), "--output", str(tmp_path / "t.h5")]) == 2
    assert "system" in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


def inspected(rank, coll, number, nbytes, took, written, process=None, **more):
    return json.dumps(
        {
            "header": {"id": "0x7f8c496ae9f661", "rank": rank, "n_ranks": 8, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "profiler_plugin",
                "dump_timestamp_us": written,
                "hostname": "node7.cluster",
                "pid": process or rank,
            },
            "coll_perf": {"coll": coll, "coll_sn": number, "coll_msg_size_bytes": nbytes, "coll_exec_time_us": took, **more},
        }
    )  # fmt: skip


def test_nccl_inspectors_lines(tmp_path, capsys):
    """The README's first example has no times of events, the second one has."""
    trace = {
        "coll_start_ts": 1752867229235059,
        "coll_stop_ts": 1752867229235064,
        "kernel_events": [{"channel_id": 0, "kernel_start_ts": 1752867229235181, "kernel_stop_ts": 1752867229275811}],
    }  # fmt: skip
    plain = inspected(2, "AllReduce", 1407, 17179869184, 61974, 1748030377748202)
    verbose = inspected(
        4, "ReduceScatter", 1231, 2147483648, 41057, 1752867229276385,
        coll_algobw_gbs=418.439467, event_trace_ts=trace,
    )  # fmt: skip
    files = [tmp_path / "node7-pid2.log", tmp_path / "node7-pid4.log"]
    files[0].write_text(f'{plain}\n{{"header": {{"id')
    files[1].write_text(f"{verbose}\n")
    recording, said = imported(tmp_path, files, capsys)
    assert "2 calls of 2 ranks" in said
    assert "1 line could not be read" in said
    assert recording.facts.hosts == ("node7", "node7")
    assert recording.groups[0].ranks == (-1, -1, 0, -1, 1, -1, -1, -1)
    ((name, begin, end),) = rows(recording, 0, "begin", "end")
    assert (name, end - begin) == ("all_reduce", 61974_000)
    ((name, begin, end),) = rows(recording, 1, "begin", "end")
    assert name == "reduce_scatter"
    assert recording.facts.unix_ns + begin == 1752867229235059_000
    assert end - begin == (275811 - 235059) * 1000
    # Its bandwidth is of the whole array.
    size = next(each.nbytes for each in recording.signatures if each.operation == name)
    assert size / 41057e-6 / 1e9 == pytest.approx(418.439467)


def test_equal_calls_of_all_ranks_are_matched(tmp_path, capsys):
    """One process may have all devices of a node, as nccl-tests with -g 8."""
    lines = [
        inspected(rank, coll, number, 8, 5, 1000 + number, process=99)
        for coll, number in (("AllReduce", 0), ("Broadcast", 0), ("AllReduce", 1))
        for rank in range(8)
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    recording, said = imported(tmp_path, [tmp_path / "log"], capsys)
    assert "24 calls of 8 ranks" in said
    numbers = [rows(recording, rank, "number") for rank in range(8)]
    assert all(each == numbers[0] for each in numbers)
    assert len({number for _, number in numbers[0]}) == 3


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rank_0", pickle.dumps(["pg_config"], 2)),
        ("rank_0", pickle.dumps({"pg_config": {}}, 2)),
        ("rank_0", pickle.dumps({"pg_config": {}, "entries": [{"state": "started"}]}, 2)),
        ("rank_0", pickle.dumps({"pg_config": {"0": {"ranks": "[0, "}}, "entries": []}, 2)),
        ("rank_0", pickle.dumps({"pg_config": {}, "entries": []}, 2)[:-9]),
        ("trace_20261126", pickle.dumps({"pg_config": {}, "entries": []}, 2)),
    ],
)
def test_a_damaged_dump_is_refused_in_words(tmp_path, capsys, name, data):
    good = dump(tmp_path / "rank_1", entry("all_reduce", 1, 0))
    (tmp_path / name).write_bytes(data)
    files = [str(good), str(tmp_path / name)]
    assert main.main(["import", *files, "--output", str(tmp_path / "t.h5")]) == 2
    assert f"{tmp_path / name} " in capsys.readouterr().err
    assert not (tmp_path / "t.h5").exists()


def test_damaged_lines_of_nccl_inspector_are_left_out(tmp_path, capsys):
    lines = [json.loads(inspected(rank, "AllReduce", 0, 8, 5, 1000)) for rank in (1, 8, 2, 3)]
    lines[2]["header"]["n_ranks"] = "8"
    del lines[3]["header"]["n_ranks"]
    (tmp_path / "log").write_text("\n".join(map(json.dumps, lines)))
    _, said = imported(tmp_path, [tmp_path / "log"], capsys)
    assert "1 call of 1 rank" in said
    assert "3 lines could not be read" in said
