"""Plans and explanations: decisions before anything is sent."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.dtypes import BFLOAT16
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import equal, raises

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

PLANS = Behaviours("plans")


@PLANS.behaviour()
def a_plan_within_a_batch(comm: Communicator) -> None:
    """A batch takes it like any other call: it is carried out at the end, in its turn."""
    x, y = np.ones(3), np.ones(3)
    planned = comm.plan("all_reduce", x)
    with comm.batch():
        planned()
        comm.all_reduce(y)
        equal(x, np.ones(3), "x before the end of the batch")
    equal(x, np.full(3, float(comm.size)), "x after it")
    equal(y, x, "y")


@PLANS.behaviour()
def planned_calls_in_a_batch(comm: Communicator) -> None:
    """They take their place in the batch, and are dropped with it."""
    x = np.full(3, comm.rank + 1)
    planned = comm.plan("all_reduce", x)
    with raises(ZeroDivisionError), comm.batch():
        planned()
        raise ZeroDivisionError
    equal(x, np.full(3, comm.rank + 1), "dropped")
    with comm.batch():
        comm.broadcast(x, comm.size - 1)
        planned()
        comm.all_reduce(x)
    equal(x, np.full(3, comm.size**3), "in turn")


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


@PLANS.behaviour()
def a_plan_that_is_refused(comm: Communicator) -> None:
    """A rank whose arguments do not fit gets `UsageError`, the others `RankMismatch`; all go on."""
    x = np.ones(comm.size)
    wrong: tuple[tuple[str, tuple[object, ...], dict[str, object]], ...] = (
        ("all_reduce", ([1.0],), {}),
        ("all_reduce", (None,), {}),
        ("all_reduce", (x[::-1] if comm.size > 1 else np.ones(4)[::2],), {}),
        ("all_reduce", (x, ReduceOp.BAND), {}),
        ("all_reduce", (x,), {"algorithm": "no_such"}),
        ("all_reduce", (x,), {"timeout": -1.0}),
        ("all_reduce", (x,), {"out": np.ones(comm.size + 1)}),
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


@PLANS.behaviour()
def explain_is_local(comm: Communicator) -> None:
    """`explain` says in a sentence what a call would do, on one rank alone, and sends nothing."""
    if comm.rank == 0:
        for x in (np.zeros(3), np.zeros(1 << 20, np.float32), np.zeros(3, BFLOAT16)):
            for call in ("all_reduce", "broadcast", "all_gather", "scan", "reduce"):
                before = x.copy()
                choice = comm.explain(call, x)
                assert isinstance(choice, hpccomm.Choice), type(choice)
                assert choice.path == "host", choice.path
                assert choice.backend == comm.backends["host"], choice.backend
                assert choice.algorithm in str(choice), str(choice)
                assert call in str(choice), str(choice)
                assert len(str(choice).split()) > 5, f"a sentence: {choice}"
                equal(x, before, "x")
        with raises(FrozenInstanceError):
            choice.path = "other"  # type: ignore[misc]
    comm.barrier()


@PLANS.behaviour()
def explain_is_the_same_everywhere(comm: Communicator) -> None:
    """What does not differ between ranks decides: all get the same answer."""
    choice = comm.explain("all_reduce", np.zeros(1000), op=ReduceOp.PROD)
    assert len(set(comm.all_gather_object(str(choice)))) == 1, "one answer"
