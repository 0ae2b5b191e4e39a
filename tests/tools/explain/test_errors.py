"""Errors of the program in dumps, in other ranks' messages and on the terminal: raised, or refused and caught."""

import gc
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Mpiexec
from damage import called
from histories import MESSAGE, Made, PlayedJob, explained, loop, only_fault

import hpccomm
from hpccomm.testing import run_ranks
from hpccomm.tools.explain import explain
from hpccomm.tools.explain.dumps import read_folder

MOST_LINES = 15
"""Of a job with a single fault, on the terminal: the launcher's own lines among them."""

PROGRAM = """
import sys
import numpy as np
import hpccomm
from hpccomm.gradients import GradientSync

comm = hpccomm.new_comm(timeout=20)
x = np.ones(10)
comm.all_reduce(x)

def step():
    {fails}

step()
comm.barrier()
"""

FAILS = [
    # What goes wrong, on which ranks it is raised, and the error.
    ("comm.all_reduce(x, op='SUMM' if comm.rank == 1 else hpccomm.ReduceOp.SUM)", [1], "UsageError: op is"),
    ("with comm: comm.all_reduce(x, op='SUMM')", [0, 1, 2], "UsageError: op is"),
    ("comm.recv(x, 0) if comm.rank == 1 else comm.send(x[:3], 1) if comm.rank == 0 else None", [1], "BufferMismatch: rank 0 sent 24 bytes"),
    ("comm.plan('all_reduce', x[comm.rank // 2:])", [0, 1, 2], "RankMismatch: plan"),
    ("sync = GradientSync(comm, {'a': x}); sync.ready('a') if comm.rank else sync.sync()", [0, 1, 2], "RankMismatch: the ranks reduce a step in different ways"),
    ("1 / (comm.rank - 1)", [1], "ZeroDivisionError: division by zero"),
    ("assert comm.rank != 1", [1], "AssertionError"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "ranks", "error"),
    [*FAILS[:2], *(pytest.param(*each, marks=pytest.mark.thorough) for each in FAILS[2:])],
)
def test_what_nobody_caught_outranks_what_is_inferred(
    mpiexec: Mpiexec, fails: str, ranks: list[int], error: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(fails=fails))
    done = mpiexec(3, "program.py", cwd=tmp_path, env={"HPCCOMM_DUMP_DIR": "dumps"})
    assert done.returncode == 1, done.stderr
    told = done.stderr.splitlines()
    assert len(told) <= MOST_LINES, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert done.stderr.count(f"\n{error}") + done.stderr.count(f"errors.{error}") == 1, done.stderr
    assert 'program.py", line 12, in step' in done.stderr
    assert "hpccomm/communicator" not in done.stderr  # own frames
    if fails.startswith("with"):  # as in Python's own output, what is wrong comes first
        assert told[0].endswith("raised:"), done.stderr
    if len(ranks) > 1:
        assert "raised the same" in done.stderr
    first = json.loads(called("explain", tmp_path / "dumps", "--json")[1])["faults"][0]
    assert (first["sort"], first["ranks"]) == ("raised", ranks)
    assert error in first["sentence"]
    assert "(step(), program.py line 12)" in first["sentence"]


REFUSED = {
    "op is 'SUMM'": lambda comm, x: comm.all_reduce(x, op="SUMM"),
    "root is 9": lambda comm, x: comm.broadcast(x, root=9),
    "is not C-contiguous": lambda comm, x: comm.all_reduce(x[::2]),
    "op is 3": lambda comm, x: comm.all_reduce(x, op=3),
}


def refusal(comm: hpccomm.Communicator, error: str) -> None:
    with pytest.raises(hpccomm.UsageError, match=error):
        REFUSED[error](comm, np.ones(4))


def test_a_refused_call_that_was_caught_is_in_the_messages_and_dumps(tmp_path: Path) -> None:
    given_up = threading.Barrier(2)

    def rank_main(comm: hpccomm.Communicator) -> dict[str, str]:
        told = {}
        for error in REFUSED:
            part = comm.dup()
            if comm.rank == 1:
                refusal(part, error)
            with pytest.raises(hpccomm.RankMismatch) as raised:  # it goes on to the next call
                part.barrier() if comm.rank == 1 else part.all_reduce(np.ones(4))
            told[error] = str(raised.value)
        # The deadline asks the others as well.
        part = comm.dup()
        if comm.rank == 1:
            refusal(part, "root is 9")
        else:
            with pytest.raises(hpccomm.CollectiveTimeout, match=r"rank 1 had a call .* root is 9"):
                part.barrier(timeout=0.1)
        given_up.wait(60)
        return told

    said, _ = run_ranks(2, rank_main)
    for error, text in said.items():
        assert "rank 1 had a call refused at <lambda>(), test_errors.py line" in text
        assert error in text
    gc.collect()  # communicators of other ranks that earlier tests left, which were in the dump
    with hpccomm.new_comm("loopback") as comm:
        refusal(comm, "op is 'SUMM'")
        written = json.loads(hpccomm.dump(tmp_path).read_text())
    assert written["refused"]["error"].startswith("UsageError: op is 'SUMM'")
    assert "test_errors.py line" in written["refused"]["site"]
    (dump,) = read_folder(tmp_path).dumps
    assert dump.refused is not None
    assert dump.refused.site == written["refused"]["site"]


REFUSAL = {"error": "UsageError: root is 9; give\nmore", "site": "step(), a.py line 7", "ago": 5.25}
LEFT = {"closed": "was left: the program of this rank has ended", "failed": "rank 2 is lost"}
REFUSED_CALL = "step(), a.py line 7 5.2 s ago: UsageError: root is 9; give."
RANK_2 = "Rank 2 on node n0"
IS_IN_STEP = f"{RANK_2} is in step(), train.py line 41, and has not called"


def raised(error: str) -> dict[str, object]:
    return {"raised": {**REFUSAL, "error": error}}


def played() -> dict[int, dict[str, Any]]:
    """The dumps of a job whose rank 2 has left its last call out."""
    job = PlayedJob({"world": range(4)}, [loop("world", 5)] * 4)
    del job.programs[2][4:]
    return job.documents()


@pytest.mark.parametrize(
    ("more", "sort", "said"),
    [
        # The last refused call is told of the rank that is missed.
        ({"refused": REFUSAL}, "missing", f"Rank 2 had a call refused at {REFUSED_CALL}"),
        # What only says that a wait has ended is no cause.
        (raised("RuntimeError: sense"), "raised", ""),
        (raised("KeyboardInterrupt"), "missing", ""),
        (raised("hpccomm's RankMismatch: plan"), "raised", ""),
        (
            raised("CollectiveTimeout: all_reduce #5"),
            "missing",
            "raised CollectiveTimeout (step(), a.py line 7)",
        ),
        (raised("PeerLost: rank 1"), "missing", ""),
        # What a rank said last is told of it; one that was ended with the job is where it was.
        ({"ended": "rank 2 leaves by os._exit(4)"}, "missing", f"{RANK_2} has given up: leaves by"),
        ({"ended": "rank 2 ends: it was sent SIGTERM"}, "missing", IS_IN_STEP),
        ({"ended": "rank 2 was interrupted at a.py, line 7"}, "missing", IS_IN_STEP),
        # One that has left has not given up what others found.
        (
            {"now": {"world": LEFT}},
            "missing",
            f"{RANK_2} has come to the end of the program without",
        ),
    ],
)
def test_what_the_dump_of_the_missing_rank_adds(more, sort: str, said: str) -> None:
    documents = played()
    documents[2] |= more
    fault, told = only_fault(documents)
    assert (fault.sort, fault.ranks) == (sort, (2,))
    assert said in told


@pytest.mark.parametrize(
    ("said", "sorts"),
    [
        ("has waited for 3 s in MPI_Finalize: rank 2 is at a.py line 7. The job ends now", ["ended"]),
        ("ends the job: it exits with status 3, and has waited for the others for 2 s", ["ended"]),
        ("ends: it was sent SIGTERM", []),
        ("was interrupted at a.py, line 7", []),
    ],
)  # fmt: skip
def test_a_rank_that_ended_by_itself_is_no_sign_that_nothing_is_wrong(said: str, sorts) -> None:
    documents = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3).documents()
    documents[1]["ended"] = f"rank 1 {said}"
    joined, found = explained(documents)
    assert [each.sort for each in found] == sorts
    assert f"Rank 1 {said}" in "\n".join(explain.verdict(joined, found))


def test_a_mismatch_that_the_calls_show_is_told_once() -> None:
    job = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3)
    job.change(1, 3, count=3)
    documents = job.documents()
    documents[1] |= raised("RankMismatch: the ranks call different things")
    assert only_fault(documents)[0].sort == "differing"


def test_a_late_rank_that_was_stopped_is_said_to_have_been() -> None:
    job = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3)
    job.delays[1, 3] = 2.0
    documents = job.documents()
    documents[0]["answers"]["world"]["1"] = {"state": "stopped", "host": "n0"}
    del documents[2]["entries"][0]  # a record does not go back for ever
    fault, said = only_fault(documents)
    assert (fault.sort, fault.number) == ("late", 4)
    assert "Rank 1 was stopped, by SIGSTOP" in said


def test_a_refused_message_or_plan_is_over_when_its_rank_goes_on() -> None:
    made = [Made("world", "plan"), Made("world", "barrier"), Made("world", "scan")]
    documents = PlayedJob({"world": range(3)}, [made, made, made[:2]]).documents()
    for document in documents.values():
        first = document["entries"][0]
        first |= {"state": "failed", "error": "RankMismatch: the ranks plan different collectives"}
    # Rank 0 has taken a message of another size, and gone on.
    entries = documents[0]["entries"]
    error = "BufferMismatch: rank 1 sent 8 bytes"
    entries.insert(1, {**entries[0], **MESSAGE, "error": error})
    fault, _ = only_fault(documents)
    assert (fault.sort, fault.operation, fault.ranks) == ("missing", "scan", (2,))


def test_of_the_calls_that_have_failed_the_last_is_why_a_rank_has_given_up() -> None:
    documents = played()
    entries = documents[2]["entries"]
    # Messages whose other ends are not known, so that they say nothing of who is awaited.
    batch = {**MESSAGE, "profiling_name": "mpi:batch", "terms": {}, "state": "failed"}
    for error in ("CollectiveTimeout: the first", "CollectiveTimeout: the second"):
        entries.append({**entries[-1], **batch, "error": error})
    fault, said = only_fault(documents)
    assert (fault.sort, fault.ranks) == ("missing", (2,))
    assert said.startswith(f"{RANK_2} has given up: CollectiveTimeout: the second.")
    assert "the first" not in said
