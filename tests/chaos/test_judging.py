"""The choice of cases, and the judge, which must find the fault of every made-up bad job."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from chaos import judging, naming, operations, running
from chaos.cases import APPLIES, KINDS, OPERATIONS, PAIRS, Case, deal
from chaos.judging import judge
from chaos.running import Seen


def test_a_round_of_seeds_has_every_fault_in_every_operation():
    every = {(kind, operation) for kind in KINDS for operation in APPLIES[kind]}
    dealt = [deal(seed) for seed in range(len(PAIRS))]
    assert {(case.kind, case.operation) for case in dealt} == every
    assert len(PAIRS) == len(every)
    first = dealt[:40]
    assert {case.kind for case in first} == set(KINDS)
    assert {case.operation for case in first} == set(OPERATIONS)
    assert {case.ranks for case in first} == {2, 3, 4}


STOP = replace(
    deal(2),
    kind="stop",
    operation="native",
    collective="all_reduce",
    algorithm="native",
    ranks=3,
    faulty=1,
    caught=True,
    variant=0,
)
RETURNS = replace(STOP, variant=1)
SHAPE = replace(STOP, kind="shape")
KILL = replace(STOP, kind="kill")
LOST = replace(STOP, kind="lost")


def event(name: str, **facts: object) -> dict[str, object]:
    return {"event": name, "at": 100.0, **facts}


def error(kind: str = "CollectiveTimeout", ranks: tuple[int, ...] = (1,)) -> dict[str, object]:
    parents = [kind, "CommunicationError", "HpccommError"]
    return event("outcome", error=kind, kinds=parents, ranks=ranks, text="all_reduce: ...")


def job(
    case: Case,
    each: object = None,
    status: int | None = 7,
    stderr: str = "",
    seconds: float = 3.5,
    **left: tuple[str, ...],
) -> Seen:
    """A job whose healthy ranks all noted `each`, or for a dictionary what it has for them."""
    events = {}
    for rank in range(case.ranks):
        own = each.get(rank) if isinstance(each, dict) and "event" not in each else each
        noted = [event("started"), event("made")]
        if rank == case.faulty:
            noted.append(event("fault"))
        elif own is not None:
            noted.append(own)
        events[rank] = noted
    return Seen(status, events, "", stderr, seconds, **left)


BY_LAUNCHER = (
    "prterun noticed that process rank 1 with PID 7 on node n exited on\nsignal 9 (Killed).\n"
)


EVERYBODY = (
    "hpccomm: the ranks call different things as number 3: rank 0: all_reduce(count 5); "
    "rank 1: all_reduce(count 6); rank 2: all_reduce(count 7)\n"
)


LEAF = replace(STOP, kind="sys_exit", collective="broadcast", root=0, companion=False)
WRONG = event("wrong", iteration=3)


@pytest.mark.parametrize(
    ("worst", "case", "seen"),
    [
        (judging.HANG, STOP, job(STOP, error(), None)),
        (judging.CRASH, SHAPE, job(SHAPE, None, -11)),
        (judging.CRASH, STOP, job(STOP, None, 139, "Signal: Segmentation fault (11)")),
        (judging.WRONG, SHAPE, job(SHAPE, WRONG, 0)),
        (judging.UNTOLD, SHAPE, job(SHAPE, status=0)),
        (judging.UNTOLD, LEAF, job(LEAF, None, 0)),
        (judging.EARLIER, SHAPE, job(SHAPE, {0: WRONG, 2: error("RankMismatch")}, 7)),
        (judging.EARLIER, LOST, job(LOST, {0: WRONG, 2: error("PeerLost")}, 0)),
        (judging.CLASS, SHAPE, job(SHAPE, error("CollectiveTimeout"))),
        (judging.CLASS, STOP, job(STOP, {0: error()})),  # rank 2 told nothing
        (judging.STATUS, RETURNS, job(RETURNS, error(), 7)),
        (judging.STATUS, STOP, replace(job(STOP, error(), 9), open_mpi=False)),
        (judging.SLOW, STOP, job(STOP, error(), seconds=8.2)),
        (judging.UNNAMED, STOP, job(STOP, error(ranks=(2,)))),
        (judging.UNNAMED, STOP, job(STOP, error(ranks=(0, 1)))),
        (judging.UNNAMED, STOP, job(STOP, {0: error(), 2: error(ranks=())})),
        (judging.UNNAMED, STOP, job(STOP, None, 3, "hpccomm: rank 0 ends the job: it is blocked")),
        (judging.UNNAMED, SHAPE, job(SHAPE, None, 3, EVERYBODY)),
        (judging.LEFT, STOP, job(STOP, error(), processes=("12: python",))),
        (judging.LEFT, STOP, job(STOP, error(), files=("/dev/shm/x",))),
        (judging.INTERNAL, STOP, job(STOP, error(), stderr="hpccomm: the watchdog failed\n")),
        (
            judging.INTERNAL,
            KILL,
            job(KILL, event("foreign", error="TypeError()"), 137, BY_LAUNCHER),
        ),
        (judging.LAUNCHER, STOP, job(STOP, error(), 7, "prterun ...\nSegmentation fault\n")),
        (judging.BROKEN, STOP, replace(job(STOP), events={rank: [] for rank in range(3)})),
    ],
)
def test_bad_ends_are_found(worst: str, case: Case, seen: Seen):
    found = {name for name, _ in judge(case, seen)}
    assert worst in found
    # Of a crash nobody tells, nor does hpccomm choose the status.
    assert worst == judging.CRASH or found <= {worst, judging.CLASS}


@pytest.mark.parametrize(
    ("text", "accused"),
    [
        ("rank 1 (host n, pid 7) has not called all_reduce #4; ranks 0 and 2 wait in it", {1}),
        ("ranks 0-2 and 5 are stopped", {0, 1, 2, 5}),
        ("hpccomm: rank 0 ends: it was sent SIGTERM", set()),
        (
            "the ranks call different things as number 3: ranks 0 and 2: all_reduce(count 5); "
            "rank 1: all_reduce(count 6)",
            {1},
        ),
    ],
)
def test_whom_a_text_accuses(text: str, accused: set[int]):
    assert naming.accused(text) == accused


def test_two_ranks_that_differ_name_either():
    pair = replace(SHAPE, ranks=2)
    ((what, _),) = judge(pair, job(pair, error("RankMismatch", (0,)), 7))  # itself alone
    assert what == judging.UNNAMED
    assert judge(pair, job(pair, error("RankMismatch", (0, 1)), 7)) == []


def test_a_misplaced_block_is_not_equal():
    for count in (2, 3, 250, 5_000, 20_000, 150_000):
        case = replace(STOP, count=count, dtype="int64", ranks=4)
        blocks = {
            each.tobytes()
            for rank in range(4)
            for each in operations.block(case, rank, 0, 4).reshape(4, -1)
        }
        assert len(blocks) == 16
    right = operations.truth(STOP, 0, 0)
    assert operations.equal(right.copy(), right)
    assert not operations.equal(right.astype("float16"), right)


def test_a_process_that_outlives_its_job_is_found_and_ended():
    mark = uuid4().hex
    left = subprocess.Popen(["sleep", "60"], env=os.environ | {running.MARK: mark})
    # Popen returns when exec closes its pipe; Linux shows the new environment a moment later.
    environment = Path(f"/proc/{left.pid}/environ")
    try:
        while mark not in environment.read_text():
            assert left.poll() is None
        (found,) = running._processes_left(mark)
        assert found == f"{left.pid}: sleep 60"
        assert left.wait(60) == -signal.SIGKILL
    finally:
        left.kill()
        left.wait()


def test_what_a_job_leaves_is_found(tmp_path: Path):
    for part in ("work", "tmp", "shm"):
        (tmp_path / part).mkdir()
    (tmp_path / "shm" / "left").write_text("mpich_shm_1\nhpccomm-staging\n")
    (tmp_path / "tmp" / "prte.host.7").mkdir()
    (tmp_path / "work" / "hpccomm-dumps").mkdir()
    (tmp_path / "work" / "run.h5.partial").touch()
    assert sorted(running._files_left(tmp_path)) == [
        "/dev/shm/hpccomm-staging",
        "work/run.h5.partial",
    ]
