"""Plans of messages, and of whole sequences of calls."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ReduceOp
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    CommunicatorAborted,
    RankMismatch,
    UsageError,
)
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import SOON, equal, raises, takes

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

SEQUENCES = Behaviours("sequences")

LENGTHS = (0, 1, 3, 40_000, 150_000)
"""Elements of messages, of 8 bytes: what is bound to its array, and what is too large for that."""


def around(comm: Communicator) -> tuple[int, int]:
    """Return the next rank and the one before."""
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@SEQUENCES.behaviour(length=LENGTHS)
def calls_in_their_order(comm: Communicator, length: int) -> None:
    """A plan does what its calls do, each on what those before it have left, any number of times."""
    right, left = around(comm)
    x, total, a, b, y = (np.zeros(length) for _ in range(5))
    with comm.planning() as plan:
        assert comm.all_reduce(x, out=total) is total, "the result is out"
        with comm.batch():
            comm.send(total, right)
            comm.recv(a, left)
            comm.send(x, left)
            comm.recv(b, right)
        comm.broadcast(b, comm.size - 1)
        comm.send_recv(b, right, y, left)
        equal(total, np.zeros(length), "before the plan is called")
    for turn in range(4):
        x[:] = 10 * turn + comm.rank
        assert plan() is None, "the result of several calls"
        everybody = np.full(length, comm.size * 10.0 * turn + sum(range(comm.size)))
        equal(total, everybody, "total")
        equal(a, everybody, "a")
        equal(b, np.full(length, 10.0 * turn), "b: the last rank received it from rank 0")
        equal(y, b, "y")


@SEQUENCES.behaviour(length=LENGTHS)
def planned_messages(comm: Communicator, length: int) -> None:
    """A send, a receive or a send_recv can be planned alone; ranks without a part give None."""
    x, out = np.zeros(length), np.zeros(length)
    src, dst = 0, comm.size - 1
    if comm.size > 1:
        if comm.rank == src:
            plan = comm.plan("send", x, dst)
        else:
            plan = comm.plan("recv", out, src if comm.rank == dst else None)
        for turn in range(3):
            x[:] = turn + 1
            assert plan() is (None if comm.rank == src else out), "what the call returns"
            if comm.rank == dst:
                equal(out, np.full(length, turn + 1.0), "received")
    right, left = around(comm)
    y = np.full(length, float(comm.rank))
    turned = comm.plan("send_recv", y, right, y, left)
    for turn in range(1, 4):
        assert turned() is y, "out"
        equal(y, np.full(length, float((comm.rank - turn) % comm.size)), "in place")


@SEQUENCES.behaviour(seed=range(4))
def random_neighbours(comm: Communicator, seed: int) -> None:
    """Whatever goes from whom to whom in one batch, itself included, comes as it was sent."""
    random = np.random.default_rng([seed, comm.size])
    edges = random.integers(comm.size, size=(3 * comm.size, 2)).tolist()
    lengths = random.choice(LENGTHS[:4], len(edges)).tolist()
    sent = {n: np.zeros(length, np.int64) for n, length in enumerate(lengths)}
    came = {n: np.full(length, -1) for n, length in enumerate(lengths)}
    with comm.planning() as plan, comm.batch():
        for number, (src, dst) in enumerate(edges):
            if src == comm.rank:
                comm.send(sent[number], dst)
            if dst == comm.rank:
                comm.recv(came[number], src)
    for turn in range(3):
        for number, array in sent.items():
            array[:] = 1000 * turn + number
        plan()
        for number, (_, dst) in enumerate(edges):
            if dst == comm.rank:
                equal(came[number], np.full(lengths[number], 1000 * turn + number), str(number))


@SEQUENCES.behaviour(min_size=2)
def tags_in_any_order(comm: Communicator) -> None:
    """A receive in a batch takes the message of its tag; those of one tag keep their order."""
    right, left = around(comm)
    kinds = ((2, np.float32), (7, np.float64), (2, np.float64), (2, np.float32))
    sends = [np.full(3, 10 * comm.rank + n, kind) for n, (_, kind) in enumerate(kinds)]
    takes = [np.zeros(3, kind) for _, kind in kinds]
    with comm.planning() as plan, comm.batch():
        for data, (tag, _) in zip(sends, kinds, strict=True):
            comm.send(data, right, tag)
        for n in (1, 0, 2, 3):
            comm.recv(takes[n], left, kinds[n][0])
    for _ in range(2):
        plan()
        for n, (got, (_, kind)) in enumerate(zip(takes, kinds, strict=True)):
            equal(got, np.full(3, 10 * left + n, kind), f"message {n}")


@SEQUENCES.behaviour()
def nobody_has_a_part(comm: Communicator) -> None:
    """A plan without calls does nothing, and so does a message from and to None."""
    with comm.planning() as plan:
        pass
    plan()
    x = np.ones(3)
    with comm.planning() as plan:
        comm.send(x, None)
        comm.recv(x, None)
    plan()
    equal(x, np.ones(3), "x")


@SEQUENCES.behaviour(min_size=2)
def messages_of_a_plan_match_their_own(comm: Communicator) -> None:
    """Other messages with the same tag do not take their place, whichever is sent first."""
    plain, planned = np.zeros(2), np.zeros(2)
    plan = None
    if comm.rank < 2:
        with comm.planning() as plan:
            if comm.rank == 0:
                comm.send(planned, 1)
            else:
                comm.recv(planned, 0)
    else:
        with comm.planning():
            pass
    for turn in range(1, 4):
        if comm.rank == 0 and plan is not None:
            planned[:], plain[:] = turn, -turn
            comm.send(plain, 1)
            plan()
        elif comm.rank == 1 and plan is not None:
            plan()
            comm.recv(plain, 0)
            equal(planned, np.full(2, float(turn)), "planned")
            equal(plain, np.full(2, -float(turn)), "plain")


@SEQUENCES.behaviour()
def plans_in_blocks(comm: Communicator) -> None:
    """A plan joins a batch, if it has one step, and another plan."""
    right, left = around(comm)
    x, a, b = np.ones(3), np.full(3, comm.rank), np.zeros(3, int)
    with comm.planning() as halo, comm.batch():
        comm.send(a, right)
        comm.recv(b, left)
    with comm.planning() as both:
        comm.all_reduce(x)
        halo()
    with comm.batch():
        halo()
        equal(b, np.zeros(3, int), "before the end of the batch")
    equal(b, np.full(3, left), "after the batch")
    b[:] = -1
    both()
    equal(b, np.full(3, left), "after the plan of a plan")
    equal(x, np.full(3, float(comm.size)), "x")
    with raises(UsageError, "2 steps", "batch"), comm.batch():
        both()
    equal(x, np.full(3, float(comm.size)), "nothing was issued")


@SEQUENCES.behaviour(min_size=2)
def sequences_that_differ(comm: Communicator) -> None:
    """What does not fit is told on all ranks, with the ranks and the calls; nothing hangs."""
    last = comm.rank == comm.size - 1
    x, small, whole = np.zeros(4), np.zeros(3), np.zeros(4, int)
    ends = ("rank 0", f"rank {comm.size - 1}")

    def exchange(out: Any, tag: int = 0, times: int = 1) -> None:
        if comm.rank == 0:
            comm.send(x, comm.size - 1)
        if last:
            for _ in range(times):
                comm.recv(out, 0, tag)

    for out, words in ((small, "24 bytes"), (whole, "int64")):
        told = ("send", "recv", "32 bytes of float64", words, *ends)
        with raises(RankMismatch, *told) as caught, comm.planning():
            comm.barrier()
            exchange(out)
        assert isinstance(caught[0], RankMismatch)
        assert caught[0].ranks == (0, comm.size - 1), caught[0].ranks
    for times in (0, 2):
        with raises(RankMismatch, "nothing", *ends), comm.planning():
            exchange(np.zeros(4), times=times)
    with raises(RankMismatch, "plan", "max", str(comm.size - 1)), comm.planning():
        comm.all_reduce(x, ReduceOp.MAX if last else ReduceOp.SUM)
    with raises(RankMismatch, "number 2", "broadcast", "no call"), comm.planning():
        comm.all_reduce(x)
        if not last:
            comm.broadcast(x)
    comm.all_reduce(x)


@SEQUENCES.behaviour()
def a_block_that_raises(comm: Communicator) -> None:
    """The rank raises its own error, the others that there is one; nothing is planned, and all go on."""
    last = comm.rank == comm.size - 1
    x = np.ones(3)

    def wrong_argument() -> None:
        comm.send(x, comm.size)

    def wrong_program() -> None:
        raise ZeroDivisionError("by nothing")

    for wrong, error, word in (
        (wrong_argument, UsageError, "dst"),
        (wrong_program, ZeroDivisionError, "by nothing"),
    ):
        with raises(error if last else RankMismatch, word), comm.planning() as plan:
            comm.all_reduce(x)
            if last:
                wrong()
        with raises(UsageError, "not made"):
            plan()
    equal(x, np.ones(3), "x")
    comm.all_reduce(x)
    equal(x, np.full(3, float(comm.size)), "a later call")


@SEQUENCES.behaviour()
def what_a_block_refuses(comm: Communicator) -> None:
    """Whatever would be sent within the block, or cannot be planned, is an error on every rank."""
    x, y = np.ones(3), np.ones(3)

    def in_batch() -> None:
        with comm.batch(async_op=True):
            comm.all_reduce(x)

    def shared() -> None:
        with comm.batch():
            comm.send(x, comm.rank)
            comm.recv(x[:2], None)
            comm.recv(x, comm.rank)

    def nested() -> None:
        with comm.planning():
            pass

    for wrong, word in (
        (lambda: comm.all_reduce(x, async_op=True), "async_op"),
        (lambda: comm.all_reduce(x, timeout=1.0), "timeout"),
        (lambda: comm.plan("all_reduce", x), "plan()"),
        (in_batch, "async_op"),
        (shared, "share memory"),
        (nested, "planning() within planning()"),
    ):
        with raises(UsageError, word), comm.planning():
            wrong()
    with raises(UsageError, "planning() within batch()"), comm.batch():
        nested()
    comm.all_reduce(y)
    equal(y, np.full(3, float(comm.size)), "a later call")


@SEQUENCES.behaviour()
def a_plan_says_what_it_does(comm: Communicator) -> None:
    """Its text and its choices have every call."""
    right, left = around(comm)
    x, out = np.ones(3), np.ones(3)
    with comm.planning() as plan:
        comm.all_reduce(x)
        with comm.batch():
            comm.send(x, right)
            comm.recv(out, left)
    calls = ["all_reduce", "send", "recv"]
    assert [choice.collective for choice in plan.choices] == calls, plan.choices
    text = repr(plan)
    assert all(word in text for word in (*calls, "2 steps", f"to rank {right}")), text
    assert "send" in str(comm.explain("send", x, right)), "explain"


def observed(comm: Communicator, do: Callable[[], Any]) -> list[object]:
    """Return what hooks and statistics see of some calls."""
    seen: list[object] = []

    def hook(info: Any) -> None:
        seen.append((info.operation, info.nbytes, info.elapsed is None))

    def counted() -> dict[object, Any]:
        return {key: np.array([tally.calls, tally.nbytes]) for key, tally in comm.stats().items()}

    before = counted()
    hooks = comm.register_pre_hook(hook), comm.register_post_hook(hook)
    do()
    for each in hooks:
        each.remove()
    more = {key: (now - before.get(key, 0)).tolist() for key, now in counted().items()}
    return [*seen, {key: value for key, value in more.items() if any(value)}]


@SEQUENCES.behaviour()
def planned_calls_are_observed(comm: Communicator) -> None:
    """Hooks and statistics see each step as they see the same call without a plan."""
    right, left = around(comm)
    x, out = np.ones(3), np.ones(3)

    def calls() -> None:
        comm.all_reduce(x)
        with comm.batch():
            comm.send(x, right)
            comm.recv(out, left)
        comm.send_recv(x, right, out, left)

    with comm.planning() as plan:
        calls()
    each = [observed(comm, do) for do in (calls, plan)]
    assert each[0] == each[1], each
    assert len(each[0]) == 7, each[0]


@SEQUENCES.behaviour(min_size=2, fails=True)
def a_plan_times_out(comm: Communicator) -> None:
    """The deadline is that of all its calls together. Plans refuse then, and none can be made."""
    deadline, late = 0.5, 0.3
    x = np.zeros(3)
    with comm.planning(timeout=deadline) as plan:
        for _ in range(2):
            if comm.rank == 0:
                comm.recv(x, 1)
            elif comm.rank == 1:
                comm.send(x, 0)
    other = comm.plan("send_recv", x, None, x, None)
    comm.barrier()
    if comm.rank == 0:
        with takes(deadline + SOON, deadline / 2), raises(CollectiveTimeout, "recv"):
            plan()
        for each in (plan, other):
            with raises(CommunicatorAborted, comm.name):
                each()
        with raises(CommunicatorAborted, comm.name), comm.planning():
            pass
    elif comm.rank == 1:
        comm.register_pre_hook(lambda _: time.sleep(late))
        with suppress(CommunicationError):
            plan()


@SEQUENCES.behaviour()
def a_plan_outlives_its_communicator(comm: Communicator) -> None:
    """It refuses then, and may be dropped at any time."""
    right, left = around(comm)
    x, y = np.ones(3), np.ones(3)
    plans = [comm.plan("send_recv", x, right, y, left) for _ in range(3)]
    del plans[0]
    duplicate = comm.dup()
    alive = duplicate.plan("send_recv", x, right, y, left)
    alive()
    duplicate.finalize()
    with raises(UsageError, "finalized"):
        alive()
    del alive
    for plan in plans:
        plan()
