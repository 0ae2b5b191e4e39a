"""Errors of the program in dumps, in other ranks' messages and on the terminal: raised, or refused and caught."""

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Mpiexec
from histories import Made, PlayedJob, explained, loop

import hpccomm
from hpccomm.testing import run_ranks
from hpccomm.tools.explain import explain, faults
from hpccomm.tools.explain.dumps import read_folder
from hpccomm.tools.main import main

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

FAILS = {
    # What goes wrong, on which ranks it is raised, and the error.
    "refused": (
        "comm.all_reduce(x, op='SUMM' if comm.rank == 1 else hpccomm.ReduceOp.SUM)",
        [1],
        "UsageError: op is",
    ),
    "in a block": ("with comm: comm.all_reduce(x, op='SUMM')", [0, 1, 2], "UsageError: op is"),
    "message": (
        "comm.recv(x, 0) if comm.rank == 1 else comm.send(x[:3], 1) if comm.rank == 0 else None",
        [1],
        "BufferMismatch: rank 0 sent 24 bytes",
    ),
    "plan": ("comm.plan('all_reduce', x[comm.rank // 2:])", [0, 1, 2], "RankMismatch: plan"),
    "sync against ready": (
        "sync = GradientSync(comm, {'a': x}); sync.ready('a') if comm.rank else sync.sync()",
        [0, 1, 2],
        "RankMismatch: the ranks reduce a step in different ways",
    ),
    "the program's own": ("1 / (comm.rank - 1)", [1], "ZeroDivisionError: division by zero"),
    "without words": ("assert comm.rank != 1", [1], "AssertionError"),
}


@pytest.mark.parametrize(
    "kind",
    [
        name
        if name in ("refused", "in a block", "sync against ready")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in FAILS
    ],
)
def test_what_nobody_caught_outranks_what_is_inferred(
    mpiexec: Mpiexec, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails, ranks, error = FAILS[kind]
    (tmp_path / "program.py").write_text(PROGRAM.format(fails=fails))
    done = mpiexec(3, "program.py", cwd=tmp_path, env={"HPCCOMM_DUMP_DIR": "dumps"})
    assert done.returncode == 1, done.stderr
    told = done.stderr.splitlines()
    assert len(told) <= MOST_LINES, done.stderr
    assert (
        done.stderr.count("Traceback")
        == done.stderr.count(f"\n{error}") + done.stderr.count(f"errors.{error}")
        == 1
    ), done.stderr
    assert 'program.py", line 12, in step' in done.stderr
    assert "hpccomm/communicator" not in done.stderr  # own frames
    if kind == "in a block":  # as in Python's own output, what is wrong comes first
        assert told[0].endswith("raised:"), done.stderr
    if len(ranks) > 1:
        assert "raised the same" in done.stderr
    assert main(["explain", str(tmp_path / "dumps"), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["faults"][0]
    assert (first["sort"], first["ranks"]) == ("raised", ranks)
    assert error in first["sentence"]
    assert "(step(), program.py line 12)" in first["sentence"]


REFUSED = {
    "an operation": lambda comm, x: comm.all_reduce(x, op="SUMM"),
    "a root": lambda comm, x: comm.broadcast(x, root=9),
    "a strided array": lambda comm, x: comm.all_reduce(x[::2]),
    "a function that is none": lambda comm, x: comm.all_reduce(x, op=3),
}


def test_a_refused_call_that_was_caught_is_in_the_messages_and_dumps(tmp_path: Path) -> None:
    given_up = threading.Barrier(2)

    def refusal(comm: hpccomm.Communicator, refused: Callable[..., object]) -> None:
        try:
            refused(comm, np.ones(4))
        except hpccomm.UsageError:
            return
        raise AssertionError("it was not refused")

    def rank_main(comm: hpccomm.Communicator) -> list[str]:
        told = []
        for refused in REFUSED.values():
            part = comm.dup()
            if comm.rank == 1:
                refusal(part, refused)
            with pytest.raises(
                hpccomm.RankMismatch
            ) as raised:  # who has left a call out makes the next one
                part.barrier() if comm.rank == 1 else part.all_reduce(np.ones(4))
            told.append(str(raised.value))
        # The deadline asks the others as well.
        part = comm.dup()
        if comm.rank == 1:
            refusal(part, REFUSED["a root"])
        else:
            with pytest.raises(hpccomm.CollectiveTimeout) as late:
                part.barrier(timeout=0.1)
            told.append(str(late.value))
        given_up.wait(60)
        return told

    said, _ = run_ranks(2, rank_main)
    errors = ["op is 'SUMM'", "root is 9", "is not C-contiguous", "op is 3", "root is 9"]
    for text, error in zip(said, errors, strict=True):
        assert "rank 1 had a call refused at <lambda>(), test_errors.py line" in text
        assert error in text
    gc.collect()  # communicators of other ranks that earlier tests left, which were in the dump
    with hpccomm.new_comm("loopback") as comm:
        refusal(comm, REFUSED["an operation"])
        written = json.loads(hpccomm.dump(tmp_path).read_text())
    assert written["refused"]["error"].startswith("UsageError: op is 'SUMM'")
    assert "test_errors.py line" in written["refused"]["site"]
    (dump,) = read_folder(tmp_path).dumps
    assert dump.refused is not None
    assert dump.refused.site == written["refused"]["site"]


def played(tmp_path: Path, **rank_2: object) -> tuple[faults.Job, list[faults.Fault]]:
    """A job whose rank 2 has left its last call out, with more in its dump."""
    job = PlayedJob({"world": range(4)}, [loop("world", 5)] * 4)
    job.programs[2] = job.programs[2][:4]
    documents = job.documents()
    documents[2] |= rank_2
    return explained(documents, tmp_path)


REFUSAL = {"error": "UsageError: root is 9; give\nmore", "site": "step(), a.py line 7", "ago": 5.25}


def test_the_last_refused_call_is_told_of_the_rank_that_is_missed(tmp_path: Path) -> None:
    job, (fault,) = played(tmp_path, refused=REFUSAL)
    assert (fault.sort, fault.ranks) == ("missing", (2,))
    assert explain.sentence(job, fault).endswith(
        "Rank 2 had a call refused at step(), a.py line 7 5.2 s ago: UsageError: root is 9; give."
    )


@pytest.mark.parametrize(
    ("error", "sorts"),
    [
        ("RuntimeError: sense", ["raised"]),
        ("KeyboardInterrupt", ["missing"]),
        ("hpccomm's RankMismatch: plan", ["raised"]),
        ("CollectiveTimeout: all_reduce #5", ["missing"]),
        ("PeerLost: rank 1", ["missing"]),
    ],
)
def test_what_only_says_that_a_wait_has_ended_is_no_cause(
    tmp_path: Path, error: str, sorts: list[str]
) -> None:
    _, found = played(tmp_path, raised={**REFUSAL, "error": error})
    assert [each.sort for each in found] == sorts


def test_what_a_rank_said_last_is_told_of_it(tmp_path: Path) -> None:
    job, (fault,) = played(tmp_path, ended="rank 2 leaves by os._exit(4), without finalising MPI")
    assert "Rank 2 on node n0 has given up: leaves by os._exit(4)" in explain.sentence(job, fault)


def test_a_rank_that_was_ended_with_the_job_is_where_it_was(tmp_path: Path) -> None:
    for ended in ("rank 2 ends: it was sent SIGTERM", "rank 2 was interrupted at a.py, line 7"):
        job, (fault,) = played(tmp_path, ended=ended)
        said = explain.sentence(job, fault)
        assert said.startswith(
            "Rank 2 on node n0 is in step(), train.py line 41, and has not called"
        )


def test_a_rank_that_has_left_has_not_given_up_what_others_found(tmp_path: Path) -> None:
    now = {
        "world": {
            "closed": "was left: the program of this rank has ended",
            "failed": "rank 2 is lost",
        }
    }
    job, (fault,) = played(tmp_path, now=now)
    assert "Rank 2 on node n0 has come to the end of the program without this call" in (
        explain.sentence(job, fault)
    )


@pytest.mark.parametrize(
    ("ended", "sorts"),
    [
        (
            "rank 1 has waited for 3 s in MPI_Finalize: rank 2 is at a.py line 7. The job ends now",
            ["ended"],
        ),
        (
            "rank 1 ends the job: it exits with status 3, and has waited for the others for 2 s",
            ["ended"],
        ),
        ("rank 1 ends: it was sent SIGTERM", []),
        ("rank 1 was interrupted at a.py, line 7", []),
    ],
)
def test_a_rank_that_ended_by_itself_is_no_sign_that_nothing_is_wrong(
    tmp_path: Path, ended: str, sorts: list[str]
) -> None:
    documents = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3).documents()
    documents[1]["ended"] = ended
    joined, found = explained(documents, tmp_path)
    assert [each.sort for each in found] == sorts
    assert any(f"R{ended[1:]}" in each for each in explain.verdict_sentences(joined, found))


def test_a_mismatch_that_the_calls_show_is_told_once(tmp_path: Path) -> None:
    job = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3)
    job.change(1, 3, count=3)
    documents = job.documents()
    documents[1]["raised"] = {**REFUSAL, "error": "RankMismatch: the ranks call different things"}
    _, found = explained(documents, tmp_path)
    assert [each.sort for each in found] == ["differing"]


def test_a_late_rank_that_was_stopped_is_said_to_have_been(tmp_path: Path) -> None:
    job = PlayedJob({"world": range(3)}, [loop("world", 5)] * 3)
    job.delays[1, 3] = 2.0
    documents = job.documents()
    documents[0]["answers"]["world"]["1"] = {"state": "stopped", "host": "n0"}
    joined, (fault,) = explained(documents, tmp_path)
    assert fault.sort == "late"
    assert "Rank 1 was stopped, by SIGSTOP" in explain.sentence(joined, fault)


def test_a_refused_message_or_plan_is_over_when_its_rank_goes_on(tmp_path: Path) -> None:
    made = [Made("world", "plan"), Made("world", "barrier"), Made("world", "scan")]
    job = PlayedJob({"world": range(3)}, [made, made, made[:2]])
    documents = job.documents()
    for rank, document in documents.items():
        first = document["entries"][0]
        first |= {"state": "failed", "error": "RankMismatch: the ranks plan different collectives"}
        if rank == 0:  # which has taken a message of another size, and gone on
            taken = {"is_p2p": True, "collective_seq_id": 0, "profiling_name": "mpi:recv"}
            error = {"error": "BufferMismatch: rank 1 sent 8 bytes", "terms": {"src": 1}}
            document["entries"].insert(1, {**first, **taken, **error})
    _, (fault,) = explained(documents, tmp_path)
    assert (fault.sort, fault.operation, fault.ranks) == ("missing", "scan", (2,))


def test_of_the_calls_that_have_failed_the_last_is_why_a_rank_has_given_up(tmp_path: Path) -> None:
    job = PlayedJob({"world": range(4)}, [loop("world", 5)] * 4)
    job.programs[2] = job.programs[2][:4]
    documents = job.documents()
    last = documents[2]["entries"][-1]
    # Messages whose other ends are not known, so that they say nothing of who is awaited.
    batch = {
        **last,
        "is_p2p": True,
        "collective_seq_id": 0,
        "profiling_name": "mpi:batch",
        "terms": {},
    }
    for error in ("CollectiveTimeout: the first", "CollectiveTimeout: the second"):
        documents[2]["entries"].append({**batch, "state": "failed", "error": error})
    joined, (fault,) = explained(documents, tmp_path)
    assert (fault.sort, fault.ranks) == ("missing", (2,))
    said = explain.sentence(joined, fault)
    assert said.startswith("Rank 2 on node n0 has given up: CollectiveTimeout: the second.")
    assert "the first" not in said
