"""One call on JAX arrays: how it is carried out, differentiated and batched.

Outside of traces it goes straight to the communicator: arrays in host memory as NumPy views, those on a GPU by DLPack.
In a trace it is an ordered callback, whose arrays are in host memory. ``custom_vjp`` says what its gradient is, and
within that ``custom_vmap`` how a batch becomes one call on larger arrays.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from hpccomm.communicator import Communicator
from hpccomm.errors import HpccommError, UsageError
from hpccomm.memory.cuda.arrays import on_device
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.views import empty_like_kind
from hpccomm.reductions import PremulSum, ReduceOp
from hpccomm.runtime.recorder import Site, entered


@dataclass(frozen=True)
class TracedCall:
    """A call of a communicator, without its arrays. JAX compares and hashes it, as what a trace depends on.

    Attributes
    ----------
    comm : Communicator
        What is called.
    name : str
        Of the call.
    arguments : tuple
        The others than arrays.
    sent : tuple of (shape, dtype)
        Of what ``send_recv`` sends.
    site : tuple or None
        Line of the program that made it.
    """

    comm: Communicator
    name: str
    arguments: tuple[Any, ...] = ()
    sent: tuple[tuple[int, ...], Any] = ((), None)
    site: Site | None = field(default=None, compare=False)


Carry = Callable[..., Any]

_CARRY: dict[str, Carry] = {
    "all_reduce": lambda comm, x, op: comm.all_reduce(x, op, out=_like(x)),
    "all_gather": lambda comm, x: comm.all_gather(x),
    "reduce_scatter": lambda comm, x, op: comm.reduce_scatter(x, op),
    "all_to_all": lambda comm, x: comm.all_to_all(x),
    "broadcast": lambda comm, x, root: comm.broadcast(
        x.copy() if comm.rank == root else _like(x), root
    ),
    "reduce": lambda comm, x, root: _or_zeros(
        comm.reduce(x, root, out=_like(x) if comm.rank == root else None), x
    ),
    "send_recv": lambda comm, x, out, dst, src, tag: comm.send_recv(x, dst, out.copy(), src, tag),
}
"""What each call does with arrays of NumPy or CuPy, which it may not write to. The result is a new one."""

_AXES = {"all_gather": (0, 1), "reduce_scatter": (1, 1), "all_to_all": (1, 1)}
"""Where the axis of a batch lies in the array of a call, and in its result; in front in all others."""


def _like(x: Any) -> Any:
    return empty_like_kind(x, x.shape, x.dtype)


def _or_zeros(result: Any, x: Any) -> Any:
    if result is not None:
        return result
    zeros = _like(x)
    zeros[...] = 0
    return zeros


def start(what: TracedCall, *arrays: Any) -> Any:
    """Carry out a call, now or whenever what is being traced runs."""
    try:
        jax.effects_barrier()  # callbacks whose arrays were not ready run in another thread, and come first
    except jax.errors.JaxRuntimeError as error:
        # JAX raises an error of such a callback again and again. The program may know it from the results.
        if (original := _original(error, what.comm)) is not None:
            raise original from error
        if not any(text in str(error) for text in (*_raised, *(str(each) for _, each in _failed))):
            _raised.append(str(error))
            raise
    what = replace(what, site=entered(what.site))
    given = tuple(map(array, arrays))
    # In a trace, what JAX makes has no value, even of constants.
    if not _traced((*given, jnp.asarray(0.0))):
        return _begun(what, *given)
    _check(what, given)
    return _differentiable(what, *given)


def array(x: Any) -> Any:
    """Return an argument as an array of JAX."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        raise UsageError(
            f"x has dtype {x.dtype}, whose memory is JAX's own affair; give jax.random.key_data(x), and "
            "make keys of the result by jax.random.wrap_key_data"
        )
    return x


def _traced(arrays: tuple[Any, ...]) -> bool:
    return any(isinstance(each, jax.core.Tracer) for each in arrays)


def _begun(what: TracedCall, *arrays: Any) -> Any:
    """Carry a call out if its arrays have values; else put a callback into the trace."""
    if _traced(arrays):
        return _batchable(what)(*arrays)
    result = _carried(what, *arrays)
    return jnp.from_dlpack(result) if on_device(result) else jnp.asarray(result)


def _carried(what: TracedCall, *arrays: Any) -> Any:
    """Make the call of the communicator. The result is an array of NumPy or CuPy."""
    entered(what.site)
    views = [cupy().from_dlpack(x) if on_device(x) else np.asarray(x) for x in arrays]
    return _CARRY[what.name](what.comm, *views, *what.arguments)


def _check(what: TracedCall, arrays: tuple[Any, ...]) -> None:
    """Raise what the call would raise of its arguments, while the trace can show where they come from."""
    x, *others = (np.empty(each.shape, each.dtype) for each in arrays)  # nothing touches the memory
    if what.name == "send_recv":
        dst, src, tag = what.arguments
        what.comm.explain("send_recv", x, dst, *others, src, tag)
    else:
        what.comm.explain(what.name, x, *what.arguments)


def _shape(what: TracedCall, shape: tuple[int, ...]) -> tuple[int, ...]:
    size = what.comm.size
    if what.name == "all_gather":
        return (size, *shape)
    return (shape[0] // size, *shape[1:]) if what.name == "reduce_scatter" else shape


def _batchable(what: TracedCall) -> Any:
    """Return the call as a function of traced arrays, which ``vmap`` makes one call on larger ones."""
    inward, outward = _AXES.get(what.name, (0, 0))

    def call(*arrays: Any) -> Any:
        like = arrays[-1]
        result = jax.ShapeDtypeStruct(_shape(what, like.shape), like.dtype)

        def run(*values: Any) -> Any:
            try:
                return _carried(what, *values)
            except HpccommError as error:
                _failed.append((what.comm, error))
                raise

        return io_callback(run, result, *arrays, ordered=True)

    def together(size: int, batched: list[bool], *arrays: Any) -> tuple[Any, bool]:
        whole = (
            x if has_axis else jnp.broadcast_to(x, (size, *x.shape))
            for x, has_axis in zip(arrays, batched, strict=True)
        )
        return jnp.moveaxis(called(*(jnp.moveaxis(x, 0, inward) for x in whole)), outward, 0), True

    called: Any = custom_vmap(call)
    called.def_vmap(together)
    return called


_TRANSPOSED = {"all_to_all": "all_to_all", "broadcast": "reduce", "reduce": "broadcast"}
"""The call that takes cotangents back, with the same arguments."""


def _forward(what: TracedCall, *arrays: Any) -> tuple[Any, None]:
    return _differentiable(what, *arrays), None


def _backward(what: TracedCall, _: None, slope: Any) -> tuple[Any, ...]:
    """Return the cotangents of a call's arrays. Integers and bools get None."""
    name, arguments = what.name, what.arguments
    inexact = slope.dtype != jax.dtypes.float0
    if name == "send_recv":
        dst, src, tag = arguments
        shape, dtype = what.sent
        returned = jnp.issubdtype(dtype, jnp.inexact)
        zeros = jnp.zeros(shape, dtype if returned else jnp.float32)
        back = (src if inexact else None, dst if returned else None, tag)
        given = slope if inexact else zeros
        of_x = start(replace(what, arguments=back, sent=(given.shape, given.dtype)), given, zeros)
        of_out = slope if src is None else jnp.zeros_like(slope) if inexact else None
        return (of_x if returned else None, of_out if inexact else None)
    if not inexact:
        return (None,)

    def other(name: str, *arguments: Any) -> Any:
        return start(replace(what, name=name, arguments=arguments), slope)

    match name:
        case "all_reduce":
            return (_scaled(slope, what),)
        case "reduce_scatter":
            gathered = other("all_gather")
            return (_scaled(gathered.reshape(-1, *slope.shape[1:]), what),)
        case "all_gather":
            return (other("reduce_scatter", ReduceOp.SUM)[0],)
    return (other(_TRANSPOSED[name], *arguments),)


def _scaled(slope: Any, what: TracedCall) -> Any:
    """Return a cotangent times the factor by which a reduction multiplies what it sums."""
    (op,) = what.arguments
    if op is ReduceOp.SUM:
        return slope
    if op is ReduceOp.AVG:
        return slope / what.comm.size
    if isinstance(op, PremulSum):
        return slope * op.factor
    raise UsageError(
        f"{what.name} by {op!r} has no gradient; SUM, AVG and premul_sum have one; "
        "jax.lax.stop_gradient(x) takes the call out of it"
    )


_differentiable: Any = jax.custom_vjp(_begun, nondiff_argnums=(0,))
_differentiable.defvjp(_forward, _backward)


def _summed(comm: Communicator, _: None, slope: Any) -> tuple[Any]:
    return (start(TracedCall(comm, "all_reduce", (ReduceOp.SUM,)), slope),)


replicated_over: Any = jax.custom_vjp(lambda _, x: x, nondiff_argnums=(0,))
replicated_over.defvjp(lambda _, x: (x, None), _summed)


_failed: deque[tuple[Communicator, HpccommError]] = deque(maxlen=16)
"""Errors of callbacks. JAX raises errors of its own, which have their text."""

_raised: deque[str] = deque(maxlen=16)
"""Texts of what was raised already, and of other callbacks' errors."""


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise the error that hpccomm has raised within ``jit``, with its class and attributes, instead of JAX's text of it.

    For a ``with`` statement, or as a decorator: ``@hpccomm.jax.original_errors()`` above ``@jax.jit``. At its end, callbacks
    that are under way are awaited. JAX's own error is the cause of what is raised. Other errors pass as they are.
    """
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as error:
        if (original := _original(error)) is not None:
            raise original from error
        raise


def _original(error: Exception, comm: Communicator | None = None) -> HpccommError | None:
    """Return the error whose text JAX's error has, once. Given a communicator, only one of its calls."""
    for each in _failed:
        if comm in (None, each[0]) and str(each[1]) in str(error):
            _failed.remove(each)
            _raised.append(str(each[1]))
            return each[1]
    return None
