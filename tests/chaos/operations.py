"""The right calls of a job, made in a loop, and their results compared with NumPy."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import hpccomm

from .cases import Case

Call = Callable[[], bool]
"""Makes one call, and returns whether its result is right."""

_NUMPY = {"SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum}
_WINDOW = 5_000
_PERIOD = 17


def block(case: Case, rank: int, iteration: int, blocks: int = 1) -> Any:
    """Return what a rank contributes: small whole numbers, exact in every dtype and any order.

    Each block of each of four ranks begins with another number, and the period divides no count nor a
    part of one, so that a misplaced block is seen. They are the same again after five iterations.
    """
    begins = 4 * rank + np.arange(blocks) + 3 * (iteration % 5)
    values = np.add.outer(begins, np.arange(case.count)) % _PERIOD + 1
    return values.ravel().astype(case.dtype)


def truth(case: Case, rank: int, iteration: int) -> Any:
    """Return what the collective gives this rank; None for no result."""
    return _truth(case, rank, iteration % 5)


@lru_cache(maxsize=16)  # a rank that computes is in no call when a timer brings the fault
def _truth(case: Case, rank: int, iteration: int) -> Any:
    n, name = case.ranks, case.collective
    if name in ("gather", "reduce") and rank != case.root:
        return None
    if name == "broadcast":
        return block(case, case.root, iteration)
    if name == "scatter":
        return block(case, case.root, iteration, n).reshape(n, -1)[rank]
    blocks = n if name in ("all_to_all", "reduce_scatter") else 1
    each = np.array([block(case, r, iteration, blocks) for r in range(n)])
    if name in ("all_gather", "gather"):
        return each
    if name == "all_to_all":
        return each.reshape(n, n, -1)[:, rank]
    whole = _NUMPY[case.op].reduce(each, axis=0).astype(case.dtype)
    return whole.reshape(n, -1)[rank] if name == "reduce_scatter" else whole


def arguments(case: Case, rank: int, iteration: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the collective on this rank."""
    n, name = case.ranks, case.collective
    blocks = n if name in ("all_to_all", "reduce_scatter", "scatter") else 1
    x = block(case, rank, iteration, blocks)
    if blocks > 1:
        x = x.reshape(n, -1)
    keywords: dict[str, Any] = {"algorithm": case.algorithm}
    if name in ("all_reduce", "reduce", "reduce_scatter"):
        keywords["op"] = hpccomm.ReduceOp[case.op]
    if name in ("broadcast", "gather", "scatter", "reduce"):
        keywords["root"] = case.root
    if name == "broadcast" and rank != case.root:
        x = np.zeros_like(x)
    if name == "scatter":
        keywords["out"] = np.zeros((1, case.count), case.dtype)
        x = x if rank == case.root else None
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
