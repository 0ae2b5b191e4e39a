"""Plans of whole sequences of calls: refusals, messages and representation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import ReduceOp
from hpccomm.errors import (
    RankMismatch,
    UsageError,
)
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises
from hpccomm.testing.conformance.sequences import around

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

SEQUENCES = Behaviours("sequences")


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
        each.close()
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
