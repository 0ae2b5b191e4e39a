"""Who makes a call: hpccomm in its ways, the MPI library through mpi4py, a copy of the array."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from contest.cases import DTYPE, ROOT, Allocate, Array, Arrays, Case
from contest.rounds import Call
from hpccomm import CommOptions, Communicator, UsageError, new_comm

LIBRARY = "mpi4py"
AUTO = "auto"
COPY = "memcpy"
GLOO = "gloo"
PLAN = "plan"
REGISTERED = "registered"
REGISTERED_PLAN = "registered-plan"
ASYNC = "async"
PEERS = (LIBRARY, COPY, GLOO)
"""The others are hpccomm."""
OF_EMPTY = (REGISTERED, REGISTERED_PLAN)
"""Those on arrays of `Communicator.empty`."""
SETTINGS = ("pages", "staging")
"""How plain arrays are reached on shared memory, by the names of `CommOptions.shared_memory`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender's entry for one case.

    Attributes
    ----------
    call : callable
        Makes the call once.
    arrays : Arrays
        On which.
    took : callable
        Returns the algorithm that it takes, once the call was made; empty where it does not say.
    """

    call: Call
    arrays: Arrays
    took: Callable[[], str] = str


Enter = Callable[[Case], Entry | None]
"""A contender: enters for a case; None where it has no such call."""


def plain(count: int) -> Array:
    """Return an array as NumPy makes them."""
    return np.empty(count, DTYPE)


def in_segment(comm: Communicator, count: int) -> Array:
    """Return an array of `Communicator.empty`."""
    return np.asarray(comm.empty(count, DTYPE))


def hpccomm(
    comm: Communicator, algorithm: str = AUTO, how: str = "", *, empty: bool = False
) -> Enter:
    """Return hpccomm as a contender.

    Parameters
    ----------
    comm : Communicator
        Makes the calls.
    algorithm : str
        Passed to them, where they take one.
    how : str
        `PLAN` decides each call once, and then only makes it; `ASYNC` begins each and waits for it at once.
    empty : bool
        Whether arrays are of `Communicator.empty`.
    """
    allocate: Allocate = partial(in_segment, comm) if empty else plain

    def enter(case: Case) -> Entry | None:
        call = getattr(comm, case.collective, None)
        if call is None:  # an older hpccomm
            return None
        arrays = case.arrays(allocate)
        args, keywords = case.arguments(arrays)
        if how == ASYNC:
            begin = partial(call, *args, **keywords, async_op=True)
            return Entry(lambda: begin().wait(), arrays)
        if case.collective != "send_recv" and (algorithm != AUTO or how != PLAN):
            keywords["algorithm"] = algorithm
        elif algorithm != AUTO:  # send_recv takes none
            return None

        def took() -> str:
            return comm.explain(case.collective, *args, **keywords).algorithm

        try:
            took()
        except UsageError:  # the collective has no such algorithm
            return None
        if how == PLAN:
            return Entry(comm.plan(case.collective, *args, **keywords), arrays, took)
        return Entry(partial(call, *args, **keywords), arrays, took)

    return enter


def ours(name: str, comm: Communicator, stack: ExitStack) -> Enter:
    """Return the contender of that name: a copy, or hpccomm by a way to call it or one of its algorithms.

    `stack` closes what the contender needs beside `comm`. Collective.
    """
    if name == COPY:
        return copy()
    if name in SETTINGS:
        return hpccomm(
            stack.enter_context(new_comm(options=CommOptions(shared_memory=name))), "shm"
        )
    ways = {PLAN: PLAN, ASYNC: ASYNC, REGISTERED: "", REGISTERED_PLAN: PLAN}
    if name in ways:
        return hpccomm(comm, AUTO, ways[name], empty=name in OF_EMPTY)
    return hpccomm(comm, name)


def library(bare: MPI.Intracomm) -> Enter:
    """Return the MPI library's own calls, through mpi4py, as a contender."""

    def enter(case: Case) -> Entry:
        arrays = case.arrays(plain)
        # Where a rank has no array, the library takes None; mpi4py's types do not say so.
        x: Any = arrays.x
        out: Any = arrays.out
        ranks = case.ranks
        after, before = (case.rank + 1) % ranks, (case.rank - 1) % ranks
        sent = MPI.IN_PLACE if x is not None and x is out else x
        counts = [case.block] * ranks
        if case.collective == "neighbor_all_to_all":
            graph = bare.Create_dist_graph_adjacent(range(ranks), range(ranks))
            return Entry(partial(graph.Neighbor_alltoall, sent, out), arrays)
        calls: dict[str, Call] = {
            "all_reduce": partial(bare.Allreduce, sent, out),
            "broadcast": partial(bare.Bcast, out, ROOT),
            "reduce": partial(bare.Reduce, sent, out, root=ROOT),
            "all_gather": partial(bare.Allgather, sent, out),
            "all_gather_v": partial(bare.Allgatherv, sent, [out, counts]),
            "reduce_scatter": partial(bare.Reduce_scatter_block, sent, out),
            "reduce_scatter_v": partial(bare.Reduce_scatter, sent, out, counts),
            "all_to_all": partial(bare.Alltoall, sent, out),
            "all_to_all_v": partial(bare.Alltoallv, [sent, counts], [out, counts]),
            "gather": partial(bare.Gather, sent, out, root=ROOT),
            "gather_v": partial(bare.Gatherv, sent, [out, counts], root=ROOT),
            "scatter": partial(bare.Scatter, sent, out, root=ROOT),
            "scatter_v": partial(bare.Scatterv, [sent, counts], out, root=ROOT),
            "scan": partial(bare.Scan, sent, out),
            "barrier": bare.Barrier,
            "send_recv": partial(bare.Sendrecv, x, after, recvbuf=out, source=before),
        }
        return Entry(calls[case.collective], arrays)

    return enter


def copy() -> Enter:
    """Return the limit of a node's memory: every rank copies an array of the case's size."""

    def enter(case: Case) -> Entry:
        source = np.ones(case.nbytes // DTYPE.itemsize, DTYPE)
        target = np.zeros_like(source)
        return Entry(partial(np.copyto, target, source), Arrays(None, None))

    return enter
