"""Ranks with different calls raise before data moves, with the call of each."""

import itertools
import re
import threading
from collections.abc import Iterator
from time import sleep

import numpy as np
import pytest
from calls import CALLS
from hypothesis import assume, given
from hypothesis import strategies as st
from ranked import on_threads

from hpccomm import CommOptions, Communicator, HpccommError, RankMismatch, UsageError, new_comm
from hpccomm.calls.lanes import HostLane
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted
from hpccomm.runtime.recorder import BEGIN, BLOCKING
from hpccomm.testing import run_ranks

NAMES = st.sampled_from(sorted(CALLS))


@given(NAMES, NAMES, st.integers(2, 3))
def test_any_two_calls_that_differ_are_a_mismatch_on_all_ranks(one, other, ranks) -> None:
    assume(one != other)

    def on_rank(comm) -> None:
        with pytest.raises(RankMismatch) as caught:
            CALLS[other if comm.rank == 1 else one](comm)
        assert caught.value.ranks == ((0, 1) if ranks == 2 else (1,))
        for each in (one, other):
            assert each.partition("(")[0] in str(caught.value)

    run_ranks(ranks, on_rank)


SHAPES = {
    "all_reduce": lambda comm, a, b: comm.all_reduce(np.ones((a, b))),
    "broadcast": lambda comm, a, b: comm.broadcast(np.ones((a, b))),
    "all_gather": lambda comm, a, b: comm.all_gather(np.ones((a, b))),
    "gather": lambda comm, a, b: comm.gather(np.ones((a, b))),
    "scan": lambda comm, a, b: comm.scan(np.ones((a, b)), async_op=True).wait(),
    "all_to_all": lambda comm, a, b: comm.all_to_all(np.ones((2, a, b))),
    "reduce_scatter_v": lambda comm, a, b: comm.reduce_scatter_v(np.ones((4, a, b)), [1, 3]),
    "all_to_all_v": lambda comm, a, b: comm.all_to_all_v(
        np.ones((3, a, b)), [1, 2] if comm.rank else [2, 1]
    ),
    "all_gather_v": lambda comm, a, b: comm.all_gather_v(np.ones((1 + comm.rank, a, b))),
    "plan": lambda comm, a, b: comm.plan("all_reduce", np.ones((a, b)))(),
}


@pytest.mark.parametrize("call", SHAPES.values(), ids=SHAPES)
@on_threads(2)
def test_elements_that_meet_in_another_order_are_a_mismatch_on_all_ranks(comm, call) -> None:
    call(comm, 4, 1)  # another shape before
    comm.barrier()
    with pytest.raises(RankMismatch, match="rank 0") as caught:
        call(comm, *((2, 3), (3, 2))[comm.rank])
    for shape in (r"shape \((2, )?2, 3\)", r"shape \((2, )?3, 2\)"):
        assert re.search(shape, str(caught.value))


def in_a_batch(comm, more: int) -> None:
    with comm.batch():
        comm.barrier()
        comm.all_reduce(np.ones(3 + more))


@on_threads(2)
def test_a_mismatch_tells_of_one_call_of_a_batch_and_of_no_refusal_that_was_long_ago(comm) -> None:
    with pytest.raises(UsageError):
        comm.all_reduce([1.5])
    for _ in range(20):
        comm.barrier()
    with pytest.raises(RankMismatch, match=": call 2 of the batch: rank 0: all_reduce") as caught:
        in_a_batch(comm, comm.rank)
    assert not re.search(r"refused|[{}]", str(caught.value))


@on_threads(2)
def test_shapes_whose_elements_meet_in_one_order_are_alike(comm) -> None:
    own = comm.rank == 1
    assert (comm.all_reduce(np.ones((3, 1, 2) if own else (1, 3, 2))) == 2).all()
    assert comm.all_reduce(np.ones(1) if own else np.ones(())).item() == 2
    assert comm.all_reduce(np.ones((2, 3)), out=np.empty(6 if own else (3, 2))).max() == 2
    # Only the root knows the whole of what it scatters.
    out = np.empty((2, 3) if own else (3, 2))
    comm.scatter(None if own else np.ones((2, 6)), out=out)
    comm.all_gather_v(np.ones((comm.rank, 2, 3)), [0, 1])


@pytest.mark.parametrize(
    ("check", "alike"), [("off", True), ("all", True), ("first", True), ("first", False)]
)
@pytest.mark.parametrize("crossed", [True, False])
def test_known_calls_that_differ_are_found_at_the_next_agreement(check, alike, crossed) -> None:
    """Each rank takes itself for the root: nobody waits, and without an agreement nobody notices.

    Which numbers come after such calls is undefined; else nothing was sent, and the next numbers are right.
    """

    def crosses(comm: Communicator) -> None:
        comm.broadcast(np.ones(2), comm.rank if crossed else 0, algorithm="binomial")

    words = "undefined" if crossed and alike else "split"

    def on_rank(comm: Communicator) -> None:
        for root in (0, 1):
            comm.broadcast(np.ones(2), root, algorithm="binomial")
        if check == "all" and crossed:
            with pytest.raises(RankMismatch, match=r"root 0.*root 1"):
                crosses(comm)
            return
        crosses(comm)
        if check == "off" or (alike and not crossed):
            comm.barrier()
            return
        with pytest.raises(RankMismatch, match=words) as caught:
            comm.split(0) if alike or comm.rank else comm.dup()
        if alike:
            for each in ("first was call", "0: broadcast(root 0)", "1: broadcast(root 1)"):
                assert each in str(caught.value)
        if not crossed:
            assert comm.all_reduce(1 + comm.rank) == 3
            return
        with pytest.raises(CommunicatorAborted, match=words):
            comm.broadcast(np.ones(2), 0, algorithm="binomial")

    run_ranks(2, on_rank, options=CommOptions(check=check))


FROM_ROOT = {
    "array": lambda comm, x, root: comm.broadcast(x, root, algorithm="binomial"),
    "asynchronous": lambda comm, x, root: comm.broadcast(
        x, root, algorithm="binomial", async_op=True
    ).wait(),
    "number": lambda comm, x, root: x.fill(comm.broadcast(x[0], root, algorithm="binomial")),
    "object": lambda comm, x, root: x.fill(comm.broadcast_object(x[0], root)),
}
"""Calls that the root completes before the others come."""


@pytest.mark.parametrize("form", FROM_ROOT)
@pytest.mark.parametrize("then", ["skips it", "repeats it", "all skip it"])
def test_numbers_after_a_caught_refusal_are_right_or_an_error(form: str, then: str) -> None:
    """The truth is the root's number of that step, as MPI's broadcasts of one root come in order."""
    ahead = threading.Event()

    def on_rank(comm: Communicator) -> tuple[list[float], str]:
        came, said = [], ""
        for step in range(6):
            if step == 2 and comm.rank == 0:
                ahead.wait(60)  # rank 1 has made all its calls
            x = np.full(2, float(step) if comm.rank else -1.0)
            refused = step == 2 and (comm.rank == 0 or then == "all skip it")
            try:
                FROM_ROOT[form](comm, x, 7 if refused else 1)
            except UsageError:
                if then != "repeats it":
                    continue
                FROM_ROOT[form](comm, x, 1)
            except RankMismatch as error:
                said = str(error)
                break
            came.append(x[0])
        ahead.set()
        if comm.rank and then == "skips it":
            with pytest.raises(RankMismatch, match="has refused a call"):
                comm.barrier()
        return came, said

    steps = {"skips it": [0, 1], "repeats it": [*range(6)], "all skip it": [0, 1, 3, 4, 5]}
    came, said = run_ranks(2, on_rank)[0]
    assert came == steps[then]
    refused = "refused a call at .*test_agreement.py line .* root is 7.*, which rank 1 made"
    assert bool(re.search(refused, said)) is (then == "skips it"), said


@pytest.mark.parametrize("async_op", [False, True])
def test_a_call_that_another_rank_begins_just_now_has_not_been_made(async_op: bool) -> None:
    """The other rank has numbered its call, and is asked before the call is among those under way."""
    begun = threading.Event()

    def on_rank(comm: Communicator) -> float:
        x = np.ones(2)
        comm.all_reduce(x)
        if comm.rank == 0:
            calls = comm._core.calls  # its thread is held between two statements of a call
            keep = calls.record
            calls.record = lambda entry: (begun.set(), sleep(1), keep(entry))
        else:
            with pytest.raises(UsageError):
                comm.all_reduce(x, op=7)
            begun.wait(60)
        work = comm.all_reduce(x, async_op=async_op)
        return (work.wait() if async_op else work)[0]

    assert run_ranks(2, on_rank) == [4, 4]


@pytest.mark.parametrize("form", ["call", "plan", "asynchronous"])
@on_threads(2)
def test_known_calls_in_another_order_are_found_before_long(comm, form: str) -> None:
    a, b = np.ones(2), np.ones(2, np.int64)
    plans = {each.dtype: comm.plan("all_reduce", each) for each in (a, b)}
    call = {
        "call": comm.all_reduce,
        "plan": lambda x: plans[x.dtype](),
        "asynchronous": lambda x: comm.all_reduce(x, async_op=True).wait(),
    }[form]

    def calls() -> None:
        for number in range(2000):
            crossed = number == 100 and comm.rank == 1
            for x in (b, a) if crossed else (a, b):
                call(x)

    with pytest.raises(RankMismatch, match="dtype int64") as caught:
        calls()
    assert 200 < (caught.value.sequence or 0) <= 1100


def test_ranks_forget_alike_what_they_have_agreed_on(monkeypatch) -> None:
    # Of 65,536 calls, which would take minutes.
    monkeypatch.setattr("hpccomm.calls.lanes.check.KNOWN", 3)

    def on_rank(comm) -> None:
        plan = comm.plan("all_reduce", np.ones(1))
        for count in (1, 2, 3, 4, 5, 1, 2):
            comm.all_reduce(np.ones(count))
            # The same call, which only one rank has not made before in this shape.
            x = np.ones((1, count)) if comm.rank else np.ones(count)
            comm.all_reduce(x)
            assert (x == 2).all()
            plan()

    run_ranks(2, on_rank)


@on_threads(2)
def test_what_a_rank_met_first_does_not_decide_for_a_class_of_sizes(comm) -> None:
    for count in (300, 500):  # whose bins are of two classes
        x, y = np.ones(count), np.empty(count)
        out = x if (comm.rank, count) == (0, 300) else y
        assert comm.all_reduce(x, out=out, deterministic="any ranks")[0] == 2


@on_threads(3)
def test_a_wrong_size_among_many_is_a_mismatch_on_all_ranks(world) -> None:
    for name in ("all_reduce", "broadcast", "gather", "scan", "all_to_all"):
        comm = world.dup()
        call = getattr(comm, name)
        for rows in range(3, 90, 3):
            call(np.ones(rows))
        with pytest.raises(RankMismatch, match="rank 2: "):
            call(np.ones(120 if comm.rank == 2 else 99))
        comm.abort()


@on_threads(2)
def test_user_functions_of_one_name_are_told_apart(comm) -> None:
    op = (lambda a, b: a + b) if comm.rank else (lambda a, b: np.maximum(a, b))
    with pytest.raises(RankMismatch, match="code"):
        comm.all_reduce(np.ones(2), op=op)


@on_threads(2, timeout=90)
def test_a_part_of_a_call_has_what_is_left_of_its_deadline(comm) -> None:
    engine = comm._core.calls  # for a call of a minute, without the minute
    entry = engine.start_record(CallFingerprint("all_reduce", 8), BLOCKING, 60.25)
    entry[BEGIN] -= 60  # what the parts before took
    with pytest.raises(CollectiveTimeout, match=r"60\.2") as caught:
        engine.run_part(entry, itertools.repeat(False))
    assert caught.value.elapsed is not None
    assert 60 < caught.value.elapsed < 120  # the whole deadline, and not once more


@on_threads(1)
def test_a_failure_that_is_noted_while_ranks_agree_is_raised_before_the_call_goes_on(comm) -> None:
    """A library's call, which may follow, does not look. The moment is inside the agreement's last step."""
    core = comm._core  # no program can time it

    def meanwhile(*args: object) -> Iterator[bool]:
        yield False
        core.calls.gate.shut(CommunicationError("noted meanwhile"))

    core.check._agreement = meanwhile  # as above
    label = CallFingerprint("all_reduce", 8)
    with pytest.raises(CommunicationError, match="noted meanwhile"):
        core.check.compare(label, core.calls.start_record(label, BLOCKING, 60.0))


@pytest.mark.parametrize(
    ("ranks", "per_node", "odd", "told"),
    [
        (3, 3, 1, r"self-check of communicator 'unlucky': rank 1: .*gave \[4\.0, .* and \[3\.0, "),
        (4, 2, 3, "on another node: self-check of "),
    ],
)
def test_a_self_check_that_is_wrong_on_one_rank_is_an_error_on_all(
    ranks: int, per_node: int, odd: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, here = HostLane.tried, threading.local()

    def wrong(lane, given, control):  # on a rank 1, of all ranks or of the second node's
        for choice, result in tried(lane, given, control):
            yield choice, result + (given[0] == 1 and getattr(here, "odd", False))

    # No installation at hand computes wrongly.
    monkeypatch.setattr(HostLane, "tried", wrong)

    def on_rank(comm) -> None:
        here.odd = comm.rank == odd
        with pytest.raises(HpccommError, match="does not compute correctly") as caught:
            new_comm(name="unlucky")
        comm.barrier()
        assert comm.node or re.match(told, str(caught.value)), caught.value

    run_ranks(ranks, on_rank, ranks_per_node=per_node)


@on_threads(3)
def test_an_object_that_a_rank_did_not_take_is_a_mismatch_at_the_end(comm) -> None:
    """Its message arrives in place of what the ranks compare there."""
    comm.broadcast_object(1, 2)
    if comm.rank:
        comm.broadcast_object({"not": "JSON"}, 2)
    said = "rank 0: finalize.*ranks 1 and 2: broadcast_object"
    with pytest.raises(RankMismatch, match=said):
        comm.finalize()
