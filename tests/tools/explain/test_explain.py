"""`hpccomm explain` on jobs with a known fault."""

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from histories import Made, PlayedJob, explained, loop, write
from hypothesis import given
from hypothesis import strategies as st

from hpccomm import errors
from hpccomm.tools.explain import explain, faults, meanings
from hpccomm.tools.explain.dumps import read_folder
from hpccomm.tools.explain.faults import Fault
from hpccomm.tools.main import main


def found(
    job: PlayedJob, tmp_path_factory: pytest.TempPathFactory
) -> tuple[faults.Job, list[Fault]]:
    return explained(job.documents(), tmp_path_factory.mktemp("dumps"))


def steps(size: int, count: int = 5) -> PlayedJob:
    """A job of ranks that make the same calls."""
    return PlayedJob({"world": range(size)}, [loop("world", count)] * size)


def rank_2_is_gone(played: PlayedJob, folder: Path) -> tuple[faults.Job, list[Fault]]:
    """As `found`, where the others know that the process of rank 2 ended in a call, and it left no dump."""
    documents = played.documents()
    del documents[2]
    for document in documents.values():
        document["answers"]["world"]["2"] = {"state": "gone", "facts": {"collective": 5}}
    return explained(documents, folder)


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
def test_who_has_not_come_is_named(tmp_path_factory, seed: int, left: str) -> None:
    drawn = Drawn(seed)
    drawn.job.programs[drawn.rank] = drawn.job.programs[drawn.rank][: drawn.at]
    if left != "dump":
        drawn.job.silent = {drawn.rank: left}
    job, (fault, *more) = found(drawn.job, tmp_path_factory)
    assert not more
    operation = drawn.job.programs[drawn.others[0]][drawn.at].operation
    assert (fault.sort, fault.ranks, fault.waiting) == ("missing", (drawn.rank,), drawn.others)
    assert (fault.number, fault.operation) == (drawn.at + 1, operation)
    said = explain.sentence(job, fault)
    what = f"{operation} #{drawn.at + 1} of communicator 'world'"
    host = drawn.job.hosts[drawn.rank]
    does = {
        "dump": f"Rank RANK on node HOST is in step(), train.py line 41, and has not called {what}",
        "none": "Rank RANK left no dump",
        "gone": "The process of rank RANK on node HOST has ended",
        "stopped": "Rank RANK on node HOST is stopped",
        "silent": "Rank RANK on node HOST does not answer",
    }
    assert said.startswith(does[left].replace("RANK", str(drawn.rank)).replace("HOST", host))
    assert what in said


@given(
    SEEDS,
    st.sampled_from(
        [{"count": 3}, {"dtype": "int64"}, {"operation": "scan"}, {"op": "PROD"}, {"root": 1}]
    ),
)
def test_who_differs_is_named_with_what_differs(tmp_path_factory, seed: int, changed) -> None:
    drawn = Drawn(seed, smallest=3)
    drawn.job.change(drawn.rank, drawn.at, **changed)
    job, (fault, *more) = found(drawn.job, tmp_path_factory)
    assert not more
    assert (fault.sort, fault.number, fault.ranks) == ("differing", drawn.at + 1, (drawn.rank,))
    assert list(fault.differences) == list(changed)
    ((name, value),) = changed.items()
    assert fault.differences[name][drawn.rank] == str(value)
    said = explain.sentence(job, fault)
    assert f"rank {drawn.rank} on node" in said
    assert str(value) in said


@given(SEEDS)
def test_a_call_that_was_left_out_is_named(tmp_path_factory, seed: int) -> None:
    drawn = Drawn(seed, smallest=3)
    body = [Made("world", "all_gather", {"count": 4}, 7), Made("world", "barrier", {}, 8)]
    drawn.job.programs[:] = [body * 6 for _ in range(drawn.size)]
    at = 2 * drawn.draw.randint(1, 4)
    del drawn.job.programs[drawn.rank][at]
    job, (fault,) = found(drawn.job, tmp_path_factory)
    assert (fault.sort, fault.number, fault.ranks) == ("differing", at + 1, (drawn.rank,))
    assert f"rank {drawn.rank} left out all_gather #{at + 1} (step(), train.py line 7)" in (
        explain.sentence(job, fault)
    )


@given(SEEDS)
def test_ranks_that_wait_for_each_other_in_several_communicators(
    tmp_path_factory, seed: int
) -> None:
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
    job, (fault, *after) = found(
        PlayedJob({"world": range(size), **pairs}, programs), tmp_path_factory
    )
    assert (fault.sort, fault.ranks) == ("cycle", tuple(sorted(ring)))
    said = explain.sentence(job, fault)
    assert all(repr(name) in said for name in pairs)
    # Whoever waits in the barrier waits for those of the cycle: no cause, if it is said at all.
    assert {each.sort for each in after} <= {"missing"}


@given(SEEDS)
def test_who_was_late_is_named_whatever_the_clocks_say(tmp_path_factory, seed: int) -> None:
    drawn = Drawn(seed)
    drawn.job.delays[drawn.rank, drawn.at] = 1.25
    _, (fault,) = found(drawn.job, tmp_path_factory)
    assert (fault.sort, fault.number, fault.ranks) == ("late", drawn.at + 1, (drawn.rank,))
    assert fault.seconds == pytest.approx(1.25, abs=0.01)
    assert fault.times == (1, drawn.steps)


@given(SEEDS)
def test_nothing_is_found_where_nothing_is_wrong(tmp_path_factory, seed: int) -> None:
    _, nothing = found(Drawn(seed).job, tmp_path_factory)
    assert nothing == []


def test_ranks_that_crashed_are_named_though_nobody_waited_for_long(tmp_path_factory) -> None:
    played = steps(4)
    del played.programs[2][3:]
    played.silent = {2: "none"}
    played.deadline = 0.01  # the launcher ends the others at once
    job, (fault,) = found(played, tmp_path_factory)
    assert (fault.sort, fault.ranks, fault.number) == ("missing", (2,), 4)
    assert "Rank 2 left no dump and gave no answer, so probably it was killed or crashed" in (
        explain.sentence(job, fault)
    )


def test_of_two_ranks_that_differ_neither_is_taken_for_the_right_one(tmp_path_factory) -> None:
    played = steps(2)
    played.change(1, 3, count=3)
    job, (fault,) = found(played, tmp_path_factory)
    assert (fault.sort, fault.ranks, fault.number) == ("differing", (0, 1), 4)
    said = explain.sentence(job, fault)
    assert "the ranks call different things as number 4: rank 0: " in said
    assert "(count 3) at step(), train.py line 13" in said


def test_a_rank_whose_process_has_ended_within_the_call_is_named(tmp_path: Path) -> None:
    """All have called it, so that no rank is missing."""
    played = steps(3)
    del played.programs[2][4:]
    job, (fault,) = rank_2_is_gone(played, tmp_path)
    assert (fault.sort, fault.ranks, fault.waiting) == ("missing", (2,), (0, 1))
    said = explain.sentence(job, fault)
    assert said.startswith("The process of rank 2, which has called it, has ended")


def test_what_is_known_of_one_communicator_is_not_taken_for_another(tmp_path: Path) -> None:
    programs = [[*loop("world", 5), Made("pair")], loop("world", 5), loop("world", 5)]
    played = PlayedJob({"world": range(3), "pair": [0, 2]}, programs)
    job, (fault,) = rank_2_is_gone(played, tmp_path)
    assert (fault.sort, fault.uid, fault.number, fault.ranks) == ("missing", "pair", 1, (2,))
    assert explain.sentence(job, fault).startswith("The process of rank 2 has ended. Rank 0 has")


def test_a_cause_comes_before_what_follows_from_it(tmp_path_factory) -> None:
    # Rank 2 is in step(); rank 1 waits for it in 'right', and rank 0 for rank 1 in 'left'.
    left, right = Made("left"), Made("right")
    job, (cause, effect) = found(
        PlayedJob({"left": [0, 1], "right": [1, 2]}, [[left], [right, left], []]), tmp_path_factory
    )
    assert (cause.uid, cause.ranks, effect.uid, effect.ranks) == ("right", (2,), "left", (1,))
    assert explain.sentence(job, effect).startswith(
        "Rank 1 on node n0 is in all_reduce #1 of communicator 'right' at step(), train.py line 1 "
        "(waiting for rank 2 for 5.0 s), and has not called all_reduce #1 of communicator 'left'."
    )


# The command line.


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    job = PlayedJob({"world": range(4)}, [loop("world", 30)] * 4, ["n0", "n0", "n1", "n2"])
    job.programs[3] = job.programs[3][:20]
    return job.write(tmp_path / "dumps")


def test_verdict_and_timeline(stuck: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (stuck / "rank_3.json").open("a") as file:
        file.write(" " * (17 << 20))  # a dump may be long
    assert main(["explain", str(stuck), "--last", "8"]) == 1
    told = capsys.readouterr().out
    assert told.startswith(
        "Rank 3 on node n2 is in step(), train.py line 41, and has not called all_reduce #21 of "
    )
    timeline = [(rank, "=======-" if rank == "3" else "=======W") for rank in "0123"]
    assert re.findall(r"  rank (\d) n\d  (\S+)", told) == timeline
    assert max(map(len, told.splitlines())) <= 100
    assert main(["explain", str(stuck), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (fault,) = document["faults"]
    assert (document["status"], fault["sort"], fault["ranks"]) == (1, "missing", [3])
    assert (fault["collective"], fault["waiting"]) == (21, [0, 1, 2])


def test_ranks_of_one_job_without_a_communicator_in_common_are_read_together(
    tmp_path: Path,
) -> None:
    halves = PlayedJob({"a": [0, 1], "b": [2, 3]}, [loop("a", 3)] * 2 + [loop("b", 3)] * 2)
    earlier = {**steps(5, 3).documents()[4], "time": 1.0}
    for rank, document in enumerate([*halves.documents().values(), earlier]):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps({**document, "job": "7.0"}))
    assert [dump.rank for dump in read_folder(tmp_path).dumps] == [0, 1, 2, 3]


def test_files_that_cannot_be_read_are_one_line_each(stuck: Path, tmp_path: Path, capsys) -> None:
    whole = (stuck / "rank_0.json").read_text()
    (stuck / "rank_0.json").write_text(whole[: len(whole) // 2])
    (stuck / "rank_1.json").unlink()
    os.mkfifo(stuck / "rank_1.json")
    (stuck / "rank_4.json").write_text("[" * 100_000)
    (stuck / "rank_5.json").write_text(whole)
    (stuck / "rank_6.json").write_text("")
    (stuck / "rank_7.json.1234").write_text("{")
    (stuck / "notes.txt").write_text("")
    old = PlayedJob({"earlier": range(9)}, [loop("earlier", 3)] * 9).documents()[8]
    (stuck / "rank_8.json").write_text(json.dumps({**old, "time": 1.0}))
    assert main(["explain", str(stuck)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("Rank 3 on node n2 is in step(), train.py line 41, and has not called")
    assert "Of ranks 0 and 1 nothing is known." in " ".join(told.split())
    for line in (
        "rank_0.json cannot be used: it is cut off",
        "rank_1.json cannot be used: it is a FIFO, not a regular file",
        "rank_4.json cannot be used: it is nested too deeply",
        "rank_5.json cannot be used: it is the dump of rank 0: it was renamed",
        "rank_6.json cannot be used: it is empty",
        "rank_7.json.1234 is half-written",
        "notes.txt is not a dump",
        "rank_8.json is of another job",
    ):
        assert told.count(line) == 1, told
    for file in stuck.iterdir():
        file.unlink()
    assert main(["explain", str(stuck)]) == 2
    said = capsys.readouterr().err
    assert "holds no dump that can be read: it is empty" in said
    assert said.count("\n") == 1


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
    assert main(["explain", str(folder)]) in (0, 1)


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
        ("There are not enough slots available in the system to satisfy the 9", "ompi-slots"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "xid-79"),
        ("nccl-shm-full", "nccl-shm-full"),
        ("OSError: [Errno 28] No space left on device", "sys-no-space"),
    ],
)
def test_a_text_that_contains_an_error_is_explained(text: str, name: str, capsys) -> None:
    assert main(["explain", text]) == 0
    assert capsys.readouterr().out.startswith(f"{name}\n  ")


def test_what_cannot_be_explained_is_one_line_and_status_2(capsys) -> None:
    for words in (["no such thing"], [""], ["CollectiveTimeout", "--output", "x"], ["x" * 5000]):
        assert main(["explain", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("hpccomm: error: ")
        assert said.count("\n") == 1


NO_LOGS = sorted((Path(__file__).parent / "no_logs").iterdir())
"""What tools print that were run here (ip, lscpu, ompi_info, PyTorch's recorder), and after what bug reports show:
MiniGPT-4#45, openhpc#207, mpi-benchmarks#62."""


def test_what_is_no_log_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    for path in NO_LOGS:
        assert main(["explain", str(path)]) == 2
        said = capsys.readouterr().err
        assert f"{path} is not a log but " in said
        assert re.split(r"[_.]", path.name)[0] in said
        assert ("a port of a network adapter is down" in said) == path.name.startswith("ib")


def test_a_log_may_begin_with_what_tools_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [
        path.read_text() for path in NO_LOGS if path.name.startswith(("nvidia", "ib", "lscpu"))
    ]
    (tmp_path / "log").write_text("".join(shown) + "step 1 loss 2.5\n")
    assert main(["explain", str(tmp_path / "log")]) == 0
    assert "Worth a look: line 26, 2 times: a port" in capsys.readouterr().out
