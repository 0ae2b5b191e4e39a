"""Cases: memory that ranks share: arrays are registered on all ranks, or plain, with the same results.

If ranks share no memory (on several nodes, or over a backend without it) the calls go by messages,
and must have the same results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, ReduceOp
from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS, ROOTED
from hpccomm.errors import (
    CollectiveTimeout,
    CommunicationError,
    ConfigurationError,
    RankMismatch,
    UsageError,
)
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.testing.conformance import capabilities
from hpccomm.testing.conformance.algorithms import LARGE, cut, in_memory, taken
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import SOON, equal, happens, raises, takes
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.failures import SHORT, has_failed
from hpccomm.testing.conformance.groups import members
from hpccomm.testing.conformance.inputs import OPS, PAIRS
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, Spec
from hpccomm.testing.conformance.trials import FORMS, trial

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.testing.conformance.check import Array

SHARED_MEMORY = Behaviours("shared_memory", (capabilities.SHARED_MEMORY,))

PLAIN, REGISTERED, VIEW = "plain", "registered", "view"
"""Where an array lies: in memory of NumPy's, in memory of ``comm.empty``, or somewhere in that."""

AROUND = {PLAIN: 64, REGISTERED: 0, VIEW: 3}
"""Guard bytes before and behind the array."""

MIXTURES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "registered": ((REGISTERED, REGISTERED),),
    "views": ((VIEW, VIEW), (REGISTERED, VIEW)),
    "plain": ((PLAIN, PLAIN),),
    "x_alone": ((REGISTERED, PLAIN),),
    "out_alone": ((PLAIN, REGISTERED),),
    "all_sorts": ((VIEW, PLAIN), (PLAIN, REGISTERED), (PLAIN, PLAIN)),
}
"""Where x and out lie: on rank 0, on rank 1, and so on, then from the beginning."""

APART = frozenset(("x_alone", "out_alone", "all_sorts"))
"""Those that count as plain on each rank that has both arrays."""

MIXED = tuple(
    (collective, algorithm)
    for collective, own in ALGORITHMS.items()
    for algorithm in ("shm", "hierarchical", "auto")
    if collective != "barrier" and (algorithm == "auto" or algorithm in own)
)
"""Collectives, and the algorithms that may reach into memory of peers."""

SEGMENT = 64
"""Bytes: sixteen elements of float32."""


class Memory:
    """Gives the arrays of one rank's call as a mixture wants them.

    Parameters
    ----------
    comm : Communicator
        Gives registered memory.
    mixture : str
        One of `MIXTURES`.
    """

    def __init__(self, comm: Communicator, mixture: str) -> None:
        self._comm = comm
        self._mixture = mixture
        self._watched: list[tuple[Array, int]] = []

    def __call__(self, name: str, count: int, dtype: np.dtype[Any]) -> Array:
        """Return an array of `count` elements."""
        mixture = MIXTURES[self._mixture]
        where = mixture[self._comm.rank % len(mixture)][name == "out"]
        around, nbytes = AROUND[where], count * dtype.itemsize
        make = np.empty if where == PLAIN else self._comm.empty
        memory: Array = make(nbytes + 2 * around, np.uint8)
        memory.fill(0xA5)
        self._watched.append((memory, around))
        return memory[around : around + nbytes].view(dtype)

    def check(self, what: str) -> None:
        """Assert that nothing was written before and behind the arrays."""
        for memory, around in self._watched:
            outside = (memory[:around], memory[len(memory) - around :])
            assert all((part == 0xA5).all() for part in outside), f"{what}: written beside an array"


def attempt(
    comm: Communicator, algorithm: str, spec: Spec, mixture: str, form: str = "call", **how: Any
) -> None:
    """Make the call that is asked for, on arrays of a mixture, if `algorithm` takes it.

    They are plain where some rank has but one array, which would decide there. Collective over `comm`.
    """
    one_alone = spec.collective in ROOTED or spec.results != (OUT,)
    if mixture in APART and one_alone:
        mixture = "plain"
    if algorithm == "auto" or taken(comm, algorithm, spec, **how):
        memory = Memory(comm, mixture)
        trial(comm, spec, memory).run(comm, form, algorithm=algorithm, **how)
        memory.check(f"{spec} on {mixture}")


def uneven(size: int) -> tuple[int, ...]:
    """Return blocks of none, of few, and of several segments."""
    return tuple((0, 5, 40)[rank % 3] for rank in range(size))


@SHARED_MEMORY.behaviour(method=MIXED, reached=("auto", "staging"))
def arrays_lie_anywhere(comm: Communicator, method: tuple[str, str], reached: str) -> None:
    """In registered memory or not; in place or not; of several segments and of hardly any element."""
    collective, algorithm = method
    some: list[int | tuple[int, ...]] = [50 if collective in BLOCKWISE else 50 * comm.size, 1]
    if collective in BLOCKWISE:
        some.append(uneven(comm.size))
    places = cycle(((OUT,), (IN_PLACE, OUT), (IN_PLACE,)))
    with cut(comm, SEGMENT, reached) as small:
        for mixture in MIXTURES:
            for count in some:
                spec = Spec(collective, count, root=comm.size // 2, results=next(places))
                attempt(small, algorithm, spec, mixture)


@SHARED_MEMORY.behaviour(method=MIXED, reached=("auto", "staging"), min_size=2)
def large_arrays(comm: Communicator, method: tuple[str, str], reached: str) -> None:
    """Arrays of several segments as they are by default, and of more than are staged at a time."""
    collective, algorithm = method
    count = LARGE // comm.size if collective in BLOCKWISE else LARGE
    options = CommOptions(
        self_check=False, shared_memory=reached, shared_memory_room=(1 << 18) * comm.size
    )
    with another(comm, options=options) as chosen:
        results = (IN_PLACE, OUT) if reached == "staging" else (OUT,)
        attempt(chosen, algorithm, Spec(collective, count, root=1, results=results), "all_sorts")


@SHARED_MEMORY.behaviour(op=OPS, reached=("auto", "staging"))
def reductions(comm: Communicator, op: ReduceOp, reached: str) -> None:
    """Each reduction of each dtype, on arrays that lie anywhere."""
    with cut(comm, SEGMENT, reached) as small:
        for other, dtype in PAIRS:
            if other is op:
                results = (IN_PLACE if dtype.itemsize % 4 == 0 else OUT,)
                spec = Spec("all_reduce", 20 * comm.size + 3, dtype, op, results=results)
                attempt(small, "shm", spec, "all_sorts")


@SHARED_MEMORY.behaviour(method=MIXED)
def forms(comm: Communicator, method: tuple[str, str]) -> None:
    """A call may be asynchronous, or planned and then made again and again."""
    collective, algorithm = method
    for form in FORMS[1:]:
        results = (IN_PLACE if form == "plan" else OUT,)
        spec = Spec(collective, 3 * comm.size + 1, results=results)
        attempt(comm, algorithm, spec, "all_sorts", form)
        if collective in REDUCTIONS:
            attempt(comm, algorithm, spec, "x_alone", form, deterministic=True)


@SHARED_MEMORY.behaviour()
def ways_to_plain_arrays(comm: Communicator) -> None:
    """Each way of the setting has the same result; an impossible one raises on all ranks."""
    for reached in ("auto", "pages", "staging", "off"):
        options = CommOptions(self_check=False, shared_memory=reached)
        try:
            other = another(comm, options=options)
        except ConfigurationError as error:
            assert reached == "pages", f"{reached} is refused: {error}"
            assert "pages" in str(error), str(error)
            continue
        with other:
            for collective, algorithm in MIXED:
                spec = Spec(collective, 5, root=comm.size - 1, results=(IN_PLACE, OUT))
                for mixture in ("registered", "plain"):
                    attempt(other, algorithm, spec, mixture)


@SHARED_MEMORY.behaviour()
def no_memory_is_reached(comm: Communicator) -> None:
    """Switched off, the algorithm that needs it is refused; registered arrays are as good as others."""
    with cut(comm, None, "off") as unshared:
        x = unshared.empty(4, np.float32)
        x.fill(1)
        with raises(UsageError, "'shm'", "auto"):
            unshared.all_reduce(x, algorithm="shm")
        equal(unshared.all_reduce(x), np.full(4, comm.size, np.float32))


@SHARED_MEMORY.behaviour(method=MIXED)
def little_room(comm: Communicator, method: tuple[str, str]) -> None:
    """Any room for staging, even without an element, has the same results."""
    collective, algorithm = method
    for room in (1, 8 * comm.size, 100 * comm.size):
        options = CommOptions(self_check=False, shared_memory="staging", shared_memory_room=room)
        with another(comm, options=options) as narrow:
            for dtype in (np.float32, np.complex128):
                spec = Spec(collective, 4 * comm.size + 1, np.dtype(dtype), results=(IN_PLACE, OUT))
                attempt(narrow, algorithm, spec, "all_sorts")


@SHARED_MEMORY.behaviour(reached=("auto", "staging"))
def many_communicators_at_once(comm: Communicator, reached: str) -> None:
    """They share the memory that there is for staging; calls of all are under way at once."""
    room = 4096 * comm.size  # not enough for all of them
    options = CommOptions(
        self_check=False, shared_memory=reached, shared_memory_room=room, segment=1024
    )
    others = [another(comm, options=options) for _ in range(4)]
    works = []
    for scale in (1, 2):
        for number, each in enumerate(others):
            x = np.empty(3000, np.float32) if number % 2 else each.empty(3000, np.float32)
            x.fill(scale * (each.rank + number))
            expected = scale * (sum(range(comm.size)) + number * comm.size)
            work = each.all_reduce(x, algorithm=in_memory(each), async_op=True)
            works.append((work, expected))
    for work, expected in reversed(works):
        equal(work.wait(), np.full(3000, expected, np.float32))
    for each in others:
        each.finalize()


@SHARED_MEMORY.behaviour()
def a_batch(comm: Communicator) -> None:
    """Calls of a batch, on arrays of all kinds."""
    total = sum(range(1, comm.size + 1))
    x, y = comm.empty(100, np.float64), np.full(100, comm.rank + 1.0)
    every = comm.empty((comm.size, 100), np.float64)
    x.fill(comm.rank + 1)
    with comm.batch():
        comm.all_reduce(x, algorithm=in_memory(comm))
        comm.all_gather(y, out=every, algorithm=in_memory(comm))
        comm.all_reduce(every, algorithm=in_memory(comm))
    equal(x, np.full(100, float(total)), "x")
    rows = comm.size * (np.arange(comm.size) + 1.0)
    equal(every, np.repeat(rows, 100).reshape(comm.size, 100), "every")


@SHARED_MEMORY.behaviour(reached=("auto", "staging"))
def groups(comm: Communicator, reached: str) -> None:
    """Groups share memory as well, also with ranks in another order; arrays are of any of them."""
    x = comm.empty(1000, np.float32)
    with cut(comm, None, reached) as chosen:
        turned = chosen.split(chosen.rank % 2, key=-chosen.rank)
        assert turned is not None
        for group in (turned, chosen.node_comm):
            ranks = members(group, comm)
            shared = in_memory(group)
            x.fill(comm.rank)
            group.all_reduce(x, algorithm=shared)
            equal(x, np.full(1000, sum(ranks), np.float32), f"group of {ranks}")
            for root in {0, group.size - 1}:
                x.fill(comm.rank)
                group.broadcast(x, root, algorithm=shared)
                equal(x, np.full(1000, ranks[root], np.float32), f"from {ranks[root]}")
        turned.finalize()


def gone(references: list[weakref.ref[Array]]) -> bool:
    """Return whether all referents are gone."""
    return all(each() is None for each in references)


@SHARED_MEMORY.behaviour(method=MIXED)
def arrays_are_let_go_of(comm: Communicator, method: tuple[str, str]) -> None:
    """After a call nothing keeps its arrays, nor views of them."""
    collective, algorithm = method
    spec = Spec(collective, 5 * comm.size)
    if not (algorithm == "auto" or taken(comm, algorithm, spec)):
        return
    for form in ("call", "asynchronous"):
        call = trial(comm, spec)
        call.run(comm, form, algorithm=algorithm)
        given = [call.arguments.get(name) for name in ("x", "out")]
        references = [weakref.ref(array) for array in given if array is not None]
        del call, given
        # Peers that are threads drop it a little later.
        let_go = f"{spec}, {algorithm}, {form} keeps nothing"
        happens(partial(gone, references), let_go, SOON)


Differing = Callable[["Communicator", "Array", bool], object]
"""A call on an array, which one rank makes in another way."""

DIFFERENCES: Mapping[str, Differing] = {
    "size": lambda comm, x, odd: comm.all_reduce(x[: len(x) - odd], algorithm="shm"),
    "dtype": lambda comm, x, odd: comm.all_reduce(
        x.view(np.int32 if odd else np.float32), algorithm="shm"
    ),
    "op": lambda comm, x, odd: comm.all_reduce(
        x, ReduceOp.MAX if odd else ReduceOp.SUM, algorithm="shm"
    ),
    "factor": lambda comm, x, odd: comm.all_reduce(x, hpccomm.premul_sum(2 + odd), algorithm="shm"),
    "root": lambda comm, x, odd: comm.broadcast(x, int(odd), algorithm="shm"),
    "order": lambda comm, x, odd: comm.all_reduce(x, deterministic=odd, algorithm="shm"),
    "collective": lambda comm, x, odd: (
        comm.broadcast(x, algorithm="shm") if odd else comm.all_reduce(x, algorithm="shm")
    ),
    "counts": lambda comm, x, odd: comm.all_gather_v(
        x[:4], [4 + odd, *[4] * (comm.size - 1)], algorithm="shm"
    ),
}


@SHARED_MEMORY.behaviour(
    difference=tuple(DIFFERENCES), reached=("auto", "staging"), min_size=2, fails=True
)
def calls_that_differ(comm: Communicator, difference: str, reached: str) -> None:
    """All ranks of the node get the error, at once; no memory was touched."""
    with cut(comm, None, reached) as chosen:
        node = chosen.node_comm.dup()  # which fails; on one node the other is `chosen` itself
        if node.size > 1:
            memory = Memory(node, "plain")
            x = memory("x", 1000, np.dtype(np.float32))
            x.fill(node.rank)
            with takes(), raises(RankMismatch, "rank", str(node.size - 1)):
                DIFFERENCES[difference](node, x, node.rank == node.size - 1)
            equal(x, np.full(1000, node.rank, np.float32), "x")
            memory.check(difference)
            has_failed(node)
        chosen.barrier()


@SHARED_MEMORY.behaviour(mixture=("registered", "plain"), min_size=2, fails=True)
def a_rank_that_comes_late(comm: Communicator, mixture: str) -> None:
    """After the others have left the call, it does not write to memory that they may reuse."""
    # On one node the node's communicator is `comm` itself, which is needed when the other has failed.
    node, memory = comm.node_comm.dup(), Memory(comm, mixture)
    late = node.rank == node.size - 1
    x = memory("x", 10_000, np.dtype(np.float32))
    x.fill(1)
    others: list[Array] = []
    if not late:
        with raises(CollectiveTimeout, "all_reduce"):
            node.all_reduce(x, algorithm="shm", timeout=SHORT)
        del x, memory
        others = [make(10_000, np.float32) for make in (comm.empty, np.empty) for _ in range(4)]
        for other in others:
            other.fill(7)
    comm.barrier()
    if late and node.size > 1:
        with raises(CommunicationError):
            node.all_reduce(x, algorithm="shm", timeout=SHORT)
    comm.barrier()
    assert all((other == 7).all() for other in others), "written by the late rank"
