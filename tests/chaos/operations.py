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


class Loop:
    """Calls of one kind on one rank.

    Parameters
    ----------
    case : Case
        As it was dealt. `calls` gets what this rank makes of it, which differs where it is faulty.
    comm : hpccomm.Communicator or None
        None where communicators are what is made.
    """

    def __init__(self, case: Case, comm: Any, rank: int) -> None:
        self.case = case
        self.comm = comm
        self.rank = rank

    def calls(self, iteration: int, mine: Case) -> list[Call]:
        """Return the calls of one iteration, not yet made."""
        calls: list[Call] = [lambda: self.main(iteration, mine)]
        if self.case.companion:
            calls.append(lambda: self.beside(iteration))
        return calls

    def main(self, iteration: int, mine: Case) -> bool:
        """Make the call that the case is about."""
        raise NotImplementedError

    def beside(self, iteration: int) -> bool:
        """Make a call of another signature."""
        other = "all_gather" if self.case.collective != "all_gather" else "all_reduce"
        small = replace(
            self.case, collective=other, count=3, dtype="int64", op="SUM", algorithm=None
        )
        return collective(self.comm, small, self.rank, iteration)


def collective(comm: Any, mine: Case, rank: int, iteration: int) -> bool:
    """Make one collective call."""
    args, keywords = arguments(mine, rank, iteration)
    result = getattr(comm, mine.collective)(*args, **keywords, async_op=mine.asynchronous)
    if mine.asynchronous:
        result = result.wait()
    return equal(result, truth(mine, rank, iteration))


class Collectives(Loop):
    """Collectives on arrays, one after the other."""

    def main(self, iteration: int, mine: Case) -> bool:
        return collective(self.comm, mine, self.rank, iteration)


class Batches(Loop):
    """Two collectives in a batch."""

    def calls(self, iteration: int, mine: Case) -> list[Call]:
        return [lambda: self.batch(iteration, mine)]

    def batch(self, iteration: int, mine: Case) -> bool:
        small = replace(mine, collective="all_gather", count=2, dtype="int64", algorithm=None)
        both = [mine, small]
        if mine.kind == "order" and not mine.companion:
            both.reverse()
        results = []
        with self.comm.batch():
            for each in both:
                args, keywords = arguments(each, self.rank, iteration)
                results.append(getattr(self.comm, each.collective)(*args, **keywords))
        return all(
            equal(result, truth(each, self.rank, iteration))
            for each, result in zip(both, results, strict=True)
        )


class Plans(Loop):
    """A planned collective, planned anew when the fault comes."""

    def main(self, iteration: int, mine: Case) -> bool:
        if iteration in (0, self.case.moment) or mine != self.case:
            args, keywords = arguments(mine, self.rank, iteration)
            if mine.asynchronous:
                keywords["async_op"] = True
            self.array = args[0]
            self.plan = self.comm.plan(mine.collective, *args, **keywords)
        fresh, _ = arguments(mine, self.rank, iteration)
        if self.array is not None:
            self.array[...] = fresh[0]
        result = self.plan()
        if mine.asynchronous:
            result = result.wait()
        return equal(result, truth(mine, self.rank, iteration))


class ObjectCalls(Loop):
    """Collectives on objects."""

    def main(self, iteration: int, mine: Case) -> bool:
        def value(rank: int) -> dict[str, Any]:
            return {"rank": rank, "iteration": iteration, "filling": "x" * self.case.count}

        call = getattr(self.comm, mine.collective)
        if mine.collective == "all_gather_object":
            return bool(call(value(self.rank)) == [value(r) for r in range(mine.ranks)])
        result = call(value(self.rank), mine.root)
        if mine.collective == "broadcast_object":
            return bool(result == value(mine.root))
        if self.rank != mine.root:
            return result is None
        return bool(result == [value(r) for r in range(mine.ranks)])


class Exchanges(Loop):
    """Each rank sends to the next one."""

    def main(self, iteration: int, mine: Case) -> bool:
        n = mine.ranks
        to, source = (self.rank + 1) % n, (self.rank - 1) % n
        x = block(mine, self.rank, iteration)
        # What is wrong is what is sent.
        out = np.zeros(self.case.count, self.case.dtype)
        result = self.comm.send_recv(x, to, out, source, async_op=mine.asynchronous)
        if mine.asynchronous:
            result = result.wait()
        return equal(result, block(self.case, source, iteration))


class Windows(Loop):
    """Each rank writes to the next one's memory; the window is made anew when the fault comes."""

    def main(self, iteration: int, mine: Case) -> bool:
        n = mine.ranks
        to, source = (self.rank + 1) % n, (self.rank - 1) % n
        small = replace(mine, count=min(mine.count, _WINDOW))
        if iteration in (0, self.case.moment):
            self.memory = np.zeros(small.count, mine.dtype)
            self.window = self.comm.window(self.memory)
        self.window.put(block(small, self.rank, iteration).astype(self.window.dtype), to)
        self.window.fence()
        right = equal(self.memory, block(small, source, iteration))
        self.window.fence()
        return right


class Splits(Loop):
    """A communicator made of another one, used once and ended."""

    def main(self, iteration: int, mine: Case) -> bool:
        part = self.comm.split(0, self.rank)
        right = collective(part, mine, self.rank, iteration)
        part.finalize()
        return right


class Creations(Loop):
    """A communicator made from nothing, used once and ended."""

    def main(self, iteration: int, mine: Case) -> bool:
        comm = hpccomm.new_comm(timeout=self.case.deadline, name=f"made {iteration}")
        right = collective(comm, mine, self.rank, iteration)
        if self.case.companion:
            self.comm = comm
            right = self.beside(iteration) and right
        comm.finalize()
        return right

    def calls(self, iteration: int, mine: Case) -> list[Call]:
        return [lambda: self.main(iteration, mine)]


LOOPS_OF: dict[str, type[Loop]] = {
    **dict.fromkeys(("native", "schedule", "shm", "async", "finalisation"), Collectives),
    "batch": Batches,
    "plan": Plans,
    "object": ObjectCalls,
    "message": Exchanges,
    "window": Windows,
    "split": Splits,
    "creation": Creations,
}
"""The loop of each operation."""
