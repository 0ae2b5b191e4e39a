"""Plans and explanations: decisions before anything is sent."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from itertools import product
from typing import Any

import numpy as np

import hpccomm
from hpccomm import Communicator, ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises

PLANS = Behaviours("plans")


@PLANS.behaviour()
def planned_calls_in_a_batch(comm: Communicator) -> None:
    """They take their place in the batch, and are dropped with it; a message from and to None does nothing."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, a, b = np.full(3, comm.rank + 1), np.full(3, comm.rank), np.zeros(3, int)
    planned = comm.plan("all_reduce", x)
    ring, nothing = comm.plan("send_recv", a, right, b, left), comm.plan("send", a, None)
    with raises(ZeroDivisionError), comm.batch():
        comm.all_reduce(x)
        planned()
        raise ZeroDivisionError
    with comm.batch():
        comm.broadcast(x, comm.size - 1)
        planned()
        ring()
        nothing()
        comm.all_reduce(x)
        equal(x, np.full(3, comm.rank + 1), "before the end of the batch")
        equal(b, np.zeros(3, int), "before the end of the batch")
    equal(x, np.full(3, comm.size**3), "in turn")
    equal(b, np.full(3, left), "after the batch")
    b[:] = -1
    ring()
    nothing()
    equal(b, np.full(3, left), "alone")


@PLANS.behaviour(min_size=2)
def plans_that_differ(comm: Communicator) -> None:
    """Ranks that plan different calls are told so, all of them, and nothing hangs."""
    last = comm.rank == comm.size - 1
    x = np.zeros(4)
    different: tuple[dict[str, object], ...] = (
        {"x": np.zeros(4 + last)},
        {"x": x.astype(np.float32 if last else np.float64)},
        {"x": x, "op": ReduceOp.MAX if last else ReduceOp.SUM},
        {"x": x, "op": hpccomm.premul_sum(2 + last)},
        {"x": x, "async_op": last},
    )
    for arguments in different:
        with raises(hpccomm.RankMismatch, "plan", str(comm.size - 1)):
            comm.plan("all_reduce", **arguments)
    with raises(hpccomm.RankMismatch, "plan", "broadcast", "all_reduce"):
        comm.plan("broadcast" if last else "all_reduce", x)
    with raises(hpccomm.RankMismatch, "plan", "root"):
        comm.plan("broadcast", x, root=int(last))
    comm.all_reduce(x)


@PLANS.behaviour(min_size=2)
def messages_that_differ(comm: Communicator) -> None:
    """What does not fit is told on all ranks, with the ranks and both ends; nothing hangs."""
    last = comm.size - 1
    x, small, whole = np.zeros(4), np.zeros(3), np.zeros(4, int)
    ends = ("rank 0", f"rank {last}")

    def planned(out: Any, tag: int = 0, dst: int | None = last, src: int | None = 0) -> None:
        if comm.rank == 0:
            comm.plan("send", x, dst)
        else:
            comm.plan("recv", out, src if comm.rank == last else None, tag)

    for out, tag, words in ((small, 0, "24 bytes"), (whole, 0, "int64"), (x, 7, "tag 7")):
        told = ("send", "recv", "32 bytes of float64", words, *ends)
        with raises(RankMismatch, *told) as caught:
            planned(out, tag)
        assert isinstance(caught[0], RankMismatch)
        assert caught[0].ranks == (0, last), caught[0].ranks
    for lacking in ({"dst": None}, {"src": None}):
        with raises(RankMismatch, "nothing", *ends):
            planned(x, **lacking)
    with raises(RankMismatch, "no call", "all_reduce"):
        comm.plan("send", x, None) if comm.rank == last else comm.plan("all_reduce", x)
    comm.all_reduce(x)


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


def observed_alike(comm: Communicator, xp: Any) -> None:
    """Compare what is seen of calls and of plans on arrays of NumPy's or CuPy's."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out = xp.ones(3), xp.ones(3)
    plans = comm.plan("all_reduce", x), comm.plan("send_recv", x, right, out, left)
    assert [plan.choice.collective for plan in plans] == ["all_reduce", "send_recv"], plans
    assert all(word in repr(plans[1]) for word in ("send_recv", f"to rank {right}")), plans[1]
    assert "send" in str(comm.explain("send", x, right)), "explain"

    def calls() -> None:
        comm.all_reduce(x)
        comm.send_recv(x, right, out, left)

    def planned() -> None:
        for plan in plans:
            plan()

    each = [observed(comm, do) for do in (calls, planned)]
    assert each[0] == each[1], each
    assert len(each[0]) == 5, each[0]


@PLANS.behaviour()
def planned_calls_are_observed(comm: Communicator) -> None:
    """Hooks and statistics see a planned call as they see the same call without a plan."""
    observed_alike(comm, np)


@PLANS.behaviour()
def a_plan_outlives_its_communicator(comm: Communicator) -> None:
    """It refuses then, and may be dropped at any time."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
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


@PLANS.behaviour()
def a_plan_that_is_refused(comm: Communicator) -> None:
    """A rank whose arguments do not fit gets `UsageError`, the others `RankMismatch`; all go on."""
    x = np.ones(comm.size)
    wrong: tuple[tuple[str, tuple[object, ...], dict[str, object]], ...] = (
        ("all_reduce", ([1.0],), {}),
        ("all_reduce", (x,), {"timeout": -1.0}),
        ("all_reduce", (x,), {"no_such": 1}),
        ("broadcast", (x, comm.size), {}),
        ("no_such", (x,), {}),
        ("finalize", (), {}),
    )
    for name, arguments, keywords in wrong:
        if comm.rank == comm.size - 1:
            with raises(hpccomm.UsageError):
                comm.plan(name, *arguments, **keywords)
        else:
            with raises(hpccomm.RankMismatch, "plan"):
                comm.plan("all_reduce", x)
    comm.all_reduce(x)
    equal(x, np.full(comm.size, float(comm.size)), "a later call")


EXPLAINED = ("all_reduce", "broadcast", "reduce", "all_gather", "all_to_all", "gather", "scan")


@PLANS.behaviour()
def explanations(comm: Communicator) -> None:
    """`explain` says in a sentence what calls would do: it sends nothing, and all ranks get one answer."""
    if comm.rank == 0:
        for name, dtype in product(EXPLAINED, (np.float64, np.float32, BFLOAT16)):
            for count in (3 * comm.size, comm.size << 18):
                x = np.ones(count, dtype)
                choice = comm.explain(name, x)
                way = (choice.path, choice.backend, choice.registered)
                assert way == ("host", comm.backends["host"], False), choice
                assert all(word in str(choice) for word in (name, choice.algorithm)), choice
                assert len(str(choice).split()) > 5, f"a sentence: {choice}"
                assert (x == 1).all(), "x"
        with raises(FrozenInstanceError):
            comm.explain("barrier").path = "other"  # type: ignore[misc]
    choice = comm.explain("all_reduce", np.zeros(1000), op=ReduceOp.PROD)
    assert len(set(comm.all_gather_object(str(choice)))) == 1, "one answer"
