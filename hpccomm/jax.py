"""Collectives on JAX arrays, inside and outside of ``jit``.

>>> import hpccomm.jax                                   # doctest: +SKIP
>>> step = jax.jit(lambda x: hpccomm.jax.all_reduce(x, comm=comm) / comm.size)    # doctest: +SKIP

A call is a primitive of JAX. Outside of ``jit`` it goes straight to the communicator: arrays in host memory as NumPy views,
those on a GPU by DLPack. Where JAX traces the program, it becomes an ordered callback, whose arrays are in host memory, so
that calls stay in the order in which the program has them, on all communicators together.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpccomm.communicator import Communicator
from hpccomm.errors import HpccommError, UsageError
from hpccomm.memory.cuda.arrays import on_device
from hpccomm.memory.cuda.library import cupy
from hpccomm.memory.views import empty_like_kind
from hpccomm.reductions import Op, PremulSum, ReduceOp
from hpccomm.runtime.raised import own_errors
from hpccomm.runtime.recorder import Site, entered
from hpccomm.settings import read

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "original_errors",
    "reduce_scatter",
    "replicated",
    "send_recv",
]


def all_reduce(x: Any, op: Op = ReduceOp.SUM, *, comm: Communicator) -> Any:
    """Return the reduction of x over all ranks. Collective.

    Its gradient hands the cotangent on as it is, for the result is one value that all ranks share. ``SUM``, ``AVG`` and
    `premul_sum` have a gradient.

    Parameters
    ----------
    x : array
        An array of the same shape and dtype on all ranks.
    op : ReduceOp, PremulSum or callable
        As in `hpccomm.Communicator.all_reduce`.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        An array of the shape and dtype of x.
    """
    return start(TracedCall(comm, "all_reduce", (op,)), x)


def all_gather(x: Any, *, comm: Communicator) -> Any:
    """Return the x of all ranks, with one more axis in front. Collective.

    Parameters
    ----------
    x : array
        An array of the same shape and dtype on all ranks.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        Of shape ``(comm.size, *x.shape)``.
    """
    return start(TracedCall(comm, "all_gather"), x)


def reduce_scatter(x: Any, op: Op = ReduceOp.SUM, *, comm: Communicator) -> Any:
    """Return this rank's block of the reduction of x over all ranks. Collective.

    Parameters
    ----------
    x : array
        An array of the same shape and dtype on all ranks; the number of ranks divides axis 0.
    op : ReduceOp, PremulSum or callable
        As in `hpccomm.Communicator.reduce_scatter`. ``SUM``, ``AVG`` and `premul_sum` have a gradient.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        Of shape ``(x.shape[0] / comm.size, *x.shape[1:])``.
    """
    return start(TracedCall(comm, "reduce_scatter", (op,)), x)


def all_to_all(x: Any, *, comm: Communicator) -> Any:
    """Return the blocks that all ranks have for this one, by rank. Collective.

    Parameters
    ----------
    x : array
        Of the same shape and dtype on all ranks; the number of ranks divides axis 0. Block j goes to rank j.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        An array of the shape and dtype of x.
    """
    return start(TracedCall(comm, "all_to_all"), x)


def broadcast(x: Any, root: int = 0, *, comm: Communicator) -> Any:
    """Return the root's x on all ranks. Collective.

    Parameters
    ----------
    x : array
        An array of the same shape and dtype on all ranks; only the root's values count.
    root : int
        The rank whose values are sent.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        An array of the shape and dtype of x.
    """
    return start(TracedCall(comm, "broadcast", (root,)), x)


def send_recv(
    x: Any, dst: int | None, src: int | None, *, out: Any = None, tag: int = 0, comm: Communicator
) -> Any:
    """Send x to rank `dst`, and return what rank `src` sends.

    Parameters
    ----------
    x : array
        The array that is sent.
    dst : int or None
        The receiver; None sends nothing.
    src : int or None
        The sender; None receives nothing.
    out : array, optional
        Has the shape and dtype of what is received, and is the result where `src` is None, such as the border of a
        domain. By default zeros like x.
    tag : int
        The tag of both messages.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        The received array.
    """
    x = array(x)
    other = jnp.zeros_like(x) if out is None else array(out)
    return start(TracedCall(comm, "send_recv", (dst, src, tag)), x, other)


def replicated(x: Any, *, comm: Communicator) -> Any:
    """Return x, which all ranks have alike, for use in parts of the work that differ between ranks.

    Sends nothing. Its gradient is collective: it sums the cotangents of all ranks, so that all have the gradient of the
    whole. Without it, each would have that of its own part.

    Parameters
    ----------
    x : array
        The same on all ranks, such as a parameter, or the result of `all_reduce`.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        x.
    """
    if not jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact):
        raise UsageError(
            f"replicated: x has dtype {jnp.asarray(x).dtype}, which has no gradient; use it as it is"
        )
    return start(TracedCall(comm, "replicated"), x)


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


@dataclass(frozen=True)
class TracedCall:
    """A call of a communicator, without its arrays. JAX compares and hashes it, since a trace depends on it.

    Attributes
    ----------
    comm : Communicator
        The communicator that is called.
    name : str
        The call's name.
    arguments : tuple
        The others than arrays.
    site : tuple or None
        Line of the program that made it.
    refused : bool
        Whether it stands for a derivative that does not exist. It raises where that is needed.
    """

    comm: Communicator
    name: str
    arguments: tuple[Any, ...] = ()
    site: Site | None = None
    refused: bool = False


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


def start(call: TracedCall, *arrays: Any) -> Any:
    """Carry out a call: now, or when the traced program runs."""
    try:
        jax.effects_barrier()  # callbacks whose arrays were not ready run in another thread, and come first
    except jax.errors.JaxRuntimeError as error:
        # JAX raises an error of such a callback again and again. The program may know it from the results.
        if (original := _original(error, call.comm)) is not None:
            raise original from error
        if not any(
            text in str(error) for text in (*_raised, *(str(each) for _, each in tuple(_failed)))
        ):
            _raised.append(str(error))
            raise
    call = replace(call, site=entered(call.site))
    return _called.bind(*map(array, arrays), call=call)


def array(x: Any) -> Any:
    """Return an argument as an array of JAX."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        raise UsageError(
            f"x has dtype {x.dtype}, whose memory is JAX's own affair; give jax.random.key_data(x), and "
            "make keys of the result by jax.random.wrap_key_data"
        )
    return x


_called: Any = Primitive("hpccomm_call")


def _sends(call: TracedCall) -> bool:
    """Whether a call sends anything. Raise if it stands for a derivative that is not there."""
    if call.refused:
        raise UsageError(
            f"{call.name} by {call.arguments[0]!r} has no gradient; SUM, AVG and premul_sum have one; "
            "jax.lax.stop_gradient(x) takes the call out of it"
        )
    return call.name != "replicated"


def _carried(call: TracedCall, *arrays: Any) -> Any:
    """Make the call of the communicator. The result is an array of NumPy or CuPy."""
    entered(call.site)
    views = [cupy().from_dlpack(x) if on_device(x) else np.asarray(x) for x in arrays]
    return _CARRY[call.name](call.comm, *views, *call.arguments)


def _now(*arrays: Any, call: TracedCall) -> Any:
    """Carry a call out on arrays that have values."""
    if not _sends(call):
        return arrays[0]
    result = _carried(call, *arrays)
    return jnp.from_dlpack(result) if on_device(result) else jnp.asarray(result)


_called.def_impl(_now)


def _traced(*arrays: Any, call: TracedCall) -> Any:
    """Give a call as operations of JAX, which run later: a callback."""
    if not _sends(call):
        return arrays[0]

    def run(*values: Any) -> Any:
        try:
            return _carried(call, *values)
        except HpccommError as error:
            _failed.append((call.comm, error))
            raise

    like = arrays[-1]
    result = jax.ShapeDtypeStruct(_shape(call, like.shape), like.dtype)
    return io_callback(run, result, *arrays, ordered=True)


mlir.register_lowering(_called, mlir.lower_fun(_traced, multiple_results=False))


@cache
def _effects() -> Any:
    """Return the effects of an ordered callback, by which JAX keeps their order, and drops none."""
    return jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects


def _described(*arrays: Any, call: TracedCall) -> Any:
    """Return shape, dtype and effects of a call. Raise already here the errors of its arguments."""
    result = jax.core.ShapedArray(_shape(call, arrays[-1].shape), arrays[-1].dtype)
    if call.refused or call.name == "replicated":
        return result, set()
    x, *others = (np.empty(each.shape, each.dtype) for each in arrays)  # nothing touches the memory
    if call.name == "send_recv":
        dst, src, tag = call.arguments
        call.comm.explain("send_recv", x, dst, *others, src, tag)
    else:
        call.comm.explain(call.name, x, *call.arguments)
    return result, _effects()


_called.def_effectful_abstract_eval(_described)


def _shape(call: TracedCall, shape: tuple[int, ...]) -> tuple[int, ...]:
    size = call.comm.size
    if call.name == "all_gather":
        return (size, *shape)
    return (shape[0] // size, *shape[1:]) if call.name == "reduce_scatter" else shape


def _batched(arrays: Any, axes: Any, *, call: TracedCall) -> tuple[Any, int]:
    """Make the calls of a batch one call on larger arrays."""
    (size,) = {x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None}
    inward, outward = _AXES.get(call.name, (0, 0))
    whole = (
        jnp.moveaxis(batching.bdim_at_front(x, axis, size), 0, inward)
        for x, axis in zip(arrays, axes, strict=True)
    )
    return _called.bind(*whole, call=call), outward


# Not by an assignment: the documentation is made without JAX, of which it has stand-ins.
batching.primitive_batchers.__setitem__(_called, _batched)


# Derivatives. A call is linear, but for reductions such as MAX.


def _pushed(arrays: Any, tangents: Any, *, call: TracedCall) -> tuple[Any, Any]:
    """Carry a call out, and its derivative: the same call on the tangents."""
    result = _called.bind(*arrays, call=call)
    along = call
    if call.name == "send_recv":
        (dst, src, tag), (sends, receives) = call.arguments, map(_inexact, arrays)
        if sends and not receives:
            raise UsageError(
                f"send_recv sends {arrays[0].dtype}, which has a gradient, and receives {arrays[1].dtype}, "
                "which has none; make a call of each, or give it jax.lax.stop_gradient(x)"
            )
        along = replace(call, arguments=(dst if sends else None, src, tag))
    elif call.name in ("all_reduce", "reduce_scatter"):
        along = replace(call, refused=_factor(call) is None)
    given = (
        jnp.zeros(x.shape, x.dtype if _inexact(x) else jnp.float32) if type(t) is ad.Zero else t
        for x, t in zip(arrays, tangents, strict=True)
    )
    return result, _called.bind(*given, call=along)


ad.primitive_jvps.update({_called: _pushed})


def _inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


_TRANSPOSED = {"all_to_all": "all_to_all", "broadcast": "reduce", "reduce": "broadcast"}
"""The call that takes cotangents back, with the same arguments."""


def _returned(slope: Any, *arrays: Any, call: TracedCall) -> tuple[Any, ...]:
    """Return the cotangents of the arrays in which a call is linear; None of others."""
    linear = tuple(map(ad.is_undefined_primal, arrays))
    _sends(call)
    if type(slope) is ad.Zero:
        return (None,) * len(arrays)
    if call.name == "send_recv":
        dst, src, tag = call.arguments
        x = arrays[0].aval if linear[0] else arrays[0]
        back = replace(call, arguments=(src, dst, tag))
        of_x = start(back, slope, jnp.zeros(x.shape, x.dtype))
        of_out = slope if src is None else jnp.zeros_like(slope)
        return (of_x if linear[0] else None, of_out if linear[1] else None)

    def other(name: str, *arguments: Any) -> Any:
        return start(replace(call, name=name, arguments=arguments), slope)

    match call.name:
        case "all_reduce":
            return (other("replicated") * _factor(call),)
        case "replicated":
            return (other("all_reduce", ReduceOp.SUM),)
        case "reduce_scatter":
            gathered = other("all_gather")
            return (gathered.reshape(-1, *slope.shape[1:]) * _factor(call),)
        case "all_gather":
            return (other("reduce_scatter", ReduceOp.SUM)[0],)
    return (other(_TRANSPOSED[call.name], *call.arguments),)


ad.primitive_transposes.update({_called: _returned})


def _factor(call: TracedCall) -> Any:
    """Return the factor by which a reduction multiplies what it sums; None of one that is no sum."""
    (op,) = call.arguments
    if op is ReduceOp.AVG:
        return 1 / call.comm.size
    if isinstance(op, PremulSum):
        return op.factor
    return 1 if op is ReduceOp.SUM else None


_failed: deque[tuple[Communicator, HpccommError]] = deque(maxlen=16)
"""Errors of callbacks. JAX raises errors of its own, which have their text."""

_raised: deque[str] = deque(maxlen=16)
"""Texts of what was raised already, and of other callbacks' errors."""


def _original(error: Exception, comm: Communicator | None = None) -> HpccommError | None:
    """Return the error whose text JAX's error has, once. Given a communicator, only one of its calls."""
    for each in tuple(_failed):
        if comm in (None, each[0]) and str(each[1]) in str(error):
            _failed.remove(each)
            _raised.append(str(each[1]))
            return each[1]
    return None


def _own_error(error: BaseException) -> HpccommError | None:
    """Return the error that a ``JaxRuntimeError`` tells of, for the report of an error that nobody has caught."""
    told = str(error) if isinstance(error, jax.errors.JaxRuntimeError) else ""
    return next((each for _, each in tuple(_failed) if str(each) in told), None)


def _not_ours(record: logging.LogRecord) -> bool:
    """Whether JAX shall log the error of a callback: not hpccomm's, which is raised, and in the report."""
    own = record.exc_info and isinstance(record.exc_info[1], HpccommError)
    return not own or bool(read("HPCCOMM_DEBUG"))


own_errors.append(_own_error)
logging.getLogger(io_callback.__module__).addFilter(_not_ours)
