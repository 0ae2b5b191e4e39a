"""Arrays that do not fit: refused by every call, with an error that says what would fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from front.misuse import refused
from hpccomm.communicator.core import OF_NUMBERS
from hpccomm.errors import BufferMismatch, UnsupportedDtype, UsageError
from hpccomm.testing.conformance import oracle
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.oracle import SEMANTICS, RankView, Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator

ARRAYS = Behaviours("misused_arrays")

ROWS = 2
"""Elements of a block: an overlap by one element is then never a whole block."""


@dataclass(frozen=True)
class Form:
    """A call with x and out, both of float64.

    Attributes
    ----------
    name : str
        The call.
    call : callable
        ``call(comm, x, out)``. The calling rank is the root.
    x_blocks, out_blocks : callable
        From the number of ranks, how many blocks of `ROWS` elements each has; 0: there is none.
    output : str
        Name of the argument that is written.
    """

    name: str
    call: Callable[[Any, Any, Any], object] = field(repr=False)
    x_blocks: Callable[[int], int] = field(repr=False)
    out_blocks: Callable[[int], int] = field(repr=False)
    output: str = "out"


def one(size: int) -> int:
    """One block."""
    return 1


def each(size: int) -> int:
    """One block for each rank."""
    return size


def absent(size: int) -> int:
    """No such array."""
    return 0


def form_of(collective: str, *, uneven: bool = False) -> Form:
    """Return the form of a collective, on blocks of `ROWS` elements where it has blocks."""
    meaning = SEMANTICS[collective]

    def call(comm: Communicator, x: Any, out: Any) -> object:
        count = (ROWS,) * comm.size if uneven else ROWS
        part = RankView(Spec(collective, count, root=comm.rank), comm.rank, comm.size)
        made: object = getattr(comm, part.spec.call)(x, out=out, **part.arguments())
        return made

    name = f"{collective}_v" if uneven else collective
    x_blocks = each if meaning.rows in (oracle.all_blocks, oracle.sent) else one
    out_blocks = each if meaning.result in (oracle.joined, oracle.exchanged) else one
    return Form(name, call, x_blocks, out_blocks)


COLLECTIVES = [name for name in SEMANTICS if name not in ("broadcast", "neighbor_all_to_all")]

FORMS = (
    *map(form_of, COLLECTIVES),
    *(form_of(name, uneven=True) for name in COLLECTIVES if SEMANTICS[name].rows is not oracle.one),
)
"""The calls that read x and write out."""

IN_PLACE = (
    Form("all_reduce", lambda c, _, out: c.all_reduce(out), absent, one, "x"),
    Form("broadcast", lambda c, _, out: c.broadcast(out, (c.rank + 1) % c.size), absent, one, "x"),
    Form("reduce", lambda c, _, out: c.reduce(out, c.rank), absent, one, "x"),
    Form("recv", lambda c, _, out: c.recv(out, 0), absent, one),
    Form("send_recv", lambda c, x, out: c.send_recv(x, 0, out, 0), one, one),
)
"""The calls that write an array whose size and dtype nothing else says."""


def batched(comm: Communicator, x: Any) -> None:
    """Put a call on `x` into a batch."""
    with comm.batch():
        comm.all_reduce(x)


READERS = (
    *FORMS,
    Form("broadcast", lambda c, x, _: c.broadcast(x, c.rank), one, absent),
    Form("send", lambda c, x, _: c.send(x, 0), one, absent),
    Form("send_recv", lambda c, x, _: c.send_recv(x, 0, np.empty(2), 0), one, absent),
    Form("explain", lambda c, x, _: c.explain("all_reduce", x), one, absent),
    Form("batch", lambda c, x, _: batched(c, x), one, absent),
)
"""The calls that take x."""


@dataclass(frozen=True)
class Bad:
    """Something that is no array, or none that fits: made for a number of elements."""

    name: str
    make: Callable[[int], Any] = field(repr=False)
    words: tuple[str, ...]
    error: type[UsageError] = UsageError


def frozen(elements: int) -> Any:
    """Return a read-only array."""
    x = np.ones(elements)
    x.flags.writeable = False
    return x


LAYOUTS = (
    Bad("strided", lambda n: np.zeros(2 * n)[::2], ("contiguous",)),
    Bad(
        "foreign_byte_order", lambda n: np.zeros(n, np.dtype("f8").newbyteorder()), ("byte order",)
    ),
    Bad("list", lambda _: [1.5, 2.5], ("[1.5, 2.5]", "array")),
    Bad("number", lambda _: 3.5, ("3.5", "array")),
    Bad("string", lambda _: "text", ("text", "array")),
    Bad("objects", lambda n: np.array([None] * n), ("object",), UnsupportedDtype),
    Bad(
        "objects_in_fields",
        lambda n: np.zeros(n, np.dtype([("a", "i4"), ("b", "O")])),
        ("dtype",),
        UnsupportedDtype,
    ),
)


INPUTS = (
    *LAYOUTS,
    Bad("None", lambda _: None, ("None", "array")),
    Bad("fortran", lambda n: np.zeros((n, 3), order="F"), ("contiguous",)),
)


TAKEN_AS_THEY_ARE = {
    "number": (*OF_NUMBERS, "explain"),
    "strided": ("send", "recv", "send_recv"),
    "fortran": ("send", "recv", "send_recv"),
}
"""The calls that take it."""


@ARRAYS.behaviour(bad=INPUTS)
def inputs(comm: Communicator, bad: Bad) -> None:
    """What is no array, or none that can be shared, is refused as x."""
    with refused(comm) as attempt:
        for form in READERS:
            if form.name in TAKEN_AS_THEY_ARE.get(bad.name, ()):
                continue
            x = bad.make(ROWS * max(1, form.x_blocks(comm.size)))
            attempt(form.name, bad.error, ("x", *bad.words), form.call, comm, x, None)


@ARRAYS.behaviour(bad=(*LAYOUTS, Bad("read_only", frozen, ("read-only",))))
def outputs(comm: Communicator, bad: Bad) -> None:
    """Neither can it be written."""
    with refused(comm) as attempt:
        for form in (*FORMS, *IN_PLACE):
            if form.name == "broadcast" and comm.size == 1:
                continue  # the only rank is the root, whose x is not written
            if form.name in TAKEN_AS_THEY_ARE.get(bad.name, ()) and form not in FORMS:
                continue
            x = np.ones(ROWS * form.x_blocks(comm.size))
            out = bad.make(ROWS * form.out_blocks(comm.size))
            words = (form.output, *bad.words)
            attempt(form.name, bad.error, words, form.call, comm, x, out)


@ARRAYS.behaviour()
def outputs_of_another_size(comm: Communicator) -> None:
    """`out` must have the result's number of elements."""
    with refused(comm) as attempt:
        for form in FORMS:
            fits = ROWS * form.out_blocks(comm.size)
            x = np.ones(ROWS * form.x_blocks(comm.size))
            for elements in (fits - 1, fits + 3, 0):
                out = np.ones(elements)
                words = ("out", str(elements), str(fits))
                attempt(form.name, BufferMismatch, words, form.call, comm, x, out)


@ARRAYS.behaviour()
def outputs_of_another_dtype(comm: Communicator) -> None:
    """`out` must have x's dtype."""
    with refused(comm) as attempt:
        for form in FORMS:
            x = np.ones(ROWS * form.x_blocks(comm.size))
            for dtype in (np.float32, np.int64):
                out = np.ones(ROWS * form.out_blocks(comm.size), dtype)
                words = ("out", np.dtype(dtype).name, "float64")
                attempt(form.name, BufferMismatch, words, form.call, comm, x, out)


@ARRAYS.behaviour()
def overlaps(comm: Communicator) -> None:
    """`out` may be x, or the own block, but not overlap it otherwise."""
    with refused(comm) as attempt:
        for form in (*FORMS, *(form for form in IN_PLACE if form.x_blocks is not absent)):
            reads = ROWS * form.x_blocks(comm.size)
            writes = ROWS * form.out_blocks(comm.size)
            memory = np.ones(reads + writes)
            x, out = memory[:reads], memory[reads - 1 :][:writes]
            words = ("out", "overlap")
            attempt(form.name, UsageError, words, form.call, comm, x, out)


@ARRAYS.behaviour(min_size=2)
def overlap_with_the_block_of_another_rank(comm: Communicator) -> None:
    """In place is at the own block alone."""
    memory = np.ones((comm.size, ROWS))
    other = memory[(comm.rank + 1) % comm.size]
    with refused(comm) as attempt:
        for form in FORMS:
            if form.x_blocks is not form.out_blocks:
                x, out = (other, memory) if form.x_blocks is one else (memory.reshape(-1), other)
                words = ("out", "overlap")
                attempt(form.name, UsageError, words, form.call, comm, x, out)


@ARRAYS.behaviour(min_size=2)
def rows_that_do_not_divide(comm: Communicator) -> None:
    """Axis 0 of what is cut into blocks must be divisible by the number of ranks."""
    size = comm.size
    with refused(comm) as attempt:
        for name in ("reduce_scatter", "all_to_all", "scatter"):
            form = next(form for form in FORMS if form.name == name)
            for shape in ((size + 1,), (1, size)):
                x = np.ones(shape)
                words = ("x", str(shape), str(size))
                attempt(name, UsageError, words, form.call, comm, x, None)
            attempt(name, UsageError, ("x", "0-d"), form.call, comm, np.array(1.0), None)
