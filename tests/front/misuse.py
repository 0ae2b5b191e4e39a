"""Misuse: an error that names the argument, what was given and what would fit.

Calls are misused on the last rank alone. The others go straight on to a collective of all ranks, which would
fail or hang had the misuse sent anything.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import hpccomm
from hpccomm import ANY, CommOptions, Communicator, ReduceOp, loc_dtype
from hpccomm.errors import BackendUnavailable, BufferMismatch, UnsupportedDtype, UsageError
from hpccomm.testing.conformance.case import Behaviours, equal, raises
from hpccomm.testing.conformance.collectives import another
from hpccomm.testing.conformance.oracle import RECORD

MISUSE = Behaviours("misuse")


def each_is_refused(comm: Communicator, rows: Iterable[tuple[Any, ...]]) -> None:
    """Assert of each row that its call raises its error on the last rank, and that none sent anything.

    Collective over `comm`.

    Parameters
    ----------
    rows : iterable of tuple
        The error, words of its message in a tuple, the call, and its arguments.
    """
    faults: list[str] = []
    for error, words, call, *arguments in rows if comm.rank == comm.size - 1 else ():
        try:
            with raises(error, *words):
                call(*arguments)
        except Exception as fault:  # noqa: BLE001 (asserted below)
            faults.append(f"{words}, {call} of {arguments}: {type(fault).__name__}: {fault}")
    x = np.array([comm.rank, 1])
    comm.all_reduce(x)
    assert x.tolist() == [sum(range(comm.size)), comm.size], "all_reduce after the misuse"
    assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "objects after the misuse"
    assert not faults, "\n".join(faults)


AGREED = ("counter", "mutex", "mesh", "in_turn", "batch")
"""Calls whose arguments all ranks check together, or when their block begins."""

CALLS = {
    name: inspect.signature(method).parameters
    for name, method in inspect.getmembers(hpccomm.Communicator, inspect.isfunction)
    if not name.startswith("_") and name not in AGREED
}
"""The parameters of each other call."""


def calls_with(comm: Communicator, argument: str) -> Iterator[Callable[..., object]]:
    """Give each of the communicator's calls that take an argument, with all others that it needs."""
    ones = [1] * comm.size
    fits: dict[str, Any] = {"x": np.ones(comm.size), "out": np.ones(2), "value": 1, "values": ones}
    fits |= {"src": 0, "dst": 0, "root": comm.rank, "shape": 3, "dtype": "f4", "counts": ones}
    fits |= {"peers": [comm.rank], "send_counts": ones}
    explain = partial(comm.explain, "all_reduce", x=fits["x"])
    of_any = partial(comm.recv, fits["out"], ANY)
    more: dict[str, tuple[Callable[..., object], ...]] = {
        "op": (explain,),
        "algorithm": (explain,),
        "tag": (of_any,),
        "async_op": (of_any,),
        "timeout": (partial(another, comm), partial(comm.all_reduce, fits["x"], async_op=True)),
    }
    yield from more.get(argument, ())
    for name, takes in CALLS.items():
        if argument in takes:
            needed = {
                each: fits[each]
                for each in fits.keys() & takes.keys() - {argument}
                if each == "root" or takes[each].default is inspect.Parameter.empty
            }
            yield partial(getattr(comm, name), **needed)


RANKS = (-1, 0.5, "0")

ARGUMENTS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "dst": ((*RANKS, ANY), ("from 0 to",)),
    "src": (RANKS, ("from 0 to",)),
    "root": ((*RANKS, 1.0, None), ("from 0 to",)),
    "tag": ((-1, 1.5, "a", None, 1 << 40), ()),
    "op": (("sum", 1, None), ("SUM", "BXOR")),
    "algorithm": (("no_such", "", 3), ("auto",)),
    "timeout": ((0, -1.0, math.nan, "1", True), ("seconds",)),
    "async_op": ((1, 2, None), ("True",)),
    "block": ((1, None), ("True",)),
    "return_counts": ((1, None), ("True",)),
    "hook": ((3,), ()),
    "shape": ((-1, (2, -1), 1.5, "3", None), ()),
    "dtype": (("no_such", None), ()),
}
"""Arguments of calls, what fits none of them, and words of the error besides the argument and the value."""

OPTIONS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "slow_call": ((-1.0,), ()),
    "segment": ((0, -8, 1.5, "1K"), ()),
    "shared_memory": (("mapped", "", 1), ("staging",)),
    "shared_memory_room": ((0, 1.5, "1M"), ()),
}
"""The same of settings of `CommOptions`."""


@MISUSE.behaviour()
def arguments(comm: Communicator) -> None:
    """A value that does not fit is refused by each call that takes the argument; the error has both."""
    rows: list[tuple[Any, ...]] = [
        (UsageError, (name, repr(value), *says), partial(call, **{name: value}))
        for name, (values, says) in (ARGUMENTS | OPTIONS).items()
        for call in ([CommOptions] if name in OPTIONS else calls_with(comm, name))
        for value in values
    ]
    last = (str(comm.size), str(comm.size - 1))
    rows += [
        (UsageError, (name, *last), partial(call, **{name: comm.size}))
        for name in ("src", "dst", "root")
        for call in calls_with(comm, name)
    ]
    rows += [
        (UsageError, ("timeout", repr(value)), wait, [], value)
        for wait in (hpccomm.wait_any, hpccomm.wait_some, hpccomm.wait_all)
        for value in (math.nan, -1, -0.5, True, "1")
    ]
    x, new_comm = np.ones(comm.size), hpccomm.new_comm
    rows += [
        (UsageError, (repr(name), "all_reduce", "all_to_all"), comm.explain, name, x)
        for name in ("no_such", "finalize", 3)
    ]
    rows += [
        (UsageError, ("src", "ANY"), comm.send_recv, x, 0, np.ones(2), ANY),
        (UsageError, ("src",), comm.probe, None),
        (UsageError, ("timeout", "None"), comm.set_timeout, None),
        (UsageError, ("hints", "'key': 1"), partial(CommOptions, hints={"key": 1})),
        (UsageError, ("options",), partial(another, comm, options={"self_check": False})),
        (UsageError, ("name", "3"), partial(another, comm, name=3)),
        (UsageError, ("backend", "no_such", "auto", "mpi", "loopback"), new_comm, "no_such"),
        (UsageError, ("backend", "3"), new_comm, 3),
    ]
    each_is_refused(comm, rows)


@MISUSE.behaviour()
def near_names(comm: Communicator) -> None:
    """An unknown name leads to one that is near."""
    x = np.ones(2)
    near: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.explain("all_redcue", x),
        "all_to_all_v": lambda: comm.explain("Alltoallv", x),
        "broadcast": lambda: comm.explain("Bcast", x),
        "ring": lambda: comm.all_reduce(x, algorithm="rnig"),
        "SUM": lambda: comm.all_reduce(x, "sum"),
        "bfloat16": lambda: comm.empty(2, "bfloat"),
        "off": lambda: CommOptions(shared_memory="of"),  # type: ignore[arg-type]
        "send_object": lambda: comm.send("abc", 0),
    }
    each_is_refused(comm, ((UsageError, (name,), call) for name, call in near.items()))
    with raises(AttributeError, "did you mean new_comm?"):
        hpccomm.new_com  # type: ignore[attr-defined]  # noqa: B018


MEANINGLESS: tuple[tuple[ReduceOp, Any], ...] = (
    (ReduceOp.BAND, np.float32),
    (ReduceOp.BOR, np.complex64),
    (ReduceOp.BXOR, np.float16),
    (ReduceOp.MIN, np.complex128),
    (ReduceOp.MAX, np.complex64),
    (ReduceOp.AVG, np.bool_),
    (ReduceOp.SUM, RECORD),
    (ReduceOp.SUM, loc_dtype(np.float64)),
    (ReduceOp.MIN, loc_dtype(np.float64)),
    (ReduceOp.MAX, np.dtype("datetime64[ns]")),
    (ReduceOp.SUM, np.dtype("S3")),
)


FACTORS = (
    (0.5, np.int8, UsageError, "factor", "0.5", "int8"),
    (300, np.int8, UsageError, "factor", "300", "int8"),
    (1j, np.float64, UsageError, "factor", "float64"),
    (2, np.bool_, UnsupportedDtype, "premul_sum", "bool"),
)

NO_PAIRS: tuple[Any, ...] = (
    np.float64,
    [("value", np.float64), ("where", np.int64)],
    [("value", np.complex128), ("index", np.int64)],
    [("value", np.float64), ("index", np.float32)],
    [("value", np.float64, (2,)), ("index", np.int64)],
    [("value", np.float64), ("index", np.int64), ("more", np.int8)],
)


@MISUSE.behaviour()
def reductions(comm: Communicator) -> None:
    """A dtype for which the operation means nothing is refused by every call that reduces.

    So is a factor that the dtype cannot hold. MINLOC takes pairs of a value and its index, which others do not take.
    """
    rows: list[tuple[Any, ...]] = [
        (UnsupportedDtype, (op.value, str(np.dtype(dtype))), partial(call, x=x, op=op))
        for op, dtype in MEANINGLESS
        for x in [np.zeros(comm.size, dtype)]
        for call in calls_with(comm, "op")
    ]
    rows += [
        (error, words, comm.all_reduce, np.ones(3, dtype), hpccomm.premul_sum(factor))
        for factor, dtype, error, *words in FACTORS
    ]
    words = ("minloc", "value", "index", "with_index")
    rows += [
        (UnsupportedDtype, words, comm.all_reduce, np.zeros(3, each), ReduceOp.MINLOC)
        for each in NO_PAIRS
    ]
    pair = hpccomm.with_index(np.ones(3), comm.rank)
    native = partial(comm.all_reduce, pair, ReduceOp.MAXLOC, algorithm="native")
    rows += [
        (UsageError, ("op fmax fails",), comm.all_reduce, pair, np.fmax),
        (UsageError, ("native",), native),
        (UnsupportedDtype, ("complex128",), hpccomm.with_index, 1j, 0),
        (UsageError, ("index", "float64"), hpccomm.with_index, 1.0, 0.5),
        (UsageError, ("index", "(2,)", "(3,)"), hpccomm.with_index, np.ones(3), [1, 2]),
    ]
    each_is_refused(comm, rows)


@MISUSE.behaviour()
def counts(comm: Communicator) -> None:
    """Counts are one integer of at least 0 a rank, and fit x."""
    size, x = comm.size, np.ones(comm.size)
    own, all_blocks = np.ones((2, 3)), np.ones((2 * size, 3))
    few, many = (str(2), str(5)), (str(2 * size), str(5 * size))
    rows: list[tuple[Any, ...]] = [
        (UsageError, ("counts", *words), call, given)
        for call, too_many in (
            (lambda counts: comm.all_gather_v(own, counts), few),
            (lambda counts: comm.gather_v(own, 0, counts), few),
            (lambda counts: comm.reduce_scatter_v(all_blocks, counts), many),
            (lambda counts: comm.all_to_all_v(all_blocks, counts), many),
            (lambda counts: comm.scatter_v(all_blocks, comm.rank, counts), many),
        )
        for given, words in (
            ([2] * (size + 1), (str(size + 1), str(size))),
            ([2] * (size - 1), (str(size - 1), str(size))),
            ([-1] * size, ("-1",)),
            ([2.0] * size, ("2.0", "integers, such as n // m")),
            (["2"] * size, ("'2'",)),
            (2, ("2",)),
            ([5] * size, too_many),
        )
    ]
    ones, others = [1] * size, [1] * (size - 1) + [2]  # another number of rows for the own block
    rows += [
        (UsageError, ("recv_counts", str(size + 1)), comm.all_to_all_v, x, ones, [*ones, 1]),
        (UsageError, ("counts",), comm.all_to_all_v, x, ones, others),
        (UsageError, ("x", "0-d"), comm.all_gather_v, np.array(1.0)),
    ]
    each_is_refused(comm, rows)


@MISUSE.behaviour(min_size=2)
def nothing_says_what_arrives(comm: Communicator) -> None:
    """A rank that cannot know what arrives is told what to write."""
    x = np.ones(2 * comm.size)
    written = ("None", "root", "out=np.empty(shape, dtype)", "an x")
    listed = ("None", "root", "out=np.empty((2, ...), dtype)", "an x")
    unlisted = ("None", "root", "counts", "out=np.empty((rows, ...), dtype)")
    taken = ("out is None", "out=np.empty(shape, dtype)")
    rows = (
        (UsageError, written, comm.scatter, None, 0),
        (UsageError, listed, comm.scatter_v, None, 0, [2] * comm.size),
        (UsageError, unlisted, comm.scatter_v, None, 0),
        (UsageError, unlisted, comm.scatter_v, x, 0),
        (UsageError, taken, comm.send_recv, np.ones(1), 0, None, 0),
    )
    each_is_refused(comm, rows)


@MISUSE.behaviour()
def what_calls_lack(comm: Communicator) -> None:
    """A combination of arguments, or memory, that a call does not take."""
    x, square = np.arange(4.0), np.empty((2, 2))
    hypot = partial(comm.all_reduce, x, np.hypot, algorithm="native")  # elementwise, in Python
    rows: list[tuple[Any, ...]] = [
        (UsageError, ("stream", "device"), partial(comm.all_reduce, x, stream=1)),
        (UsageError, ("dst is an array", "comes before"), comm.send, comm.rank, x),
        (UsageError, ("root is", "op="), comm.reduce, x, ReduceOp.MAX),
        (UsageError, ("stream", "give out, src and tag"), partial(comm.recv, x, ANY, stream=1)),
        (UsageError, ("algorithm", "native"), hypot),
        (UsageError, ("hypot", "identity"), partial(comm.scan, x, np.hypot, exclusive=True)),
        (UsageError, ("neu",), partial(comm.all_reduce, x, out="neu")),
        (UsageError, ("contiguous",), comm.recv, square[:, 0], ANY),
        (UsageError, ("native byte order",), comm.empty, 3, np.dtype("f4").newbyteorder()),
        (UsageError, ("dtype",), comm.empty, 3, object),
        (UsageError, ("dtype",), comm.empty, 3, np.dtype([("a", object)])),
    ]
    if comm.backends["cuda"] is None:
        rows.append((BackendUnavailable, ("device",), partial(comm.empty, 3, "f4", device=0)))
    mine = partial(comm.broadcast, x, comm.rank)
    rows += [
        (BufferMismatch, ("give shape (4,)",), partial(mine, out=np.zeros(3))),
        (BufferMismatch, ("give dtype float64",), partial(mine, out=np.zeros(4, int))),
        (UsageError, ("out",), partial(mine, out="old")),
        (UsageError, ("out (", "contiguous"), partial(mine, out=np.zeros(8)[::2])),
        (UsageError, ("out is read-only",), partial(mine, out=np.broadcast_to(1.0, 4))),
        (UsageError, ("x is None",), partial(comm.broadcast, None, comm.rank, out=x)),
    ]
    overlapping = partial(comm.broadcast, x[:3], comm.rank, out=x[1:])
    rows.append((UsageError, ("overlap", "give out=x"), overlapping))
    each_is_refused(comm, rows)
    equal(x, np.arange(4.0), "x")


@MISUSE.behaviour()
def neighbors(comm: Communicator) -> None:
    """Peers are ranks, counts fit them, and `out` fits what they send."""
    x, rank, size = np.zeros(4), comm.rank, comm.size
    call = comm.neighbor_all_to_all
    rows = (
        (UsageError, ("peers", "sequence"), call, x, 3),
        (UsageError, ("peers[1]", str(size)), call, x, [rank, size]),
        (UsageError, ("peers[0]",), call, x, [0.5]),
        (UsageError, ("divisible", "3 peers"), call, x, [rank] * 3),
        (UsageError, ("0-d",), call, np.zeros(()), [rank]),
        (UsageError, ("x", "peers"), call, x, []),
        (UsageError, ("send_counts", "2"), call, x, [rank] * 2, [1]),
        (UsageError, ("recv_counts", "send_counts"), call, x, [rank], None, [1]),
        (BufferMismatch, ("send_counts", "5"), call, x, [rank], [5], [5]),
        (UsageError, ("send_counts[0]", "itself"), call, x, [rank], [4], [2]),
        (BufferMismatch, ("out",), partial(call, x, [rank], out=np.zeros(3))),
        (UsageError, ("overlap",), partial(call, x[:2], [rank], out=x[1:3])),
    )
    each_is_refused(comm, rows)
    equal(call(x, [rank]), x)


@MISUSE.behaviour()
def batches(comm: Communicator) -> None:
    """What cannot wait for the end of a batch is refused within one, and the batch is dropped."""
    x = np.ones(comm.size)

    def batched(call: Callable[[], object]) -> None:
        with comm.batch():
            comm.all_reduce(x)
            call()

    inside: tuple[tuple[str, Callable[[], object]], ...] = (
        ("batch", lambda: comm.batch().__enter__()),
        ("async_op", lambda: comm.all_reduce(x, async_op=True)),
        ("async_op", lambda: comm.send(x, 0, async_op=True)),
        ("batch", lambda: comm.all_gather_object(1)),
        ("batch", lambda: comm.send_object(1, 0)),
        ("batch", lambda: comm.recv(x, ANY)),
        ("batch", comm.probe),
        ("counts", lambda: comm.all_gather_v(x)),  # which would be exchanged
    )
    rows = ((UsageError, ("batch", word), batched, call) for word, call in inside)
    each_is_refused(comm, rows)
    assert (x == 1).all(), "nothing of a batch that was dropped is issued"
