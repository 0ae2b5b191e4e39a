"""The right calls of a job, made in a loop, and their results compared with NumPy."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import hpccomm
from hpccomm.testing.conformance.oracle import RankView, Spec, moved

from .cases import Case

Call = Callable[[], bool]
"""Makes one call, and returns whether its result is right."""

_WINDOW = 5_000
_TURNS = 5
"""Iterations after which the values are the same again. They are kept: a rank that computes is in no call when a timer
brings the fault."""


@lru_cache(maxsize=4 * _TURNS)
def _block(case: Case, rank: int, turn: int) -> Any:
    return moved(case.ranks, (case.count,), case.dtype, turn)[rank]


def block(case: Case, rank: int, iteration: int) -> Any:
    """Return a block of a rank's own, for a message or a window."""
    return _block(case, rank, iteration % _TURNS)


@lru_cache(maxsize=4 * _TURNS)
def _part(case: Case, rank: int, turn: int) -> tuple[Any, Any, dict[str, Any]]:
    op = hpccomm.ReduceOp[case.op]
    spec = Spec(case.collective, case.count, np.dtype(case.dtype), op, case.root)
    part = RankView(spec, rank, case.ranks, turn)
    return part.given(), part.wanted(), part.arguments()


def truth(case: Case, rank: int, iteration: int) -> Any:
    """Return what the collective gives this rank, by the oracle of the conformance suite; None for no result."""
    return _part(case, rank, iteration % _TURNS)[1]


def arguments(case: Case, rank: int, iteration: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the collective on this rank."""
    given, _, keywords = _part(case, rank, iteration % _TURNS)
    x = given if given is None else given.copy()
    keywords = {**keywords, "algorithm": case.algorithm}
    if case.collective == "broadcast" and x is None:
        x = np.zeros(case.count, case.dtype)
    if case.collective == "scatter":
        keywords["out"] = np.zeros(case.count, case.dtype)
    return (x,), keywords


def equal(result: Any, wanted: Any) -> bool:
    """Return whether a result is the one that NumPy finds."""
    if wanted is None:
        return result is None
    if not isinstance(result, np.ndarray) or result.dtype != wanted.dtype:
        return False
    return result.size == wanted.size and bool(np.array_equal(result.ravel(), wanted.ravel()))


class Calls:
    """The right calls of one rank, in iterations.

    Parameters
    ----------
    case : Case
        As it was dealt. What makes a call gets what this rank makes of it, which differs where it is faulty.
    comm : hpccomm.Communicator or None
        None where communicators are what is made.
    """

    def __init__(self, case: Case, comm: Any, rank: int) -> None:
        self.case = case
        self.comm = comm
        self.rank = rank
        n = case.ranks
        self.to, self.source = (rank + 1) % n, (rank - 1) % n

    def of(self, iteration: int, mine: Case) -> list[Call]:
        """Return the calls of one iteration, not yet made."""
        main = getattr(self, mine.operation, self.collective)
        calls: list[Call] = [lambda: main(iteration, mine)]
        if self.case.companion and mine.operation not in ("batch", "creation"):
            calls.append(lambda: self.beside(iteration))
        return calls

    def collective(self, iteration: int, mine: Case, comm: Any = None) -> bool:
        """Make one collective call on arrays."""
        args, keywords = arguments(mine, self.rank, iteration)
        call = getattr(comm or self.comm, mine.collective)
        result = call(*args, **keywords, async_op=mine.asynchronous)
        result = result.wait() if mine.asynchronous else result
        return equal(result, truth(mine, self.rank, iteration))

    def beside(self, iteration: int) -> bool:
        """Make a call of another signature."""
        other = "all_gather" if self.case.collective != "all_gather" else "all_reduce"
        small = replace(self.case, collective=other, count=3, dtype="int64", op="SUM")
        return self.collective(iteration, replace(small, algorithm=None))

    def batch(self, iteration: int, mine: Case) -> bool:
        """Make two collectives in a batch."""
        small = replace(mine, collective="all_gather", count=2, dtype="int64", algorithm=None)
        both = [mine, small]
        if mine.kind == "order" and not mine.companion:
            both.reverse()
        results = []
        with self.comm.batch():
            for each in both:
                args, keywords = arguments(each, self.rank, iteration)
                results.append(getattr(self.comm, each.collective)(*args, **keywords))
        right = [truth(each, self.rank, iteration) for each in both]
        return all(map(equal, results, right))

    def plan(self, iteration: int, mine: Case) -> bool:
        """Make a planned collective, planned anew when the fault comes."""
        args, keywords = arguments(mine, self.rank, iteration)
        if iteration in (0, self.case.moment) or mine != self.case:
            if mine.asynchronous:
                keywords["async_op"] = True
            self.array = args[0]
            self.planned = self.comm.plan(mine.collective, *args, **keywords)
        elif self.array is not None:
            self.array[...] = args[0]
        result = self.planned()
        result = result.wait() if mine.asynchronous else result
        return equal(result, truth(mine, self.rank, iteration))

    def object(self, iteration: int, mine: Case) -> bool:
        """Make a collective on objects."""
        filling = "x" * self.case.count
        values = [
            {"rank": rank, "iteration": iteration, "filling": filling} for rank in range(mine.ranks)
        ]
        call, mine_is_root = getattr(self.comm, mine.collective), self.rank == mine.root
        if mine.collective == "all_gather_object":
            return bool(call(values[self.rank]) == values)
        result = call(values[self.rank], mine.root)
        if mine.collective == "broadcast_object":
            return bool(result == values[mine.root])
        return bool(result == (values if mine_is_root else None))

    def message(self, iteration: int, mine: Case) -> bool:
        """Send to the next rank. What is wrong is what is sent."""
        x, out = block(mine, self.rank, iteration), np.zeros(self.case.count, self.case.dtype)
        asynchronous = mine.asynchronous
        result = self.comm.send_recv(x, self.to, out, self.source, async_op=asynchronous)
        result = result.wait() if asynchronous else result
        return equal(result, block(self.case, self.source, iteration))

    def window(self, iteration: int, mine: Case) -> bool:
        """Write to the next rank's memory; the window is made anew when the fault comes."""
        small = replace(mine, count=min(mine.count, _WINDOW))
        if iteration in (0, self.case.moment):
            self.memory = np.zeros(small.count, mine.dtype)
            self.made = self.comm.window(self.memory)
        self.made.put(block(small, self.rank, iteration).astype(self.made.dtype), self.to)
        self.made.fence()
        right = equal(self.memory, block(small, self.source, iteration))
        self.made.fence()
        return right

    def split(self, iteration: int, mine: Case) -> bool:
        """Make a communicator of another one, use it once and end it."""
        part = self.comm.split(0, self.rank)
        right = self.collective(iteration, mine, part)
        part.finalize()
        return right

    def creation(self, iteration: int, mine: Case) -> bool:
        """Make a communicator from nothing, use it once or twice and end it."""
        comm = hpccomm.new_comm(timeout=self.case.deadline, name=f"made {iteration}")
        right = self.collective(iteration, mine, comm)
        if self.case.companion:
            self.comm = comm
            right = self.beside(iteration) and right
        comm.finalize()
        return right
