"""Cases: each of hpccomm's own algorithms has the right result, for every call that it takes.

Segments are small here, so that arrays of few elements are moved in many pieces.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

import hpccomm
from hpccomm import CommOptions, ReduceOp, UsageError
from hpccomm.contracts.collectives import BLOCKWISE, REDUCTIONS, ROOTED
from hpccomm.dtypes import BFLOAT16, REDUCIBLE
from hpccomm.schedules.algorithms import ALGORITHMS as KNOWN
from hpccomm.schedules.algorithms import ring
from hpccomm.schedules.schedule import Schedule
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.testing.conformance.capabilities import SHARED_MEMORY, lacks
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises
from hpccomm.testing.conformance.collectives import waits_for
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.inputs import MOVABLE
from hpccomm.testing.conformance.oracle import FLOAT32, IN_PLACE, NEW, OUT, Spec
from hpccomm.testing.conformance.trials import FORMS, trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpccomm.communicator import Communicator

ALGORITHMS = Behaviours("algorithms")

Method = tuple[str, ...]
"""A collective, an algorithm for it, and where it differs `CommOptions.shared_memory`."""

MOVES: tuple[tuple[str, str], ...] = tuple(
    (collective, name)
    for collective in KNOWN
    for name in KNOWN[collective]
    if collective != "barrier"
)
"""Collectives that move data, and each algorithm for them."""

STAGED = tuple((*each, "staging") for each in MOVES if KNOWN[each[0]][each[1]].staged is not None)
"""The algorithms that work on scratch shared between ranks."""

METHODS: tuple[Method, ...] = (*MOVES, *STAGED)

SEGMENT = 2 * FLOAT32.itemsize
"""Bytes: two elements of float32."""

LARGE = 3 * DEFAULT_SEGMENT // FLOAT32.itemsize + 5
"""Elements of float32."""

FEW = 4
"""The most ranks for tests of each dtype and root: a schedule does not depend on the dtype."""


@contextmanager
def cut(
    comm: Communicator, segment: int | None, shared_memory: str | None = None
) -> Iterator[Communicator]:
    """Give a communicator that moves `segment` bytes at a time; collective over `comm`.

    Where nothing is to differ from the defaults it is `comm`.
    """
    if segment is None and shared_memory is None:
        yield comm
        return
    options = CommOptions(self_check=False, segment=segment, shared_memory=shared_memory)
    with another(comm, options=options) as other:
        yield other


def in_memory(comm: Communicator) -> str | None:
    """Return the algorithm that sends nothing, or None where it does not apply. Local."""
    unshared = comm.size != comm.local_size or lacks(comm, SHARED_MEMORY) is not None
    return None if comm.size == 1 or unshared else "shm"


def taken(comm: Communicator, algorithm: str, spec: Spec, **how: Any) -> bool:
    """Return whether a call may be made by `algorithm`; if not, assert that it may be refused.

    Local. What may be refused is uneven blocks and memory that not all ranks reach.
    """
    kind = KNOWN[spec.collective][algorithm]
    uneven = spec.call != spec.collective
    try:
        choice = comm.explain(spec.call, **trial(comm, spec).arguments, algorithm=algorithm, **how)
    except UsageError:
        assert kind.shared or (kind.uniform and uneven), f"{algorithm} is refused for {spec}"
        return False
    assert not (kind.uniform and uneven), f"{algorithm} is taken for {spec}"
    assert choice.algorithm == algorithm, f"{choice.algorithm} instead of {algorithm}"
    return True


def attempt(comm: Communicator, algorithm: str, spec: Spec, form: str = "call", **how: Any) -> None:
    """Make the call that is asked for, by `algorithm`, if it takes it; collective over `comm`."""
    if taken(comm, algorithm, spec, **how):
        trial(comm, spec).run(comm, form, algorithm=algorithm, **how)


def uneven_counts(size: int) -> list[tuple[int, ...]]:
    """Return blocks of growing size, all elements on one rank, and none at all."""
    return [tuple(range(size)), (*[0] * (size - 1), 7), (0,) * size]


@ALGORITHMS.behaviour(method=METHODS)
def counts(comm: Communicator, method: Method) -> None:
    """Arrays of no element, fewer than ranks, and many segments; blocks even and uneven.

    Whether a rank works in place is its own affair.
    """
    collective, algorithm, *shared = method
    last = comm.size - 1
    in_blocks = collective in BLOCKWISE
    some: set[int | tuple[int, ...]] = {0, 1, 5} if in_blocks else {0, 1, last, 4 * comm.size + 3}
    if in_blocks:
        some.update(uneven_counts(comm.size))
    with cut(comm, SEGMENT, *shared) as small:
        for count in sorted(some, key=str):
            for results in ((OUT,), (IN_PLACE,), (IN_PLACE, OUT, NEW)):
                attempt(small, algorithm, Spec(collective, count, root=last, results=results))


@ALGORITHMS.behaviour(method=METHODS, min_size=2)
def large_arrays(comm: Communicator, method: Method) -> None:
    """Arrays of several segments as they are by default, which no transport sends at once."""
    collective, algorithm, *shared = method
    count = LARGE // comm.size if collective in BLOCKWISE else LARGE
    with cut(comm, None, *shared) as chosen:
        attempt(chosen, algorithm, Spec(collective, count, root=1))


@ALGORITHMS.behaviour(method=tuple(method for method in METHODS if method[0] in ROOTED))
def roots(comm: Communicator, method: Method) -> None:
    """Each rank may be the root, of even and uneven blocks."""
    collective, algorithm, *shared = method
    size = comm.size
    with cut(comm, None, *shared) as chosen:
        for root in range(size) if size <= FEW else (0, 1, size // 2, size - 1):
            attempt(chosen, algorithm, Spec(collective, 2 * size + 1, root=root))
            if collective in BLOCKWISE:
                attempt(chosen, algorithm, Spec(collective, tuple(range(size)), root=root))


@ALGORITHMS.behaviour(method=METHODS)
def dtypes(comm: Communicator, method: Method) -> None:
    """Each dtype is moved, and summed where the call reduces."""
    collective, algorithm, *shared = method
    if comm.size > FEW:
        some = [BFLOAT16, np.dtype(np.int16)]
    else:
        some = list(REDUCIBLE if collective in REDUCTIONS else MOVABLE)
    with cut(comm, None, *shared) as chosen:
        for dtype, result in zip(some, cycle((IN_PLACE, OUT)), strict=False):
            attempt(chosen, algorithm, Spec(collective, 5, dtype, results=(result,)))


@ALGORITHMS.behaviour(method=tuple(method for method in METHODS if method[0] in REDUCTIONS))
def reductions(comm: Communicator, method: Method) -> None:
    """Each reduction, by name or by a function; averages are divided once, scans leave out self."""
    collective, algorithm, *shared = method
    some: list[tuple[Any, Any]] = [
        (ReduceOp.PROD, np.float64),
        (ReduceOp.MAX, np.float32),
        (ReduceOp.BXOR, np.int32),
        (hpccomm.premul_sum(0.5), np.float32),
        (np.fmax, np.float32),
    ]
    if collective != "scan":
        some += [(ReduceOp.AVG, np.float32), (ReduceOp.AVG, np.int64), (ReduceOp.AVG, BFLOAT16)]
    with cut(comm, None, *shared) as chosen:
        for op, dtype in some:
            results = (IN_PLACE if op is ReduceOp.AVG else OUT,)
            spec = Spec(collective, 2 * comm.size + 1, np.dtype(dtype), op, results=results)
            attempt(chosen, algorithm, spec)
        if collective == "scan":
            for result in (OUT, IN_PLACE):
                spec = Spec(collective, 7, np.dtype(np.int32), exclusive=True, results=(result,))
                attempt(chosen, algorithm, spec)


@ALGORITHMS.behaviour(method=METHODS)
def forms(comm: Communicator, method: Method) -> None:
    """A call may be asynchronous, or planned, also of uneven blocks and in rank order."""
    collective, algorithm, *shared = method
    with cut(comm, None, *shared) as chosen:
        for form in FORMS[1:]:
            results = (IN_PLACE if form == "plan" else OUT,)
            spec = Spec(collective, 3 * comm.size + 1, results=results)
            attempt(chosen, algorithm, spec, form)
            if collective in BLOCKWISE:
                attempt(chosen, algorithm, Spec(collective, tuple(range(comm.size))), form)
            if KNOWN[collective][algorithm].ordered is not None:
                attempt(chosen, algorithm, spec, form, deterministic=True)


@ALGORITHMS.behaviour(collective=tuple(KNOWN), min_size=3)
def ranks_in_another_order(comm: Communicator, collective: str) -> None:
    """In a group with the ranks in another order, so that ranks of one node are not consecutive."""
    turned = comm.split(0, key=(comm.rank % 2) * comm.size - comm.rank)
    assert turned is not None, "every rank is in it"
    for algorithm in KNOWN[collective]:
        if collective == "barrier":
            turned.barrier(algorithm=algorithm)
            continue
        for count in (1, 2 * comm.size + 1):
            attempt(turned, algorithm, Spec(collective, count, root=1))
    turned.finalize()


@ALGORITHMS.behaviour(algorithm=tuple(KNOWN["barrier"]), form=FORMS)
def barriers(comm: Communicator, algorithm: str, form: str) -> None:
    """No rank leaves before the last has come."""
    barrier: Callable[[], object] = partial(comm.barrier, algorithm=algorithm)
    if form == "plan":
        barrier = comm.plan("barrier", algorithm=algorithm)
    elif form == "asynchronous":
        barrier = lambda: comm.barrier(algorithm=algorithm, async_op=True).wait()  # noqa: E731
    for late in {0, comm.size // 2, comm.size - 1}:
        waits_for(comm, late, barrier)


@ALGORITHMS.behaviour()
def functions_make_schedules(comm: Communicator) -> None:
    """A function takes the place of a name; one whose schedule is wrong is refused on every rank."""

    def short(*given: Any) -> Schedule:
        *rounds, _ = ring.all_gather(*given).channels[0]()
        return Schedule((lambda: iter(rounds),))

    for form in FORMS:
        for count in (0, 3, 1000):
            trial(comm, Spec("all_gather", count)).run(comm, form, algorithm=ring.all_gather)
            trial(comm, Spec("all_reduce", count)).run(comm, form, algorithm=ring.all_reduce)
    x = np.ones(2)
    choice = comm.explain("all_gather", x, algorithm=ring.all_gather)
    assert choice.schedule, "it is known by its schedule"
    if comm.size > 1:
        with raises(UsageError, "short", "refused", "rank 0"):
            comm.all_gather(x, algorithm=short)
    with raises(UsageError, "algorithm", "rank order"):
        comm.all_reduce(x, algorithm=ring.all_reduce, deterministic=True)
    comm.barrier()


@ALGORITHMS.behaviour()
def the_setting(comm: Communicator) -> None:
    """`CommOptions` names the algorithm of the calls that have such a one, and the segment."""
    options = CommOptions(algorithm="chain", segment=64, self_check=False)
    with another(comm, options=options) as other:
        x = np.arange(100.0, dtype=np.float32)
        for collective in ("all_reduce", "broadcast", "reduce"):
            choice = other.explain(collective, x)
            assert (choice.algorithm, choice.segment) == ("chain", 64), choice
        assert other.explain("all_gather", x).algorithm != "chain", "all_gather is not tuned"
        attempt(other, "chain", Spec("all_reduce", 100))
