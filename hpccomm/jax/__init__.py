"""Collectives on JAX arrays, inside and outside of ``jit``.

>>> import hpccomm.jax                                   # doctest: +SKIP
>>> step = jax.jit(lambda x: hpccomm.jax.all_reduce(x, comm=comm) / comm.size)    # doctest: +SKIP

Outside of ``jit`` a call goes straight to the communicator. Where JAX traces the program, it becomes an ordered callback,
so that calls stay in the order in which the program has them, on all communicators together.

- `traced_call`: how one call is carried out, differentiated and batched.
"""

from typing import Any

import jax.numpy as jnp

from hpccomm.communicator import Communicator
from hpccomm.errors import UsageError
from hpccomm.jax.traced_call import TracedCall, array, original_errors, start
from hpccomm.reductions import Op, ReduceOp

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
        Of the same shape and dtype on all ranks.
    op : ReduceOp, PremulSum or callable
        As in `hpccomm.Communicator.all_reduce`.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.
    """
    return start(TracedCall(comm, "all_reduce", (op,)), x)


def all_gather(x: Any, *, comm: Communicator) -> Any:
    """Return the x of all ranks, with one more axis in front. Collective.

    Parameters
    ----------
    x : array
        Of the same shape and dtype on all ranks.
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
        Of the same shape and dtype on all ranks; the number of ranks divides axis 0.
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
        Of the shape and dtype of x.
    """
    return start(TracedCall(comm, "all_to_all"), x)


def broadcast(x: Any, root: int = 0, *, comm: Communicator) -> Any:
    """Return the root's x on all ranks. Collective.

    Parameters
    ----------
    x : array
        Of the same shape and dtype on all ranks; only the root's values count.
    root : int
        The rank whose values are sent.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.
    """
    return start(TracedCall(comm, "broadcast", (root,)), x)


def send_recv(
    x: Any, dst: int | None, src: int | None, *, out: Any = None, tag: int = 0, comm: Communicator
) -> Any:
    """Send x to rank `dst`, and return what rank `src` sends.

    Parameters
    ----------
    x : array
        What is sent.
    dst : int or None
        The receiver; None sends nothing.
    src : int or None
        The sender; None receives nothing.
    out : array, optional
        Has the shape and dtype of what is received, and is the result where `src` is None, such as the border of a
        domain. By default zeros like x.
    tag : int
        Of both messages.
    comm : Communicator
        Its ranks.

    Returns
    -------
    jax.Array
        What has been received.
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
