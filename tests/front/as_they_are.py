"""Arrays as they are: strided in messages, and with blocks along any axis; in host and in device memory."""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from front.device_inputs import stream_of
from front.forms import ALL_FORMS, made
from hpccomm import Communicator
from hpccomm.errors import BufferMismatch, RankMismatch, UsageError
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours, equal, raises

AS_THEY_ARE = Behaviours("as_they_are")
ON_DEVICE = Behaviours("devices.as_they_are")

LAYOUTS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x,
    lambda x: x.transpose(2, 1, 0).copy().transpose(2, 1, 0),
    lambda x: x[:, ::-1].copy()[:, ::-1],
)
"""How an array may lie in memory: as C's, as Fortran's, and backwards."""


def host(x: Any) -> Any:
    """Return the contents of an array after the current stream's work."""
    return x if isinstance(x, np.ndarray) else x.get()


def of_rank(rank: int, size: int) -> Any:
    """Return what a rank has; a step of a program counts as ranks do."""
    shape = (2 * size, 3 * size, 4 * size)
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1000 * rank


def exchanged(comm: Communicator, xp: Any) -> None:
    """Send faces of a block, and receive them in place."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    u = xp.asarray(of_rank(rank, size))

    def check(what: str, step: int = 0) -> None:
        expected = of_rank(rank + step, size)
        expected[:, 0] = of_rank(left + step, size)[:, -2]
        expected[..., -1] = of_rank(right + step, size)[..., 1]
        equal(host(u)[1:, 1:, :-1], expected[1:, 1:, :-1], f"{what}: the rest is as it was")
        equal(host(u)[:, 0, :-1], expected[:, 0, :-1], f"{what}: from the left")
        equal(host(u)[:, 1:, -1], expected[:, 1:, -1], f"{what}: from the right")

    def refill(step: int = 0) -> None:
        u[...] = xp.asarray(of_rank(rank + step, size))

    comm.recv(u[:, 2], None)
    comm.plan("recv", u[:, 2], None)()
    comm.send_recv(u[:, -2], right, u[:, 0], left)
    comm.send_recv(u[..., 1], left, u[..., -1], right)
    check("send_recv")
    refill()
    with comm.batch():
        comm.send(u[:, -2], right)
        comm.recv(u[:, 0], left)
    work = comm.send_recv(u[..., 1], left, u[..., -1], right, async_op=True)
    assert work.wait() is not None, "out"
    check("batch, and asynchronous")
    row = comm.plan("send_recv", u[..., 1], left, u[..., -1], right)
    column = comm.plan("send_recv", u[:, -2], right, u[:, 0], left)
    for step in (1, 2):
        refill(step)
        row()
        assert column() is not None, "out"
        check("plan", step)
    y = xp.zeros((5, 4), np.float32)
    comm.send_recv(u[0, :2, :2], rank, y.reshape(-1)[4:8], rank)
    equal(host(y).reshape(-1)[4:8], host(u)[0, :2, :2].reshape(-1), "a contiguous out")


def along_axes(comm: Communicator, xp: Any) -> None:
    """Beside numpy.split, numpy.concatenate and numpy.stack; jax.lax.all_to_all (tiled) means the same."""
    rank, size, last = comm.rank, comm.size, comm.size - 1
    each = [of_rank(other, size) for other in range(size)]
    for layout in LAYOUTS:
        x = layout(xp.asarray(each[rank]))
        for split in (0, 1, 2, -1):
            blocks = [np.split(one, size, axis=split) for one in each]
            total = sum(one[rank] for one in blocks)
            equal(host(comm.reduce_scatter(x, axis=split)), total, "reduce_scatter")
            mine = xp.zeros(total.shape[::-1], np.float32).transpose()
            comm.scatter(x if rank == last else None, last, out=mine, axis=split)
            equal(host(mine), blocks[last][rank], "scatter")
            for joined in (0, 1, -1):
                expected = np.concatenate([one[rank] for one in blocks], axis=joined)
                found = comm.all_to_all(x, axis=(split, joined))
                equal(host(found), expected, f"all_to_all {split} {joined}")
        for axis in (0, 1, 3, -1):
            stack = np.stack(each, axis=axis)
            equal(host(comm.all_gather(x, axis=axis)), stack, "all_gather")
            found = comm.gather(x, last, axis=axis)
            assert (found is None) == (rank != last), "gather"
            for form in ALL_FORMS:
                out = xp.zeros((*stack.shape, 2), np.float32)[..., 1]
                assert made(comm, form, "all_gather", x, out=out, axis=axis) is out, "out"
                equal(host(out), stack, f"a strided out, {form}")
            equal(host(made(comm, "batch", "all_gather", x, axis=axis)), stack, "batch")
    square = xp.asarray(each[rank][:size, :, :size].copy())
    comm.all_to_all(square, out=square, axis=2)
    expected = np.concatenate([np.split(one[:size, :, :size], size, 2)[rank] for one in each], 2)
    equal(host(square), expected, "x is out")
    uneven(comm, xp)


def uneven(comm: Communicator, xp: Any) -> None:
    """Lengths that do not divide, or divide along one axis: beside numpy.array_split of the whole array."""
    rank, size = comm.rank, comm.size
    for shape in ((2 * size + 1, size + 2, 3), (2 * size, size + 1, 1), (1, 3 * size, 2 * size)):
        whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for split, joined in permutations(range(3), 2):
            expected = np.array_split(whole, size, split)[rank]
            for layout in LAYOUTS:
                x = layout(xp.asarray(np.array_split(whole, size, joined)[rank].copy()))
                found = comm.all_to_all(x, axis=(split, joined))
                equal(host(found), expected, f"{shape} {split} {joined}")
                for form in ALL_FORMS:
                    out = xp.zeros((*expected.shape, 2), np.float32)[..., 1]
                    axis = (split - 3, joined)
                    assert made(comm, form, "all_to_all", x, out=out, axis=axis) is out, "out"
                    equal(host(out), expected, f"a strided out, {form}")
                turned = xp.zeros(expected.shape[::-1], np.float32).T
                comm.all_to_all(x, out=turned, axis=(split, joined))
                equal(host(turned), expected, "an out that lies as communication takes it")
        # Other parts than array_split's along the joined axis: the last rank has all.
        mine = whole[:, (0 if rank == size - 1 else shape[1]) :]
        found = comm.all_to_all(xp.asarray(mine), axis=(0, 1))
        equal(host(found), np.array_split(whole, size)[rank], "all on one rank")
        found = comm.all_to_all(xp.asarray(whole), axis=0)
        equal(host(found), np.concatenate([np.array_split(whole, size)[rank]] * size), "one axis")


CALLS = (exchanged, along_axes)


@AS_THEY_ARE.behaviour(calls=CALLS)
def on_the_host(comm: Communicator, calls: Callable[[Any, Any], None]) -> None:
    """Arrays of NumPy's: alone, in a batch, asynchronously and by plans."""
    calls(comm, np)


@ON_DEVICE.behaviour(calls=CALLS)
def on_a_device(comm: Communicator, calls: Callable[[Any, Any], None]) -> None:
    """Arrays of CuPy's: packed on the call's stream."""
    with stream_of(comm):
        calls(comm, cupy())


@AS_THEY_ARE.behaviour(min_size=2)
def misuse(comm: Communicator) -> None:
    """What does not fit is refused, before anything is sent; ranks that differ are told apart."""
    x = np.zeros((2 * comm.size, 3))
    frozen = x[:, 1]
    frozen.flags.writeable = False
    for axis, *words in ((2, "-2 to 1"), (1.5, "integer"), ("1", "axis"), ((0, 1, 1), "axis")):
        with raises(UsageError, "axis", *words):
            comm.all_to_all(x, axis=axis)
    odd, gather, exchange = np.zeros((4, comm.size + 1)), comm.all_gather, comm.all_to_all
    short = f"give shape (1, {4 * comm.size})"
    differing = np.zeros((*odd.shape, 1 + (comm.rank > 0)))
    strided = np.zeros((3, comm.size, 4 * comm.size))[..., ::2]
    narrow = np.zeros((*x.shape, comm.size), np.float32)
    rows: tuple[tuple[type[BaseException], tuple[str, ...], Callable[[], object]], ...] = (
        (UsageError, ("axis 1", f"{comm.size} ranks"), partial(comm.reduce_scatter, odd, axis=1)),
        (
            UsageError,
            ("out None", "numpy.array_split"),
            partial(comm.plan, "all_to_all", odd, axis=(1, 0)),
        ),
        (RankMismatch, ("shape", "Ellipsis"), partial(exchange, differing, axis=(1, 0))),
        (
            BufferMismatch,
            ("out has shape", short),
            partial(exchange, odd.T[1:].copy(), out=np.zeros((2, 7)), axis=(0, 1)),
        ),
        (BufferMismatch, ("shape",), partial(gather, x, out=strided, axis=1)),
        (BufferMismatch, ("out has shape (7,)",), partial(gather, x, out=np.zeros(7), axis=1)),
        (BufferMismatch, ("float32",), partial(gather, x, out=narrow, axis=2)),
        (UsageError, ("x is None",), partial(gather, None, axis=1)),
        (UsageError, ("read-only",), partial(comm.recv, frozen, comm.rank)),
    )
    for error, told, call in rows:
        with raises(error, *told):
            call()
    group = comm.dup()
    with raises(RankMismatch, "axis"):
        group.all_gather(x, axis=1 + (comm.rank > 0))
