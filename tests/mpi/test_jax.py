"""Collectives on JAX arrays: NumPy's values and gradients, in every transformation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from run_blocks import run_blocks

import hpccomm
from hpccomm import Communicator, errors
from hpccomm.reductions import ReduceOp

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
ours = pytest.importorskip("hpccomm.jax")

Arrays = list[np.ndarray]


def ring(x: Any, comm: Communicator) -> Any:
    return ours.send_recv(x, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, comm=comm)


def line(x: Any, comm: Communicator) -> Any:
    """The first rank receives nothing, and the last one sends to nobody."""
    dst = comm.rank + 1 if comm.rank + 1 < comm.size else None
    return ours.send_recv(x, dst, comm.rank - 1 if comm.rank else None, out=2 * x, comm=comm)


def from_last(x: Any, comm: Communicator) -> Any:
    return ours.broadcast(x, comm.size - 1, comm=comm)


def exchanged(xs: Arrays, r: int, n: int) -> np.ndarray:
    return np.concatenate([np.split(x, n)[r] for x in xs])


HALF, AVG = hpccomm.premul_sum(0.5), ReduceOp.AVG
# What a call is, and what it gives to rank r of n, from the arrays of all.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Arrays, int, int], Any]]] = {
    "all_reduce": (ours.all_reduce, lambda xs, r, n: sum(xs)),
    "average": (partial(ours.all_reduce, op=AVG), lambda xs, r, n: sum(xs) / n),
    "scaled": (partial(ours.all_reduce, op=HALF), lambda xs, r, n: sum(xs) / 2),
    "all_gather": (ours.all_gather, lambda xs, r, n: np.stack(xs)),
    "reduce_scatter": (ours.reduce_scatter, lambda xs, r, n: np.split(sum(xs), n)[r]),
    "average_scatter": (
        partial(ours.reduce_scatter, op=AVG),
        lambda xs, r, n: np.split(sum(xs) / n, n)[r],
    ),
    "all_to_all": (ours.all_to_all, exchanged),
    "broadcast": (from_last, lambda xs, r, n: xs[-1]),
    "send_recv": (ring, lambda xs, r, n: xs[r - 1]),
    "line": (line, lambda xs, r, n: xs[r - 1] if r else 2 * xs[0]),
}
EXACT = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


def of_all(comm: Communicator, *shape: int, dtype: Any = np.float32) -> Arrays:
    """The arrays of all ranks: small integers, whose sums are exact."""
    ranks = range(comm.size)
    return [np.random.default_rng(rank).integers(0, 5, shape).astype(dtype) for rank in ranks]


@contextmanager
def calls_of(comm: Communicator) -> Iterator[list[str]]:
    made: list[str] = []
    hook = comm.register_post_hook(lambda info: made.append(info.operation))
    yield made
    hook.close()


FLOW: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "cond": lambda f, x: lax.cond(x.sum() >= 0, f, lambda x: 0 * f(x), x),
    "fori": lambda f, x: lax.fori_loop(0, 2, lambda _, into: f(x), f(x)),
    "scan": lambda f, x: lax.scan(lambda _, each: (f(each), None), f(x), jnp.stack([x, x]))[0],
}


@pytest.mark.parametrize("flow", FLOW)
def test_control_flow(comm: Communicator, flow: str) -> None:
    for name in ("all_reduce", "all_gather"):
        call, truth = CALLS[name]
        xs = of_all(comm, 3)
        for wrap in (lambda f: f, jax.jit):
            run = wrap(lambda x, call=call: FLOW[flow](lambda x: call(x, comm=comm), x))
            found = run(jnp.asarray(xs[comm.rank]))
            np.testing.assert_array_equal(found, truth(xs, comm.rank, comm.size))


@pytest.mark.parametrize("name", CALLS)
def test_a_batch_is_one_call(comm: Communicator, name: str) -> None:
    call, truth = CALLS[name]
    xs = of_all(comm, 2 * comm.size, 3, 4, 2)
    x = jnp.asarray(xs[comm.rank])
    # One axis of a batch, and one within another.
    one = [truth([x[..., i] for x in xs], comm.rank, comm.size) for i in range(2)]
    two = [
        np.stack([truth([x[:, :, j, i] for x in xs], comm.rank, comm.size) for j in range(4)], -1)
        for i in range(2)
    ]
    single = jax.vmap(lambda x: call(x, comm=comm), in_axes=-1)
    double = jax.jit(jax.vmap(jax.vmap(lambda x: call(x, comm=comm), -1, -1), in_axes=-1))
    with calls_of(comm) as made:
        np.testing.assert_array_equal(single(x), np.stack(one))
        np.testing.assert_array_equal(double(x), np.stack(two))
    assert len(made) == 2


DTYPES = [np.float32, np.bool_, np.int8, np.uint32, np.float16, np.complex64]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("name", CALLS)
def test_dtypes_and_sizes(comm: Communicator, name: str) -> None:
    call, truth = CALLS[name]
    shapes = [(comm.size,), (2 * comm.size, 3, 2), (comm.size, 0)]
    dtypes = DTYPES if name in EXACT else DTYPES[:1]
    cases = [of_all(comm, *shape, dtype=dtype) for dtype in dtypes for shape in shapes]
    mine = [jnp.asarray(xs[comm.rank]) for xs in cases]
    for wrap in (lambda f: f, jax.jit):
        every = wrap(lambda xs: [call(x, comm=comm) for x in xs])(mine)
        for xs, found in zip(cases, every, strict=True):
            wanted = np.asarray(truth(xs, comm.rank, comm.size)).astype(xs[0].dtype)
            assert isinstance(found, jax.Array)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_finite_differences_of_the_loss_of_all_ranks(comm, name: str) -> None:
    call, truth = CALLS[name]
    random = np.random.default_rng(1)
    xs = list(random.normal(size=(comm.size, comm.size, 2)))
    weights = [random.normal(size=np.shape(truth(xs, r, comm.size))) for r in range(comm.size)]
    if name in SHARED:
        weights = [weights[0]] * comm.size

    def total(xs: Arrays) -> float:
        parts = [
            (weights[rank] * np.sin(truth([np.sin(x) for x in xs], rank, comm.size))).sum()
            for rank in range(comm.size)
        ]
        return parts[0] if weights[0] is weights[-1] else sum(parts)

    step = 1e-6
    wanted = np.empty_like(xs[comm.rank])
    for place in np.ndindex(wanted.shape):
        values = []
        for change in (step, -step):
            moved = [x.copy() for x in xs]
            moved[comm.rank][place] += change
            values.append(total(moved))
        wanted[place] = (values[0] - values[1]) / (2 * step)

    def loss(x: Any) -> Any:
        part = (weights[comm.rank] * jnp.sin(call(jnp.sin(x), comm=comm))).sum()
        return part if weights[0] is weights[-1] else ours.all_reduce(part, comm=comm)

    with jax.enable_x64(True):
        x = jnp.asarray(xs[comm.rank])
        batch = jnp.stack([x, x])
        gradient = jax.grad(loss)(x)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-8)

        @jax.jit
        def compiled(x: Any, batch: Any) -> Any:
            in_batch = jax.grad(lambda batch: jax.vmap(loss)(batch).sum())(batch)
            return jax.grad(loss)(x), jax.vmap(jax.grad(loss))(batch), in_batch

        alone, of_batch, in_batch = compiled(x, batch)
        np.testing.assert_allclose(alone, gradient, rtol=1e-12)
        np.testing.assert_allclose(of_batch, jnp.stack([gradient] * 2), rtol=1e-12)
        np.testing.assert_allclose(in_batch, of_batch, rtol=1e-12)


SHARED = ("all_reduce", "average", "scaled")
"""Calls whose result all ranks share: what follows is done alike by all, and counts once."""


@pytest.mark.parametrize(
    "solver", ["bicgstab", pytest.param("gmres", marks=pytest.mark.slow("JAX compiles it"))]
)
def test_solvers_of_jax(comm: Communicator, solver: str) -> None:
    """NumPy solves with the whole matrix, of which each rank has a term, as in jax-ml/jax#16303 and mpi4jax#34."""
    random = np.random.default_rng(1)
    parts = random.standard_normal((comm.size, 8, 8))
    whole = parts.sum(0) + 20 * np.eye(8)
    b = random.standard_normal(8)

    def product(v: Any) -> Any:
        part = jnp.asarray(parts[comm.rank]) @ ours.replicated(v, comm=comm)
        return ours.all_reduce(part, comm=comm) + 20 * v

    def loss(b: Any) -> Any:
        x = getattr(jax.scipy.sparse.linalg, solver)(product, b, tol=1e-12)[0]
        return (x**2).sum(), x

    wrap = jax.jit if solver == "gmres" else lambda f: f
    with jax.enable_x64(True):
        slope, found = wrap(jax.grad(loss, has_aux=True))(jnp.asarray(b))
    np.testing.assert_allclose(found, np.linalg.solve(whole, b), atol=1e-9)
    np.testing.assert_allclose(slope, 2 * np.linalg.solve(whole.T, found), atol=1e-9)


def test_the_gradient_of_what_all_have_alike_is_that_of_the_whole(comm: Communicator) -> None:
    def loss(weight: Any) -> Any:
        part = (ours.replicated(weight, comm=comm) * (comm.rank + 1)).sum()
        return ours.all_reduce(part, comm=comm)

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        total = comm.size * (comm.size + 1) / 2
        np.testing.assert_array_equal(gradient(jnp.ones(3)), np.full(3, total))
    with pytest.raises(errors.UsageError, match="int32"):
        ours.replicated(jnp.arange(3), comm=comm)


def test_what_has_no_gradient(comm: Communicator) -> None:
    x = jnp.ones(comm.size)
    for call in (ours.all_reduce, ours.reduce_scatter):
        with pytest.raises(errors.UsageError, match="has no gradient"):
            jax.grad(lambda x, call=call: call(x, ReduceOp.MAX, comm=comm).sum())(x)
    # As in a softmax over ranks: the gradient is asked of what follows alone.
    for wrap in (lambda f: f, jax.jit):
        most = partial(ours.all_reduce, op=ReduceOp.MAX, comm=comm)
        shifted = wrap(jax.grad(lambda x: (x - lax.stop_gradient(most(x))).sum()))  # noqa: B023
        assert shifted(x).tolist() == [1.0] * comm.size
    # Integers beside what has one.
    whole = jnp.arange(comm.size)
    for name in EXACT:
        with calls_of(comm) as made:
            counted = jax.jit(
                jax.grad(lambda x, name=name: (CALLS[name][0](whole, comm=comm) * x.sum()).sum())
            )
            assert counted(x).shape == counted(2 * x).shape
        assert len(made) == 2


def test_calls_stay_in_their_order_on_several_communicators(comm: Communicator) -> None:
    with comm.mesh((-1, 1), ("x", "y")) as mesh, comm.dup() as other:

        @jax.jit
        def step(x: Any) -> Any:
            ours.all_reduce(x + 9, comm=other)  # whose result is not used
            a = ours.all_gather(x, comm=mesh["y"])
            b = ours.all_reduce(x, ReduceOp.MAX, comm=comm)
            return a, b, ours.all_gather(b, comm=other)

        with calls_of(other) as made:
            a, b, c = step(jnp.full(2, float(comm.rank)))
        assert made == ["all_reduce", "all_gather"]
        assert a.tolist() == [[comm.rank] * 2]
        assert b.tolist() == [comm.size - 1] * 2
        assert c.shape == (comm.size, 2)


def late(comm: Communicator, count: int) -> Any:
    """Ones, which JAX has yet to compute on rank 0."""
    chain = jax.jit(lambda x: jnp.ones(count) + 0 * jnp.tanh(x @ x @ x @ x @ x).sum())
    x = jnp.ones((1000, 1000) if comm.rank == 0 else (2, 2))
    chain(x).block_until_ready()
    return chain(x)


def test_calls_on_arrays_that_are_not_ready_come_first(comm: Communicator) -> None:
    step = jax.jit(lambda x: ours.all_reduce(x, comm=comm))
    step(jnp.zeros(2))
    tens = ours.all_reduce(jnp.full(2, 10.0), comm=comm) / comm.size
    first = step(late(comm, 2))
    second = ours.all_reduce(tens, comm=comm)
    assert first.tolist() == [comm.size] * 2
    assert second.tolist() == [10 * comm.size] * 2


def test_arguments_are_checked_while_tracing(comm: Communicator) -> None:
    x = jnp.ones(3 * comm.size + 1)
    for wrap in (lambda f: f, jax.jit):
        with pytest.raises(errors.UnsupportedDtype, match="max"):
            wrap(lambda x: ours.all_reduce(x + 1j, ReduceOp.MAX, comm=comm))(x)
        with pytest.raises(errors.UsageError, match="key_data"):
            wrap(lambda x: ours.broadcast(jax.random.key(0), comm=comm))(x)
        with pytest.raises(errors.UsageError, match="root"):
            wrap(lambda x: ours.broadcast(x, comm.size, comm=comm))(x)
        with pytest.raises(errors.UsageError, match="dst"):
            wrap(lambda x: ours.send_recv(x, comm.size, 0, comm=comm))(x)
        if comm.size > 1:
            for call in (ours.reduce_scatter, ours.all_to_all):
                with pytest.raises(errors.UsageError, match="divisible"):
                    wrap(lambda x, call=call: call(x, comm=comm))(x)
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_errors_are_those_of_hpccomm(comm: Communicator) -> None:
    for wrap in (lambda f: f, jax.jit):
        other = comm.dup()  # which fails
        step = wrap(lambda x, other=other: ours.all_reduce(x, comm=other) + 1)
        text = r"all_reduce #1 .*rank 0: all_reduce.*test_jax\.py line"
        with pytest.raises(errors.RankMismatch, match=text) as error:
            ours.original_errors()(step)(jnp.ones(3 + comm.rank))
        assert (error.value.operation, error.value.rank) == ("all_reduce", comm.rank)
        if wrap is jax.jit:
            assert isinstance(error.value.__cause__, jax.errors.JaxRuntimeError)
        with pytest.raises(errors.CommunicatorAborted), ours.original_errors():
            step(jnp.ones(5))
    with pytest.raises(ZeroDivisionError), ours.original_errors():
        1 / 0  # noqa: B018


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_does_not_come_is_named(comm: Communicator, mpi_comm: MPI.Intracomm) -> None:
    other = comm.dup()
    other.set_timeout(0.5)
    if comm.rank:
        with pytest.raises(errors.CollectiveTimeout, match="rank 0"), ours.original_errors():
            jax.jit(lambda x: ours.all_gather(x, comm=other))(jnp.ones(3))
    mpi_comm.Barrier()  # not hpccomm's, which would find out that the ranks wait for each other
    other.abort()


def test_the_example_finds_what_one_rank_finds(comm: Communicator) -> None:
    path = Path(__file__).parents[2] / "docs/examples/train_jax.py"
    example = run_path(str(path))
    alone = comm.split(comm.rank)
    assert alone is not None
    found = example["train"](alone)
    assert found[-1] < 0.8 * found[0]
    np.testing.assert_allclose(example["train"](comm), found, rtol=1e-5)
    alone.finalize()


def test_the_code_of_the_page_runs(comm: Communicator) -> None:
    code, solver = run_blocks("docs/how_to/jax.rst")
    names: dict[str, Any] = {}
    exec(code, names)
    assert float(names["length"]) == pytest.approx((3 * comm.size) ** 0.5)
    names |= {"comm": comm, "part": jnp.eye(3), "b": jnp.ones(3)}
    exec(solver, names)
    np.testing.assert_allclose(names["x"], [1 / comm.size] * 3, rtol=1e-6)


@pytest.mark.mpi(min_size=2)
def test_errors_of_the_background(comm: Communicator) -> None:
    """The last test, as JAX raises them again wherever the process asks for results of callbacks."""
    other = comm.dup()
    with pytest.raises(jax.errors.JaxRuntimeError, match="all_reduce #1"):
        jax.jit(lambda x: ours.all_reduce(x, comm=other))(
            late(comm, 1 + (comm.rank > 0))
        ).block_until_ready()
    for _ in range(2):  # other communicators are none the worse
        assert ours.all_reduce(jnp.ones(2), comm=comm).tolist() == [comm.size] * 2
    with pytest.raises((errors.RankMismatch, errors.CommunicatorAborted)):
        ours.all_reduce(jnp.ones(2), comm=other)
    for _ in range(2):
        assert ours.all_reduce(jnp.ones(2), comm=comm).tolist() == [comm.size] * 2
