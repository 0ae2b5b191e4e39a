"""`hpccomm explain` on jobs with a known fault."""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from damage import called, output
from histories import MESSAGE, Made, PlayedJob, explained, loop, only_fault, write
from hypothesis import given
from hypothesis import strategies as st

from hpccomm import errors
from hpccomm.tools.explain import explain, meanings
from hpccomm.tools.explain.dumps import read_folder
from hpccomm.tools.explain.faults import Fault


def steps(size: int, count: int = 5) -> PlayedJob:
    """A job of ranks that make the same calls."""
    return PlayedJob({"world": range(size)}, [loop("world", count)] * size)


def without_rank_2(played: PlayedJob, **answer: Any) -> tuple[Fault, str]:
    """The fault where rank 2 left no dump, and the others have an answer of it, or about it."""
    documents = played.documents()
    del documents[2]
    for document in documents.values():
        document["answers"]["world"]["2"] = answer
    return only_fault(documents)


GONE = {"state": "gone", "collective": 5}
"""The process ended in a call."""


class Drawn:
    """A job drawn at random: ranks on hosts whose clocks differ, a loop, a place for a fault."""

    def __init__(self, seed: int, smallest: int = 2) -> None:
        draw = random.Random(seed)
        self.draw = draw
        self.size = draw.randint(smallest, 7)
        self.steps = draw.randint(4, 20)
        self.rank = draw.randrange(self.size)
        self.at = draw.randrange(self.steps)
        hosts = [f"n{draw.randrange(3)}" for _ in range(self.size)]
        clocks = {f"n{host}": draw.uniform(-9, 9) for host in range(3)}
        program = loop("world", self.steps, seed)
        self.job = PlayedJob({"world": range(self.size)}, [program] * self.size, hosts, clocks)
        self.others = tuple(rank for rank in range(self.size) if rank != self.rank)


SEEDS = st.integers(0, 1 << 30)


@given(SEEDS, st.sampled_from(["none", "dump", "gone", "stopped", "silent"]))
def test_who_has_not_come_is_named(seed: int, left: str) -> None:
    drawn = Drawn(seed)
    drawn.job.programs[drawn.rank] = drawn.job.programs[drawn.rank][: drawn.at]
    if left != "dump":
        drawn.job.silent = {drawn.rank: left}
    fault, said = only_fault(drawn.job.documents())
    operation = drawn.job.programs[drawn.others[0]][drawn.at].operation
    assert (fault.sort, fault.ranks, fault.waiting) == ("missing", (drawn.rank,), drawn.others)
    assert (fault.number, fault.operation) == (drawn.at + 1, operation)
    what = f"{operation} #{drawn.at + 1} of communicator 'world'"
    rank = f"ank {drawn.rank}"
    there = f"{rank} on node {drawn.job.hosts[drawn.rank]}"
    does = {
        "dump": f"R{there} is in step(), train.py line 41, and has not called {what}",
        "none": f"R{rank} left no dump",
        "gone": f"The process of r{there} has ended",
        "stopped": f"R{there} is stopped",
        "silent": f"R{there} does not answer",
    }
    assert said.startswith(does[left])
    assert what in said


CHANGES = ("count", 3), ("dtype", "int64"), ("operation", "scan"), ("op", "PROD"), ("root", 1)


@given(SEEDS, st.sampled_from(CHANGES))
def test_who_differs_is_named_with_what_differs(seed: int, changed: tuple[str, Any]) -> None:
    drawn, (name, value) = Drawn(seed, smallest=3), changed
    drawn.job.change(drawn.rank, drawn.at, **{name: value})
    fault, said = only_fault(drawn.job.documents())
    assert (fault.sort, fault.number, fault.ranks) == ("differing", drawn.at + 1, (drawn.rank,))
    assert list(fault.differences) == [name]
    assert fault.differences[name][drawn.rank] == str(value)
    assert f"rank {drawn.rank} on node" in said
    assert str(value) in said


@given(SEEDS)
def test_a_call_that_was_left_out_is_named(seed: int) -> None:
    drawn = Drawn(seed, smallest=3)
    body = [Made("world", "all_gather", {"count": 4}, 7), Made("world", "barrier", {}, 8)]
    drawn.job.programs[:] = [body * 6 for _ in range(drawn.size)]
    at = 2 * drawn.draw.randint(1, 4)
    del drawn.job.programs[drawn.rank][at]
    fault, said = only_fault(drawn.job.documents())
    assert (fault.sort, fault.number, fault.ranks) == ("differing", at + 1, (drawn.rank,))
    assert f"rank {drawn.rank} left out all_gather #{at + 1} (step(), train.py line 7)" in said


@given(SEEDS)
def test_ranks_that_wait_for_each_other_in_several_communicators(seed: int) -> None:
    draw = random.Random(seed)
    length = draw.randint(2, 5)
    size = length + draw.randint(0, 2)
    ring = draw.sample(range(size), length)
    pairs = {f"pair{at}": sorted((ring[at], ring[(at + 1) % length])) for at in range(length)}
    if length == 2:
        pairs = {name: sorted(ring) for name in pairs}
    programs = [loop("world", 3, seed) for _ in range(size)]
    for at, rank in enumerate(ring):
        programs[rank] += [Made(f"pair{at}"), Made(f"pair{at - 1 if at else length - 1}")]
    programs = [[*program, Made("world", "barrier")] for program in programs]
    played = PlayedJob({"world": range(size), **pairs}, programs)
    _, (fault, *after) = explained(played.documents())
    assert (fault.sort, fault.ranks) == ("cycle", tuple(sorted(ring)))
    assert all(repr(name) in fault.sentence for name in pairs)
    # Whoever waits in the barrier waits for those of the cycle: no cause, if it is said at all.
    assert {each.sort for each in after} <= {"missing"}


@given(SEEDS)
def test_who_was_late_is_named_whatever_the_clocks_say(seed: int) -> None:
    drawn = Drawn(seed)
    drawn.job.delays[drawn.rank, drawn.at] = 1.25
    fault, said = only_fault(drawn.job.documents())
    assert (fault.sort, fault.number, fault.ranks) == ("late", drawn.at + 1, (drawn.rank,))
    assert fault.seconds == pytest.approx(1.25, abs=0.01)
    assert f"in 1 of {drawn.steps} collectives" in said


@given(SEEDS)
def test_nothing_is_found_where_nothing_is_wrong(seed: int) -> None:
    assert explained(Drawn(seed).job.documents())[1] == []


@pytest.mark.parametrize(
    ("state", "seconds", "sorts"),
    [
        ("completed", 1.0, []),
        ("started", 0.1, []),
        ("started", 1.0, ["missing"]),
        ("failed", 0.1, ["missing"]),
    ],
)
def test_a_message_is_waited_for_that_failed_or_is_under_way_for_long(
    state: str, seconds: float, sorts: list[str]
) -> None:
    documents = steps(2).documents()
    took = None if state == "started" else seconds * 1e3
    began = {"time_created_ns": int((documents[0]["time"] - seconds) * 1e9), "duration_ms": took}
    entries = documents[0]["entries"]
    entries.append({**entries[-1], **MESSAGE, **began, "state": state})
    assert [fault.sort for fault in explained(documents)[1]] == sorts


def test_ranks_that_crashed_are_named_though_nobody_waited_for_long() -> None:
    played = steps(4)
    del played.programs[2][3:]
    played.silent = {2: "none"}
    played.deadline = 0.01  # the launcher ends the others at once
    fault, said = only_fault(played.documents())
    assert (fault.sort, fault.ranks, fault.number) == ("missing", (2,), 4)
    assert "Rank 2 left no dump and gave no answer, so probably it was killed or crashed" in said


def test_of_two_ranks_that_differ_neither_is_taken_for_the_right_one() -> None:
    played = steps(2)
    played.change(1, 3, count=3)
    fault, said = only_fault(played.documents())
    assert (fault.sort, fault.ranks, fault.number) == ("differing", (0, 1), 4)
    assert "the ranks call different things as number 4: rank 0: " in said
    assert "(count 3) at step(), train.py line 13" in said


def test_a_rank_whose_process_has_ended_within_the_call_is_named() -> None:
    """All have called it, so that no rank is missing."""
    played = steps(3)
    del played.programs[2][4:]
    fault, said = without_rank_2(played, **GONE)
    assert (fault.sort, fault.ranks, fault.waiting) == ("missing", (2,), (0, 1))
    assert said.startswith("The process of rank 2, which has called it, has ended")
    message = {"operation": "recv", "site": "step(), train.py line 7"}
    _, said = without_rank_2(played, collective=4, now=message)
    assert said.startswith("Rank 2 is in recv at step(), train.py line 7, and has not called")


def test_what_is_known_of_one_communicator_is_not_taken_for_another() -> None:
    programs = [[*loop("world", 5), Made("pair")], loop("world", 5), loop("world", 5)]
    fault, said = without_rank_2(PlayedJob({"world": range(3), "pair": [0, 2]}, programs), **GONE)
    assert (fault.sort, fault.uid, fault.number, fault.ranks) == ("missing", "pair", 1, (2,))
    assert said.startswith("The process of rank 2 has ended. Rank 0 has")


def test_a_cause_comes_before_what_follows_from_it() -> None:
    # Rank 2 is in step(); rank 1 waits for it in 'right', and rank 0 for rank 1 in 'left'.
    left, right = Made("left"), Made("right")
    played = PlayedJob({"left": [0, 1], "right": [1, 2]}, [[left], [right, left], []])
    job, (cause, effect) = explained(played.documents())
    assert (cause.uid, cause.ranks, effect.uid, effect.ranks) == ("right", (2,), "left", (1,))
    shown = "\n".join(explain.timeline_lines(job, [cause, effect], 9))
    assert "rank 1 n0  -  in all_reduce #1 of communicator 'right'" in shown
    assert effect.sentence.startswith(
        "Rank 1 on node n0 is in all_reduce #1 of communicator 'right' at step(), train.py line 1 "
        "(waiting for rank 2 for 5.0 s), and has not called all_reduce #1 of communicator 'left'."
    )


# The command line.

VERDICT = "Rank 3 on node n2 is in step(), train.py line 41, and has not called"


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    hosts, clocks = ["n0", "n0", "n1", "n2"], {"n1": 100.0}
    job = PlayedJob({"world": range(4)}, [loop("world", 30)] * 4, hosts, clocks)
    job.programs[3] = job.programs[3][:20]
    return job.write(tmp_path / "dumps")


def test_verdict_and_timeline(stuck: Path) -> None:
    with (stuck / "rank_3.json").open("a") as file:
        file.write(" " * (17 << 20))  # a dump may be long
    status, told, _ = called("explain", stuck, "--last", "8")
    assert (status, told.startswith(f"{VERDICT} all_reduce #21 of ")) == (1, True)
    timeline = [(rank, "=======-" if rank == "3" else "=======W") for rank in "0123"]
    assert re.findall(r"  rank (\d) n\d  (\S+)", told) == timeline
    assert max(map(len, told.splitlines())) <= 110
    assert "since 22:13:20 UTC" in " ".join(told.split())  # by the clock of n0
    document = json.loads(called("explain", stuck, "--json")[1])
    (fault,) = document["faults"]
    assert (document["status"], fault["sort"], fault["ranks"]) == (1, "missing", [3])
    assert (fault["collective"], fault["waiting"]) == (21, [0, 1, 2])


def test_ranks_of_one_job_without_a_communicator_in_common_are_read_together(tmp_path) -> None:
    halves = PlayedJob({"a": [0, 1], "b": [2, 3]}, [loop("a", 3)] * 2 + [loop("b", 3)] * 2)
    earlier = {**steps(5, 3).documents()[4], "time": 1.0}
    for rank, document in enumerate([*halves.documents().values(), earlier]):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps({**document, "job": "7.0"}))
    assert [dump.rank for dump in read_folder(tmp_path).dumps] == [0, 1, 2, 3]


def test_files_that_cannot_be_read_are_one_line_each(stuck: Path) -> None:
    whole = (stuck / "rank_0.json").read_text()
    old = PlayedJob({"earlier": range(9)}, [loop("earlier", 3)] * 9).documents()[8]
    (stuck / "rank_1.json").unlink()
    os.mkfifo(stuck / "rank_1.json")
    files = {
        "rank_0.json cannot be used: it is cut off": whole[: len(whole) // 2],
        "rank_4.json cannot be used: it is damaged": "[" * 100_000,
        "rank_5.json cannot be used: it is the dump of rank 0: it was renamed": whole,
        "rank_6.json cannot be used: it is empty": "",
        ".rank_7.1234 is half-written": "{",
        "notes.txt is not a dump": "",
        "rank_8.json is of another job": json.dumps({**old, "time": 1.0}),
    }
    for line, text in files.items():
        (stuck / line.split()[0]).write_text(text)
    status, told, _ = called("explain", stuck)
    assert (status, told.startswith(VERDICT)) == (1, True)
    assert "Of ranks 0 and 1 nothing is known." in " ".join(told.split())
    for line in ("rank_1.json cannot be used: it is a FIFO, not a regular file", *files):
        assert told.count(line) == 1, told
    for file in stuck.iterdir():
        file.unlink()
    status, _, said = called("explain", stuck)
    assert (status, said.count("\n")) == (2, 1)
    assert "holds no dump that can be read: it is empty" in said


VALUES = [None, -1, 1e308, float("nan"), float("inf"), "", "x", [], [[]], {}, {"a": 1}, True, "9" * 99]  # fmt: skip


@given(st.data())
def test_values_of_another_kind_are_no_traceback_either(tmp_path_factory, data) -> None:
    job = steps(2, 3)
    job.programs[1].pop()
    documents = job.documents()
    part: Any = documents[0]
    while True:
        key = data.draw(st.sampled_from(list(part) if isinstance(part, dict) else range(len(part))))
        if isinstance(part[key], dict | list) and part[key] and data.draw(st.booleans()):
            part = part[key]
            continue
        part[key] = data.draw(st.sampled_from(VALUES))
        break
    folder = write(documents, tmp_path_factory.mktemp("odd"))
    assert called("explain", folder)[0] in (0, 1)


# What errors mean.


def test_every_error_is_explained() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HpccommError)
    }
    assert classes - {"HpccommError"} <= {each.name for each in meanings.TABLE}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CollectiveTimeout", "CollectiveTimeout"),
        ("hpccomm.errors.RankMismatch: all_reduce (call 7 ...", "RankMismatch"),
        ("MPI_ERR_TRUNCATE: message truncated", "MPI_ERR_TRUNCATE"),
        ("exited with status 3", "status 3"),
        ("143", "status 143"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "xid-79"),
        ("nccl-shm-full", "nccl-shm-full"),
    ],
)
def test_a_text_that_contains_an_error_is_explained(text: str, name: str) -> None:
    assert output("explain", text).startswith(f"{name}\n  ")


def test_each_line_of_a_text_is_explained_in_its_order() -> None:
    lines = "all well", "OSError: [Errno 28] No space left on device", "NVRM: Xid (PCI:1): 79"
    said = re.findall(r"^\S+$", output("explain", "\n".join(lines)), re.M)
    assert said == ["sys-no-space", "xid-79"]


NO_LOGS = sorted((Path(__file__).parent / "no_logs").iterdir())
"""What tools print that were run here (ip, lscpu, ompi_info, PyTorch's recorder), and after what bug reports show:
MiniGPT-4#45, openhpc#207, mpi-benchmarks#62."""


def test_what_is_no_log_is_said_to_be_none() -> None:
    for path in NO_LOGS:
        status, _, said = called("explain", path)
        assert status == 2
        assert f"{path} is not a log but " in said
        assert re.split(r"[_.]", path.name)[0] in said
        assert ("a port of a network adapter is down" in said) == path.name.startswith("ib")


def test_a_log_may_begin_with_what_tools_print(tmp_path: Path) -> None:
    tools = [path for path in NO_LOGS if path.name.startswith(("nvidia", "ib", "lscpu"))]
    shown = "".join(path.read_text() for path in tools)
    (tmp_path / "log").write_text(f"{shown}step 1 loss 2.5\n")
    assert "Worth a look: line 26, 2 times: a port" in output("explain", tmp_path / "log")
