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


def test_a_seed_says_all():
    assert [deal(seed) for seed in (5, 700)] == [deal(seed) for seed in (5, 700)]
    again = len(PAIRS) + 5
    assert (deal(again).kind, deal(again).operation) == (deal(5).kind, deal(5).operation)
    assert deal(again) != replace(deal(5), seed=again)


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
LATE = replace(STOP, kind="late")
SKIPPED = replace(STOP, kind="skipped")
KILL = replace(STOP, kind="kill")


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
        if case.kind == "late":
            noted.append(event("done"))
        events[rank] = noted
    return Seen(status, events, "", stderr, seconds, **left)


ENDED = "hpccomm: all_reduce ... waits for rank 1, which is stopped\n"
BY_LAUNCHER = (
    "prterun noticed that process rank 1 with PID 7 on node n exited on\nsignal 9 (Killed).\n"
)


@pytest.mark.parametrize(
    ("case", "seen"),
    [
        (STOP, job(STOP, error())),
        (STOP, job(STOP, None, 3, ENDED)),
        (RETURNS, job(RETURNS, error(), 3, ENDED)),
        (STOP, job(STOP, {0: error()}, 3)),  # the job was ended before the other could tell
        (SHAPE, job(SHAPE, error("RankMismatch"))),
        (LATE, job(LATE, status=0)),
        (SKIPPED, job(SKIPPED, error("RankMismatch"))),
        (KILL, job(KILL, None, 137, BY_LAUNCHER)),
        (KILL, job(KILL, error("PeerLost"), 7)),
    ],
)
def test_good_ends_are_as_promised(case: Case, seen: Seen):
    assert judge(case, seen).shortfalls == ()


WRONG = event("wrong", iteration=3)


@pytest.mark.parametrize(
    ("worst", "case", "seen"),
    [
        (judging.HANG, STOP, job(STOP, error(), None)),
        (judging.CRASH, SHAPE, job(SHAPE, None, 134)),
        (judging.CRASH, SHAPE, job(SHAPE, None, -11)),
        (
            judging.CRASH,
            SHAPE,
            job(SHAPE, error("RankMismatch"), 7, "double free or corruption (!prev)"),
        ),
        (
            judging.CRASH,
            KILL,
            job(KILL, None, 1, "process rank 0 ... exited on signal 7 (Bus error)"),
        ),
        (judging.WRONG, SHAPE, job(SHAPE, WRONG, 0)),
        (judging.WRONG, SKIPPED, job(SKIPPED, WRONG, 0)),
        (judging.WRONG, LATE, job(LATE, WRONG, 0)),
        (judging.UNTOLD, SHAPE, job(SHAPE, status=0)),
        (judging.UNTOLD, STOP, job(STOP, status=0)),
        (judging.EARLIER, SHAPE, job(SHAPE, {0: WRONG, 2: error("RankMismatch")}, 7)),
        (judging.CLASS, SHAPE, job(SHAPE, error("CollectiveTimeout"))),
        (judging.CLASS, STOP, job(STOP, {0: error()})),  # rank 2 told nothing
        (judging.CLASS, STOP, job(STOP, None, 7)),
        (judging.STATUS, STOP, job(STOP, error(), 2)),
        (judging.STATUS, RETURNS, job(RETURNS, error(), 7)),
        (judging.STATUS, LATE, job(LATE, status=7)),
        (judging.SLOW, STOP, job(STOP, error(), seconds=8.2)),
        (judging.UNNAMED, STOP, job(STOP, error(ranks=()))),
        (judging.UNNAMED, STOP, job(STOP, error(ranks=(2,)))),
        (judging.UNNAMED, STOP, job(STOP, error(ranks=(0, 1)))),
        (judging.UNNAMED, STOP, job(STOP, {0: error(), 2: error(ranks=())})),
        (
            judging.UNNAMED,
            STOP,
            job(STOP, None, 3, "hpccomm: rank 0 ends the job: a call is blocked"),
        ),
        (
            judging.UNNAMED,
            STOP,
            job(STOP, None, 3, "hpccomm: all_reduce (call 4, rank 1 of 3) hangs"),
        ),
        (judging.LEFT, STOP, job(STOP, error(), processes=("12: python",))),
        (judging.LEFT, STOP, job(STOP, error(), files=("/dev/shm/x",))),
        (judging.INTERNAL, STOP, job(STOP, error(), stderr="hpccomm: the watchdog failed\n")),
        (judging.INTERNAL, STOP, job(STOP, error(), stderr="Timeout (0:00:30)!\n")),
        (judging.CRASH, STOP, job(STOP, None, 139, "Signal: Segmentation fault (11)")),
        (judging.LAUNCHER, STOP, job(STOP, error(), 7, "prterun ...\nSegmentation fault\n")),
        (judging.BROKEN, STOP, replace(job(STOP), events={rank: [] for rank in range(3)})),
    ],
)
def test_bad_ends_are_found(worst: str, case: Case, seen: Seen):
    verdict = judge(case, seen)
    assert verdict.worst == worst, verdict
    assert verdict.named is not True or worst != judging.UNNAMED


@pytest.mark.parametrize(
    ("text", "accused"),
    [
        ("rank 1 (host n, pid 7) has not called all_reduce #4; ranks 0 and 2 wait in it", {1}),
        ("ranks 0-2 and 5 are stopped", {0, 1, 2, 5}),
        ("ranks 1, 3 have ended; 4 s", {1, 3}),
        ("all ranks have called it", set()),
        ("hpccomm: rank 0 ends: it was sent SIGTERM", set()),
        ("hpccomm: rank 0 exits with status 7, and has waited for the others", set()),
        (
            "the ranks call different things as number 3: ranks 0 and 2: all_reduce(count 5); "
            "rank 1: all_reduce(count 6)",
            {1},
        ),
    ],
)
def test_whom_a_text_accuses(text: str, accused: set[int]):
    assert naming.accused(text) == accused


def test_a_later_call_tells_of_the_failure():
    later = error("CommunicatorAborted")
    assert judge(SHAPE, job(SHAPE, later)).worst == judging.CLASS
    later["text"] = "communicator 'chaos' has failed and takes no more calls (RankMismatch: gather)"
    assert judge(SHAPE, job(SHAPE, later)).worst is None


def test_two_ranks_that_differ_name_either():
    pair = replace(SHAPE, ranks=2)
    assert judge(pair, job(pair, error("RankMismatch", (0,)), 7)).named is False  # itself alone
    assert judge(pair, job(pair, error("RankMismatch", (0, 1)), 7)).named


LOST = replace(STOP, kind="lost")
SCHEDULE = replace(STOP, operation="schedule", algorithm="ring", companion=False)
LEFT_LEAF = replace(
    STOP, kind="sys_exit", collective="broadcast", root=0, faulty=1, companion=False
)
MESSAGE = replace(STOP, kind="shape", operation="message", algorithm=None, companion=False)
FOREIGN = event("foreign", error="TypeError('x')")
DONE = event("done")
BANNER = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: {}\n"
EVERYBODY = (
    "hpccomm: the ranks call different things as number 3: rank 0: all_reduce(count 5); "
    "rank 1: all_reduce(count 6); rank 2: all_reduce(count 7)\n"
)


def each_event(case: Case, healthy: list[dict[str, object]], **job_: object) -> Seen:
    """A job whose healthy ranks all noted these events."""
    seen = job(case, None, **job_)  # type: ignore[arg-type]
    events = {r: [*e, *(healthy if r != case.faulty else [])] for r, e in seen.events.items()}
    return replace(seen, events=events)


@pytest.mark.parametrize(
    ("worst", "case", "seen"),
    [
        # What the job wrote accuses nobody, everybody, or another rank than the faulty one.
        (judging.UNNAMED, STOP, job(STOP, None, 3, "hpccomm: rank 1 ends: it was sent SIGTERM\n")),
        (judging.UNNAMED, STOP, job(STOP, None, 3, "hpccomm: x\nAbort(3) on node 1 (rank 1 in c)")),
        (judging.UNNAMED, SHAPE, job(SHAPE, None, 3, EVERYBODY)),
        # A lost rank's job has status 0 whatever its ranks told.
        (judging.EARLIER, LOST, each_event(LOST, [WRONG, error("PeerLost")], status=0)),
        # Errors that are not hpccomm's, where the launcher is excused.
        (judging.INTERNAL, KILL, job(KILL, FOREIGN, 137, BY_LAUNCHER)),
        (judging.CRASH, SHAPE, replace(job(SHAPE, error("RankMismatch"), 11), vendor="mpich")),
        (
            judging.CRASH,
            SHAPE,
            replace(job(SHAPE, error("RankMismatch")), stdout="Segmentation fault (signal 11)"),
        ),
        # Wrong numbers and no error, beside a rank that told one.
        (
            judging.UNTOLD,
            SKIPPED,
            replace(
                job(SKIPPED, error("RankMismatch")),
                events=job(SKIPPED, error("RankMismatch")).events
                | {2: [event("started"), WRONG, DONE]},
            ),
        ),
        (judging.UNTOLD, LEFT_LEAF, job(LEFT_LEAF, None, 0)),
        (
            judging.UNTOLD,
            replace(LEFT_LEAF, faulty=0),
            each_event(replace(LEFT_LEAF, faulty=0), [DONE], status=0),
        ),
        # Who told no error, though nothing but the program ended the job.
        (judging.CLASS, KILL, job(KILL, {0: error("PeerLost")}, 7)),
        (
            judging.CLASS,
            replace(STOP, caught=False),
            job(replace(STOP, caught=False), {0: error()}, 1, "rank 0 ...: The job ends now\n"),
        ),
        (judging.STATUS, SCHEDULE, job(SCHEDULE, None, 3, ENDED)),
        (judging.CLASS, MESSAGE, job(MESSAGE, error(), 7)),
        (judging.CLASS, LEFT_LEAF, job(LEFT_LEAF, error(), 7)),
        # Healthy ranks beside the faulty one in an error that is no deadline's.
        (
            judging.UNNAMED,
            replace(SHAPE, collective="broadcast"),
            job(replace(SHAPE, collective="broadcast"), error("RankMismatch", (0, 1))),
        ),
        (
            judging.UNNAMED,
            replace(STOP, collective="reduce_scatter"),
            job(replace(STOP, collective="reduce_scatter"), error(ranks=(0, 1))),
        ),
        (judging.SLOW, LATE, job(LATE, status=0, seconds=9.0)),
        (judging.STATUS, STOP, replace(job(STOP, error(), 9), vendor="mpich")),
    ],
)
def test_holes_are_closed(worst: str, case: Case, seen: Seen):
    verdict = judge(case, seen)
    assert verdict.worst == worst, verdict


def test_good_ends_stay_as_promised():
    leaf = each_event(LEFT_LEAF, [DONE], status=0)
    assert judge(LEFT_LEAF, leaf).shortfalls == ()
    killed = replace(job(STOP, error(), 9), vendor="mpich", stdout=BANNER.format(9))
    assert judge(STOP, killed).shortfalls == ()
    caught = replace(job(STOP, error(), 7), vendor="mpich", stdout=BANNER.format(7))
    assert judge(STOP, caught).shortfalls == ()


def test_ranks_that_wait_for_each_other_are_named_fairly():
    case = replace(SKIPPED, operation="message")
    crossed = error("RankMismatch", (2,))
    crossed["text"] = (
        "the ranks wait for each other: rank 2 is in send_recv; ranks 0 and {} wait in it"
    )
    fair = crossed | {"text": str(crossed["text"]).format(1)}
    assert judge(case, job(case, fair)).named is True
    unfair = crossed | {"text": str(crossed["text"]).format(3)}
    assert judge(case, job(case, unfair)).named is False


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
