"""Which algorithm a call takes: a pure function of what is equal on all ranks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hpccomm.algorithms import ALGORITHMS
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import name_of

NATIVE = "native"
AUTO = "auto"

SMALL_BYTES = 2048
"""Up to here the number of messages counts."""

LARGE_BYTES = 16384
"""From here on for each rank the bytes count: a ring's n messages one after the other are worth it."""


class ByBytes(NamedTuple):
    """What is taken for small arrays, for large ones, and between."""

    small: str
    middle: str
    large: str


BY_BYTES: Mapping[str, ByBytes] = MappingProxyType(
    {
        "all_reduce": ByBytes("recursive_doubling", "halving_doubling", "ring"),
        "broadcast": ByBytes("binomial", "binomial", "scatter_all_gather"),
        "reduce": ByBytes("binomial", "binomial", "halving_doubling"),
        "all_gather": ByBytes("bruck", "bruck", "ring"),
        "reduce_scatter": ByBytes("halving_doubling", "halving_doubling", "ring"),
        "all_to_all": ByBytes("linear", "pairwise", "pairwise"),
        "gather": ByBytes("linear", "linear", "linear"),
        "scatter": ByBytes("linear", "linear", "linear"),
        "scan": ByBytes("binomial", "binomial", "binomial"),
        "barrier": ByBytes("dissemination", "dissemination", "dissemination"),
    }
)
"""What is taken of hpccomm's own algorithms."""

NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name that ``algorithm=`` may have in some call."""


IN_ORDER = (
    "contributions are folded in rank order, and the algorithm only moves them and the result"
)


class Decision(NamedTuple):
    """An algorithm's name and why it was taken."""

    algorithm: str
    reason: str


def applicable(
    call: Signature, *, native: bool, shared: bool, deterministic: bool
) -> tuple[str, ...]:
    """Return the names that ``algorithm=`` may take for this call.

    Parameters
    ----------
    call : Signature
        What is asked for.
    native : bool
        Whether the backend has its own way to do it.
    shared : bool
        Whether the ranks reach each other's memory.
    deterministic : bool
        Whether contributions must be folded in rank order.
    """
    own = tuple(
        name
        for name, each in ALGORITHMS[call.collective].items()
        if (shared or not each.shared)
        and (call.uniform or not each.uniform)
        and (not deterministic or each.ordered is not None)
    )
    return (NATIVE, *own) if native and not deterministic else own


def decide(
    call: Signature,
    algorithm: str,
    size: int,
    *,
    native: bool,
    shared: bool,
    backend: str,
    deterministic: bool,
) -> Decision:
    """Choose the algorithm of a call.

    Parameters
    ----------
    call : Signature
        What is asked for.
    algorithm : str
        A name, or ``"auto"``.
    size : int
        Ranks of the communicator.
    native, shared, deterministic : bool
        As for `applicable`.
    backend : str
        The backend's name, for the reason.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists those that do.
    """
    names = applicable(call, native=native, shared=shared, deterministic=deterministic)
    if algorithm != AUTO:
        if algorithm not in names:
            fits = ", ".join(repr(name) for name in (AUTO, *names))
            raise UsageError(
                f"algorithm is {algorithm!r}, which does not apply to this {call.name} "
                f"over {backend}; give one of {fits}"
            )
        return Decision(algorithm, f"as asked; {IN_ORDER}" if deterministic else "as asked")
    if native and not deterministic:
        return Decision(NATIVE, f"{backend} has {call.name}{_what(call)} of its own")
    why = (
        IN_ORDER
        if deterministic
        else f"{backend} has none of its own that does {call.name}{_what(call)} as it is meant here"
    )
    name, detail = _by_bytes(call, size)
    return Decision(name, f"{why}; {detail}" if detail else why)


def own(call: Signature, size: int) -> str:
    """Return which of hpccomm's own algorithms is taken that need nothing but messages."""
    return _by_bytes(call, size)[0]


def _by_bytes(call: Signature, size: int) -> tuple[str, str]:
    """Return the name of an algorithm and up to which size it is taken."""
    chosen = BY_BYTES[call.collective]
    if call.collective == "all_to_all" and not call.uniform:
        # Each rank has its own number of bytes, and all must choose alike.
        return chosen.large, ""
    if call.nbytes <= SMALL_BYTES:
        return chosen.small, f"at most {SMALL_BYTES} bytes"
    if call.nbytes <= LARGE_BYTES * size:
        return chosen.middle, f"at most {LARGE_BYTES} bytes for each rank"
    return chosen.large, ""


def _what(call: Signature) -> str:
    if call.collective == "barrier":
        return ""
    if call.op is None:
        return f" of {call.dtype}"
    return f" of {name_of(call.op)} on {call.dtype}"
