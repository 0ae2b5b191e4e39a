"""Arrays that do not fit: refused by every call, with an error that says what would fit.

The conformance suite's trials give the arrays that do. `tests/memory/test_buffers.py` has what each check of an array
finds; here every call makes the checks.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from front.misuse import each_is_refused
from hpccomm import Communicator
from hpccomm.calls.core import OF_NUMBERS
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.errors import BufferMismatch, UnsupportedDtype, UsageError
from hpccomm.testing.conformance.case import Array, Behaviours
from hpccomm.testing.conformance.collectives import trial
from hpccomm.testing.conformance.oracle import OUT, WITH_DATA, Spec

ARRAYS = Behaviours("misused_arrays")

ROWS = 2
"""Elements of a block: an overlap by one element is then never a whole block."""


def forms(comm: Communicator) -> Iterator[tuple[str, Any, Array, Array]]:
    """Give the calls that read x and write out, with arrays that fit. The calling rank is the root."""
    for name in WITH_DATA:
        if name in ("broadcast", "neighbor_all_to_all"):
            continue
        uneven = [] if DESCRIPTIONS[name].sends == "whole" else [(ROWS,) * comm.size]
        for count in (ROWS, *uneven):
            spec = Spec(name, count, np.dtype(np.float64), root=comm.rank, results=(OUT,))
            given = dict(trial(comm, spec).arguments)
            x, out = given.pop("x"), given.pop("out")
            yield spec.call, partial(getattr(comm, spec.call), **given), x, out


def readers(comm: Communicator) -> dict[str, Callable[[Any], object]]:
    """Return the other calls that take x."""

    def batched(x: Any) -> None:
        with comm.batch():
            comm.all_reduce(x)

    return {
        "broadcast": lambda x: comm.broadcast(x, comm.rank),
        "send": lambda x: comm.send(x, 0),
        "send_recv": lambda x: comm.send_recv(x, 0, np.empty(2), 0),
        "explain": lambda x: comm.explain("all_reduce", x),
        "batch": batched,
    }


def writers(comm: Communicator) -> dict[str, Callable[[Any], object]]:
    """Return the calls that write an array whose size and dtype nothing else says."""
    there = (comm.rank + 1) % comm.size
    return {
        "all_reduce": comm.all_reduce,
        "reduce": lambda x: comm.reduce(x, comm.rank),
        "recv": lambda out: comm.recv(out, 0),
        "send_recv": lambda out: comm.send_recv(np.ones(ROWS), 0, out, 0),
        # The only rank is the root of a broadcast, whose x is not written.
        **({"broadcast": lambda x: comm.broadcast(x, there)} if comm.size > 1 else {}),
    }


Bad = tuple[Callable[[Array], Any], type[UsageError], str, str]

BAD: dict[str, Bad] = {
    "strided": (lambda a: np.zeros(2 * a.size)[::2], UsageError, "contiguous", ""),
    "list": (lambda _: [1.5, 2.5], UsageError, "[1.5, 2.5]", "array"),
    "number": (lambda _: 3.5, UsageError, "3.5", "array"),
    "objects": (lambda a: np.full(a.shape, None), UnsupportedDtype, "object", "dtype"),
    "frozen": (lambda a: np.broadcast_to(1.0, a.size), UsageError, "read-only", ""),
}
"""Something that is no array, or none that fits: made for one that does; with its error, and words of it."""

TAKEN_AS_THEY_ARE = {"number": (*OF_NUMBERS, "explain"), "strided": ("send", "recv", "send_recv")}
"""The calls that take it."""


@ARRAYS.behaviour(bad=tuple(BAD))
def arrays(comm: Communicator, bad: str) -> None:
    """What is no array, or none that can be shared, is refused as x; neither can it be written."""
    make, error, *words = BAD[bad]
    some, taken = np.ones(ROWS), TAKEN_AS_THEY_ARE.get(bad, ())
    rows: list[tuple[Any, ...]] = []
    for name, call, x, out in forms(comm):
        rows.append((error, ("out", *words), partial(call, x=x, out=make(out))))
        if bad != "frozen" and name not in taken:
            rows.append((error, ("x", *words), partial(call, x=make(x))))
    for name, read in readers(comm).items() if bad != "frozen" else ():
        if name not in taken:
            rows.append((error, ("x", *words), read, make(some)))
    for name, write in writers(comm).items():
        if name not in taken:
            output = "out" if "recv" in name else "x"
            rows.append((error, (output, *words), write, make(some)))
    each_is_refused(comm, rows)


@ARRAYS.behaviour()
def outputs_that_do_not_fit(comm: Communicator) -> None:
    """`out` must have the result's number of elements, and x's dtype, and not overlap x but as x or its own block."""
    rows: list[tuple[Any, ...]] = []
    calls = [*forms(comm)]
    for _, call, x, out in calls:
        for elements in (out.size - 1, out.size + 3, 0):
            words = ("out", str(elements), str(out.size))
            rows.append((BufferMismatch, words, partial(call, x=x, out=np.ones(elements))))
        for dtype in ("float32", "int64"):
            words = ("out", dtype, "float64")
            rows.append((BufferMismatch, words, partial(call, x=x, out=np.ones(out.shape, dtype))))
    some = np.ones(ROWS)
    message = partial(comm.send_recv, dst=0, src=0)
    overlap = (UsageError, ("out", "overlap"))
    for _, call, x, out in (*calls, ("send_recv", message, some, some)):
        memory = np.ones(x.size + out.size)
        a, b = memory[: x.size].reshape(x.shape), memory[x.size - 1 :][: out.size]
        rows.append((*overlap, partial(call, x=a, out=b.reshape(out.shape))))
        if x.size != out.size:  # in place is at the own block alone
            blocks = np.ones((comm.size, ROWS))
            other = blocks[(comm.rank + 1) % comm.size]
            a, b = (other, blocks) if x.size < out.size else (blocks, other)
            rows.append((*overlap, partial(call, x=a.reshape(x.shape), out=b.reshape(out.shape))))
    each_is_refused(comm, rows)


@ARRAYS.behaviour(min_size=2)
def rows_that_do_not_divide(comm: Communicator) -> None:
    """Axis 0 of what is cut into blocks must be divisible by the number of ranks."""
    size = str(comm.size)
    shapes = ((comm.size + 1,), (size,)), ((1, comm.size), (size,)), ((), ("0-d",))
    rows = (
        (UsageError, ("x", str(shape) if shape else "", *words), partial(call, x=np.ones(shape)))
        for name, call, *_ in forms(comm)
        if name in ("reduce_scatter", "all_to_all", "scatter")
        for shape, words in shapes
    )
    each_is_refused(comm, rows)
