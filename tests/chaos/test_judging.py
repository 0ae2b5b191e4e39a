"""The choice of cases, and the judge, which must find the fault of every made-up bad job."""

from dataclasses import replace

import pytest

from chaos.cases import APPLIES, KINDS, OPERATIONS, PAIRS, Case, deal
from chaos.judging import judge
from chaos.naming import accused
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


STOP = replace(deal(2), kind="stop", operation="native", collective="all_reduce", ranks=3, faulty=1)
STOP = replace(STOP, algorithm="native", caught=True, variant=0)
RETURNS, SHAPE = replace(STOP, variant=1), replace(STOP, kind="shape")
KILL, LOST = replace(STOP, kind="kill"), replace(STOP, kind="lost")
LEAF = replace(STOP, kind="sys_exit", collective="broadcast", root=0, companion=False)


def event(name: str, **facts: object) -> dict[str, object]:
    return {"event": name, "at": 100.0, **facts}


def error(kind: str = "CollectiveTimeout", ranks: tuple[int, ...] = (1,)) -> dict[str, object]:
    parents = [kind, "CommunicationError", "HpccommError"]
    return event("outcome", error=kind, kinds=parents, ranks=ranks, text="all_reduce: ...")


def job(case: Case, each: object = None, status: int | None = 7, stderr: str = "", **more) -> Seen:
    """A job whose healthy ranks all noted `each`, or for a dictionary what it has for them."""
    events = {}
    for rank in range(case.ranks):
        own = each.get(rank) if isinstance(each, dict) and "event" not in each else each
        own = event("fault") if rank == case.faulty else own
        events[rank] = [event("started"), event("made"), *([own] if own else [])]
    return Seen(**({"seconds": 3.5} | more), status=status, events=events, stdout="", stderr=stderr)


BY_LAUNCHER = (
    "prterun noticed that process rank 1 with PID 7 on node n exited on\nsignal 9 (Killed).\n"
)
EVERYBODY = (
    "hpccomm: the ranks call different things as number 3: rank 0: all_reduce(count 5); "
    "rank 1: all_reduce(count 6); rank 2: all_reduce(count 7)\n"
)
WRONG, FOREIGN = event("wrong", iteration=3), event("foreign", error="TypeError()")
INTERNAL = "failure of hpccomm's own"


@pytest.mark.parametrize(
    ("worst", "case", "seen"),
    [
        ("hang", STOP, job(STOP, error(), None)),
        ("crash", SHAPE, job(SHAPE, None, -11)),
        ("crash", STOP, job(STOP, None, 139, "Signal: Segmentation fault (11)")),
        ("wrong number", SHAPE, job(SHAPE, WRONG, 0)),
        ("not told", SHAPE, job(SHAPE, status=0)),
        ("not told", LEAF, job(LEAF, None, 0)),
        ("wrong number before the error", SHAPE, job(SHAPE, {0: WRONG, 2: error("RankMismatch")})),
        ("wrong number before the error", LOST, job(LOST, {0: WRONG, 2: error("PeerLost")}, 0)),
        ("wrong class", SHAPE, job(SHAPE, error("CollectiveTimeout"))),
        ("wrong class", STOP, job(STOP, {0: error()})),  # rank 2 told nothing
        ("wrong status", RETURNS, job(RETURNS, error(), 7)),
        ("wrong status", STOP, job(STOP, error(), 9, open_mpi=False)),
        ("too late", STOP, job(STOP, error(), seconds=8.2)),
        ("not named", STOP, job(STOP, error(ranks=(2,)))),
        ("not named", STOP, job(STOP, error(ranks=(0, 1)))),
        ("not named", STOP, job(STOP, {0: error(), 2: error(ranks=())})),
        ("not named", STOP, job(STOP, None, 3, "hpccomm: rank 0 ends the job: it is blocked")),
        ("not named", SHAPE, job(SHAPE, None, 3, EVERYBODY)),
        ("left behind", STOP, job(STOP, error(), processes=("12: python",))),
        ("left behind", STOP, job(STOP, error(), files=("/dev/shm/x",))),
        (INTERNAL, STOP, job(STOP, error(), stderr="hpccomm: the watchdog failed\n")),
        (INTERNAL, KILL, job(KILL, FOREIGN, 137, BY_LAUNCHER)),
        ("crash of the launcher", STOP, job(STOP, error(), 7, "prterun ...\nAborted\n")),
        ("failed without the fault", STOP, replace(job(STOP), events={0: [], 1: [], 2: []})),
    ],
)
def test_bad_ends_are_found(worst: str, case: Case, seen: Seen):
    found = {name for name, _ in judge(case, seen)}
    assert worst in found
    # Of a crash nobody tells, nor does hpccomm choose the status.
    assert worst == "crash" or found <= {worst, "wrong class"}


def test_good_ends_are_good():
    pair = replace(SHAPE, ranks=2)
    for case, seen in (
        (STOP, job(STOP, error())),
        (KILL, job(KILL, None, 137, BY_LAUNCHER)),
        (pair, job(pair, error("RankMismatch", (0, 1)))),  # of two that differ, either does
    ):
        assert judge(case, seen) == []
    # Itself alone does not.
    assert [name for name, _ in judge(pair, job(pair, error("RankMismatch", (0,))))] == [
        "not named"
    ]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank 1 (host n, pid 7) has not called all_reduce #4; ranks 0 and 2 wait in it", {1}),
        ("ranks 0-2 and 5 are stopped", {0, 1, 2, 5}),
        ("hpccomm: rank 0 ends: it was sent SIGTERM", set()),
        ("call different things as number 3: ranks 0 and 2: f(count 5); rank 1: f(count 6)", {1}),
    ],
)
def test_whom_a_text_accuses(text: str, ranks: set[int]):
    assert accused(text) == ranks
