"""Misuse: an error that names the argument, what was given and what would fit.

A case misuses the communicator on its last rank alone. The others go straight on to a collective of
all ranks, which would fail or hang had the misuse sent anything.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import hpccomm
from hpccomm import ReduceOp
from hpccomm.errors import UnsupportedDtype, UsageError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises
from hpccomm.testing.conformance.inputs import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpccomm.communicator import Communicator

MISUSE = Behaviours("misuse")


class Attempt(Protocol):
    """Makes a call that must be refused."""

    def __call__(
        self,
        name: str,
        error: type[BaseException],
        words: tuple[str, ...],
        call: Callable[..., object],
        *arguments: Any,
    ) -> None:
        """Assert that ``call(*arguments)`` raises `error` with a message that holds `words`."""


@contextmanager
def refused(comm: Communicator) -> Iterator[Attempt]:
    """Misuse `comm` in the block, on its last rank, and prove afterwards that nothing was sent.

    Collective over `comm`.

    Yields
    ------
    Attempt
        Does nothing on the other ranks.
    """
    faults: list[str] = []

    def attempt(
        name: str,
        error: type[BaseException],
        words: tuple[str, ...],
        call: Callable[..., object],
        *arguments: Any,
    ) -> None:
        if comm.rank == comm.size - 1:
            try:
                with raises(error, *words):
                    call(*arguments)
            except Exception as fault:  # noqa: BLE001 (asserted below)
                faults.append(f"{name}: {type(fault).__name__}: {fault}")

    yield attempt
    assert not faults, "\n".join(faults)
    x = np.array([comm.rank, 1])
    comm.all_reduce(x)
    assert x.tolist() == [sum(range(comm.size)), comm.size], "all_reduce after the misuse"
    assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "objects after the misuse"


@MISUSE.behaviour()
def ranks_and_tags(comm: Communicator) -> None:
    """A partner is a rank or None; a tag an integer of at least 0."""
    x, out = np.ones(2), np.ones(2)
    last = str(comm.size - 1)
    with refused(comm) as attempt:
        for rank in (comm.size, -1, 0.5, "0"):
            calls: tuple[tuple[Any, ...], ...] = (
                ("send", "dst", comm.send, x, rank),
                ("recv", "src", comm.recv, out, rank),
                ("send_recv to", "dst", comm.send_recv, x, rank, out, 0),
                ("send_recv from", "src", comm.send_recv, x, 0, out, rank),
            )
            for name, partner, call, *arguments in calls:
                attempt(name, UsageError, (partner, repr(rank), last), call, *arguments)
        for tag in (-1, 1.5, "a", None, 1 << 40):
            words = ("tag", repr(tag))
            attempt("send", UsageError, words, comm.send, x, 0, tag)
            attempt("recv", UsageError, words, comm.recv, out, 0, tag)
            attempt("send_recv", UsageError, words, comm.send_recv, x, 0, out, 0, tag)


ROOTED: dict[str, Callable[[Any, Any], object]] = {
    "broadcast": lambda c, root: c.broadcast(np.ones(2), root),
    "reduce": lambda c, root: c.reduce(np.ones(2), root),
    "gather": lambda c, root: c.gather(np.ones(2), root),
    "scatter": lambda c, root: c.scatter(np.ones(c.size), root, out=np.ones(1)),
    "gather_v": lambda c, root: c.gather_v(np.ones(2), root),
    "scatter_v": lambda c, root: c.scatter_v(np.ones(c.size), root, out=np.ones(1)),
}


@MISUSE.behaviour()
def roots(comm: Communicator) -> None:
    """A root is an integer from 0 to size - 1."""
    with refused(comm) as attempt:
        for name, call in ROOTED.items():
            for root in (comm.size, -1, 1.0, "0", None):
                words = ("root", repr(root), str(comm.size - 1))
                attempt(name, UsageError, words, call, comm, root)


REDUCING: dict[str, Callable[[Any, Any, Any], object]] = {
    "all_reduce": lambda c, x, op: c.all_reduce(x, op),
    "reduce": lambda c, x, op: c.reduce(x, 0, op),
    "reduce_scatter": lambda c, x, op: c.reduce_scatter(x, op),
    "scan": lambda c, x, op: c.scan(x, op),
    "reduce_scatter_v": lambda c, x, op: c.reduce_scatter_v(x, [1] * c.size, op),
    "explain": lambda c, x, op: c.explain("all_reduce", x, op=op),
}

MEANINGLESS: tuple[tuple[ReduceOp, Any], ...] = (
    (ReduceOp.BAND, np.float32),
    (ReduceOp.BOR, np.complex64),
    (ReduceOp.BXOR, np.float16),
    (ReduceOp.MIN, np.complex128),
    (ReduceOp.MAX, np.complex64),
    (ReduceOp.AVG, np.bool_),
    (ReduceOp.SUM, RECORD),
    (ReduceOp.MAX, np.dtype("datetime64[ns]")),
    (ReduceOp.SUM, np.dtype("S3")),
)


@MISUSE.behaviour()
def operations(comm: Communicator) -> None:
    """An operation is one of `ReduceOp`, `premul_sum` or a function."""
    with refused(comm) as attempt:
        for name, call in REDUCING.items():
            for op in ("sum", 1, None):
                words = ("op", repr(op), "SUM", "BXOR")
                x = np.ones(comm.size)
                attempt(name, UsageError, words, call, comm, x, op)


NEAR: dict[str, Callable[[Any], object]] = {
    "all_reduce": lambda c: c.explain("all_redcue", np.ones(2)),
    "all_to_all_v": lambda c: c.explain("Alltoallv", np.ones(2)),
    "broadcast": lambda c: c.explain("Bcast", np.ones(2)),
    "ring": lambda c: c.all_reduce(np.ones(2), algorithm="rnig"),
    "SUM": lambda c: c.all_reduce(np.ones(2), "sum"),
    "bfloat16": lambda c: c.empty(2, "bfloat"),
    "off": lambda _: hpccomm.CommOptions(shared_memory="of"),  # type: ignore[arg-type]
    "send_object": lambda c: c.send("abc", 0),
}


@MISUSE.behaviour()
def near_names(comm: Communicator) -> None:
    """An unknown name leads to one that is near."""
    with refused(comm) as attempt:
        for near, call in NEAR.items():
            attempt(near, UsageError, (near,), call, comm)
    with raises(AttributeError, "did you mean new_comm?"):
        hpccomm.new_com  # type: ignore[attr-defined]  # noqa: B018


@MISUSE.behaviour(pair=MEANINGLESS)
def operations_that_mean_nothing(comm: Communicator, pair: tuple[ReduceOp, Any]) -> None:
    """A dtype for which the operation means nothing is refused by every call that reduces."""
    op, dtype = pair[0], np.dtype(pair[1])
    with refused(comm) as attempt:
        for name, call in REDUCING.items():
            x = np.zeros(comm.size, dtype)
            words = (op.value, str(dtype))
            attempt(name, UnsupportedDtype, words, call, comm, x, op)


@MISUSE.behaviour()
def premultiplied_sums(comm: Communicator) -> None:
    """A factor that the dtype cannot hold is refused."""
    x = np.ones(3, np.int8)
    with refused(comm) as attempt:
        for factor in (0.5, 300):
            words = ("factor", str(factor), "int8")
            op = hpccomm.premul_sum(factor)
            attempt("all_reduce", UsageError, words, comm.all_reduce, x, op)
        imaginary, two = hpccomm.premul_sum(1j), hpccomm.premul_sum(2)
        y, truth = np.ones(3), np.ones(3, np.bool_)
        attempt("real", UsageError, ("factor", "float64"), comm.all_reduce, y, imaginary)
        attempt("bool", UnsupportedDtype, ("premul_sum", "bool"), comm.all_reduce, truth, two)


COUNTED: dict[str, Callable[[Any, Any], object]] = {
    "all_gather_v": lambda c, counts: c.all_gather_v(np.ones((2, 3)), counts),
    "reduce_scatter_v": lambda c, counts: c.reduce_scatter_v(np.ones((2 * c.size, 3)), counts),
    "all_to_all_v": lambda c, counts: c.all_to_all_v(np.ones((2 * c.size, 3)), counts),
    "gather_v": lambda c, counts: c.gather_v(np.ones((2, 3)), 0, counts),
    "scatter_v": lambda c, counts: c.scatter_v(np.ones((2 * c.size, 3)), c.rank, counts),
}


@MISUSE.behaviour()
def counts(comm: Communicator) -> None:
    """Counts are one integer of at least 0 a rank, and fit x."""
    size = comm.size
    with refused(comm) as attempt:
        for name, call in COUNTED.items():
            for given, words in (
                ([2] * (size + 1), (str(size + 1), str(size))),
                ([2] * (size - 1), (str(size - 1), str(size))),
                ([-1] * size, ("-1",)),
                ([2.0] * size, ("2.0",)),
                (["2"] * size, ("'2'",)),
                (2, ("2",)),
                ([5] * size, ("5", "2") if "gather" in name else (str(5 * size), str(2 * size))),
            ):
                attempt(name, UsageError, ("counts", *words), call, comm, given)
        x = np.ones(size)
        for named, received in (
            (("recv_counts", str(size + 1)), [1] * (size + 1)),
            (("counts",), [1] * (size - 1) + [2]),  # the own block
        ):
            attempt("received", UsageError, named, comm.all_to_all_v, x, [1] * size, received)
        scalar = np.array(1.0)
        attempt("all_gather_v", UsageError, ("x", "0-d"), comm.all_gather_v, scalar)


@MISUSE.behaviour(min_size=2)
def nothing_says_what_arrives(comm: Communicator) -> None:
    """A rank that cannot know what arrives is told what to write."""
    counts = [2] * comm.size
    written = ("None", "root", "out=np.empty(shape, dtype)", "an x")
    with refused(comm) as attempt:
        attempt("scatter", UsageError, written, comm.scatter, None, 0)
        listed = ("None", "root", "out=np.empty((2, ...), dtype)", "an x")
        attempt("scatter_v", UsageError, listed, comm.scatter_v, None, 0, counts)
        for x in (None, np.ones(2 * comm.size)):
            unlisted = ("None", "root", "counts", "out=np.empty((rows, ...), dtype)")
            attempt("scatter_v without counts", UsageError, unlisted, comm.scatter_v, x, 0)
        taken = ("out is None", "out=np.empty(shape, dtype)")
        attempt("send_recv", UsageError, taken, comm.send_recv, np.ones(1), 0, None, 0)


@MISUSE.behaviour()
def deadlines(comm: Communicator) -> None:
    """A timeout is a number of seconds above 0."""
    x = np.ones(3)
    with refused(comm) as attempt:
        for timeout in (0, -1.0, math.nan, "1", True):
            words = ("timeout", repr(timeout), "seconds")
            for name, call in (
                ("all_reduce", lambda t: comm.all_reduce(x, timeout=t)),
                ("async", lambda t: comm.all_reduce(x, timeout=t, async_op=True)),
                ("barrier", lambda t: comm.barrier(timeout=t)),
                ("recv", lambda t: comm.recv(x, 0, timeout=t)),
                ("objects", lambda t: comm.all_gather_object(x, timeout=t)),
                ("set_timeout", comm.set_timeout),
            ):
                attempt(name, UsageError, words, call, timeout)
        attempt("set_timeout", UsageError, ("timeout", "None"), comm.set_timeout, None)


@MISUSE.behaviour()
def streams(comm: Communicator) -> None:
    """A stream orders device arrays; with a host array it is refused."""
    with refused(comm) as attempt:
        words = ("stream", "device")
        attempt("all_reduce", UsageError, words, lambda: comm.all_reduce(np.ones(2), stream=1))


@MISUSE.behaviour()
def explanations(comm: Communicator) -> None:
    """Only collectives can be explained."""
    x = np.ones(comm.size)
    with refused(comm) as attempt:
        for name in ("no_such", "finalize", 3):
            words = (repr(name), "all_reduce", "all_to_all")
            attempt("explain", UsageError, words, comm.explain, name, x)


@MISUSE.behaviour()
def hooks(comm: Communicator) -> None:
    """A hook is a function."""
    with refused(comm) as attempt:
        for register in (
            comm.register_pre_hook,
            comm.register_post_hook,
            comm.register_abort_hook,
        ):
            attempt("hook", UsageError, ("hook", "3"), register, 3)


@MISUSE.behaviour()
def batches(comm: Communicator) -> None:
    """What cannot wait for the end of a batch is refused within one, and the batch is dropped."""
    x = np.ones(comm.size)
    inside: tuple[tuple[str, tuple[str, ...], Callable[[], object]], ...] = (
        ("a batch", ("batch",), lambda: comm.batch().__enter__()),
        ("async_op", ("async_op", "batch"), lambda: comm.all_reduce(x, async_op=True)),
        ("async_op of a send", ("async_op", "batch"), lambda: comm.send(x, 0, async_op=True)),
        ("objects", ("batch",), lambda: comm.all_gather_object(1)),
        ("a message of an object", ("batch",), lambda: comm.send_object(1, 0)),
        ("counts to exchange", ("counts", "batch"), lambda: comm.all_gather_v(x)),
    )

    def batched(call: Callable[[], object]) -> None:
        with comm.batch():
            comm.all_reduce(x)
            call()

    with refused(comm) as attempt:
        for name, words, call in inside:
            attempt(name, UsageError, words, batched, call)
        assert (x == 1).all(), "nothing of a batch that was dropped is issued"
