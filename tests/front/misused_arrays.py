"""Arrays that do not fit: refused by every call, with an error that says what would fit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from front.misuse import each_is_refused
from hpccomm import Communicator
from hpccomm.calls.core import OF_NUMBERS
from hpccomm.errors import BufferMismatch, UnsupportedDtype, UsageError
from hpccomm.testing.conformance import oracle
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.oracle import SEMANTICS, RankView, Spec

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
    reads, writes : callable
        From the communicator, how many blocks of `ROWS` elements each has; 0: there is none.
    output : str
        Name of the argument that is written.
    """

    name: str
    call: Callable[[Any, Any, Any], object] = field(repr=False)
    reads: Callable[[Any], int] = field(repr=False)
    writes: Callable[[Any], int] = field(repr=False)
    output: str = "out"

    def __call__(self, *given: Any) -> object:
        return self.call(*given)

    def arrays(self, comm: Communicator, make: Callable[[int], Any]) -> tuple[Any, Any]:
        """Return x of ones, and `out` made for as many elements as fit."""
        return np.ones(ROWS * self.reads(comm)), make(ROWS * self.writes(comm))


def one(comm: Communicator) -> int:
    """One block."""
    return 1


def each(comm: Communicator) -> int:
    """One block for each rank."""
    return comm.size


def absent(comm: Communicator) -> int:
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
    reads = each if meaning.rows in (oracle.all_blocks, oracle.sent) else one
    writes = each if meaning.result in (oracle.joined, oracle.exchanged) else one
    return Form(name, call, reads, writes)


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
    Bad("list", lambda _: [1.5, 2.5], ("[1.5, 2.5]", "array")),
    Bad("number", lambda _: 3.5, ("3.5", "array")),
    Bad("objects", lambda n: np.array([None] * n), ("object",), UnsupportedDtype),
)
"""One for each check that a call makes of an array. `tests/memory/test_buffers.py` has what each check finds."""

TAKEN_AS_THEY_ARE = {
    "number": (*OF_NUMBERS, "explain"),
    "strided": ("send", "recv", "send_recv"),
}
"""The calls that take it."""


@ARRAYS.behaviour(bad=LAYOUTS)
def inputs(comm: Communicator, bad: Bad) -> None:
    """What is no array, or none that can be shared, is refused as x."""
    rows = (
        (bad.error, ("x", *bad.words), form, comm, bad.make(ROWS * (form.reads(comm) or 1)), None)
        for form in READERS
        if form.name not in TAKEN_AS_THEY_ARE.get(bad.name, ())
    )
    each_is_refused(comm, rows)


@ARRAYS.behaviour(bad=(*LAYOUTS, Bad("read_only", frozen, ("read-only",))))
def outputs(comm: Communicator, bad: Bad) -> None:
    """Neither can it be written."""
    taken = TAKEN_AS_THEY_ARE.get(bad.name, ())
    # The only rank is the root of a broadcast, whose x is not written.
    in_place = [form for form in IN_PLACE if form.name != "broadcast" or comm.size > 1]
    rows = (
        (bad.error, (form.output, *bad.words), form, comm, *form.arrays(comm, bad.make))
        for form in (*FORMS, *(form for form in in_place if form.name not in taken))
    )
    each_is_refused(comm, rows)


@ARRAYS.behaviour()
def outputs_that_do_not_fit(comm: Communicator) -> None:
    """`out` must have the result's number of elements, and x's dtype."""
    rows: list[tuple[Any, ...]] = []
    for form in FORMS:
        x, out = form.arrays(comm, np.ones)
        for elements in (out.size - 1, out.size + 3, 0):
            words = ("out", str(elements), str(out.size))
            rows.append((BufferMismatch, words, form, comm, x, np.ones(elements)))
        for dtype in ("float32", "int64"):
            words = ("out", dtype, "float64")
            rows.append((BufferMismatch, words, form, comm, x, out.astype(dtype)))
    each_is_refused(comm, rows)


@ARRAYS.behaviour()
def overlaps(comm: Communicator) -> None:
    """`out` may be x, or the own block, but not overlap it otherwise."""
    rows: list[tuple[Any, ...]] = []
    for form in (*FORMS, *(form for form in IN_PLACE if form.reads(comm))):
        reads, writes = ROWS * form.reads(comm), ROWS * form.writes(comm)
        memory = np.ones(reads + writes)
        x, out = memory[:reads], memory[reads - 1 :][:writes]
        rows.append((UsageError, ("out", "overlap"), form, comm, x, out))
    blocks = np.ones((comm.size, ROWS))
    other = blocks[(comm.rank + 1) % comm.size]  # in place is at the own block alone
    for form in FORMS if comm.size > 1 else ():
        if form.reads is not form.writes:
            x, out = (other, blocks) if form.reads is one else (blocks.reshape(-1), other)
            rows.append((UsageError, ("out", "overlap"), form, comm, x, out))
    each_is_refused(comm, rows)


@ARRAYS.behaviour(min_size=2)
def rows_that_do_not_divide(comm: Communicator) -> None:
    """Axis 0 of what is cut into blocks must be divisible by the number of ranks."""
    size = comm.size
    rows = (
        (UsageError, ("x", *words), form, comm, np.ones(shape), None)
        for form in FORMS
        if form.name in ("reduce_scatter", "all_to_all", "scatter")
        for shape, *words in (
            ((size + 1,), str((size + 1,)), str(size)),
            ((1, size), str((1, size)), str(size)),
            ((), "0-d"),
        )
    )
    each_is_refused(comm, rows)
