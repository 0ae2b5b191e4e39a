"""Calls and batches as a program writes them: what may be left out, and whose the results are."""

from typing import Any

import numpy as np

from front.forms import ALL_FORMS, made
from hpccomm import ANY, Communicator
from hpccomm.testing.conformance.case import Behaviours, equal
from hpccomm.testing.conformance.collectives import FORMS
from hpccomm.testing.conformance.oracle import RECORD
from hpccomm.testing.conformance.oracle import moved as moved_elements

CALLS = Behaviours("calls")


@CALLS.behaviour(form=ALL_FORMS)
def new_arrays(comm: Communicator, form: str) -> None:
    """``out="new"`` leaves x as it is, also where x would take the result."""
    x = np.arange(6.0).reshape(2, 3) + comm.rank
    total = comm.size * np.arange(6.0).reshape(2, 3) + sum(range(comm.size))
    equal(made(comm, form, "all_reduce", x, out="new"), total, "all_reduce")
    reduced = made(comm, form, "reduce", x, comm.size - 1, out="new")
    assert (reduced is None) == (comm.rank != comm.size - 1), "reduce"
    assert made(comm, form, "scan", x, out="new") is not x, "scan"
    equal(x, np.arange(6.0).reshape(2, 3) + comm.rank, "x")


@CALLS.behaviour()
def roots_may_be_numpy_integers(comm: Communicator) -> None:
    """A rank that NumPy computed is a rank. Without `root`, rank 0 is it."""
    root: Any
    for root in np.arange(comm.size):
        x = np.array([comm.rank])
        comm.broadcast(x, root)
        assert x[0] == root, f"from {root}"
    assert comm.broadcast(comm.rank + 0.5) == 0.5, "by default"


@CALLS.behaviour(form=FORMS, name=("scatter", "scatter_v"))
def scattered_to_ranks_that_give_an_x_like_the_root_s(
    comm: Communicator, form: str, name: str
) -> None:
    """Such a rank needs no `out`: it gets a new array, and its x is not touched."""
    root, counts = comm.size - 1, tuple(range(comm.size))
    rows, listed = ((2,) * comm.size, {}) if name == "scatter" else (counts, {"counts": counts})
    for dtype in (np.dtype(np.float32), RECORD):
        whole = moved_elements(comm.size, (sum(rows), 3), dtype)[root]
        before = whole if comm.rank == root else np.zeros_like(whole)
        x = before.copy()
        result = made(comm, form, name, x, root, **listed)
        equal(result, np.split(whole, np.cumsum(rows)[:-1])[comm.rank])
        equal(x, before, "x")
        assert not np.shares_memory(result, x), "apart from x"


@CALLS.behaviour()
def results_are_owned(comm: Communicator) -> None:
    """A result is the caller's: writable, C-contiguous, and unchanged by later calls."""
    x = np.full((comm.size, 2), comm.rank, np.int32)
    first = comm.all_gather(x)
    second = comm.all_to_all(x)
    copies = first.copy(), second.copy()
    comm.all_gather(x + 1)
    comm.all_to_all(x + 1)
    for result, before in zip((first, second), copies, strict=True):
        equal(result, before, "after later calls")
        assert result.flags.writeable, "writable"
        assert result.flags.c_contiguous, "C-contiguous"
        assert not np.shares_memory(result, x), "apart from x"


@CALLS.behaviour()
def rank_none_does_nothing(comm: Communicator) -> None:
    """None as a rank sends nothing and leaves `out` as it was: the ends of a chain."""
    right = comm.rank + 1 if comm.rank + 1 < comm.size else None
    left = comm.rank - 1 if comm.rank else None
    x, out = np.array([float(comm.rank)]), np.array([-1.0])
    comm.send_recv(x, right, out, left)
    assert out[0] == comm.rank - 1, "received from the left, or as it was"
    comm.send(x, None)
    comm.recv(out, None)
    comm.recv(out, None, ANY)
    assert out[0] == comm.rank - 1, "as it was"
    work = comm.recv(out, None, async_op=True)
    work.wait()
    assert work.done(), "done"


@CALLS.behaviour(length=(3, 200_000), asynchronous=(False, True))
def batch(comm: Communicator, length: int, asynchronous: bool) -> None:
    """Messages and collectives of a batch, in any order, do not wait for one another."""
    everyone = range(comm.size)
    x = moved_elements(comm.size, (comm.size, length), np.int32)
    out, total = np.full_like(x[0], -1), x[comm.rank].copy()
    with comm.batch(async_op=asynchronous) as batch:
        for rank in everyone:
            comm.send(x[comm.rank][rank], rank)
        comm.all_reduce(total)
        for rank in everyone:
            comm.recv(out[rank], rank)
    if batch.work is not None:
        batch.work.wait()
    equal(total, np.asarray(np.sum(x, 0, np.int32)), "all_reduce")
    equal(out, np.stack([each[comm.rank] for each in x]), "messages")
    with comm.batch(async_op=asynchronous) as batch:
        pass
    if asynchronous:
        assert batch.work is not None, "work, though nothing is to do"
        batch.work.wait()
