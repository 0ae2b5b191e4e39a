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
"""Up to here the number of messages counts, and beyond it the bytes."""

SMALL_AND_LARGE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "all_reduce": ("recursive_doubling", "ring"),
        "broadcast": ("binomial", "scatter_all_gather"),
        "reduce": ("binomial", "chain"),
        "all_gather": ("bruck", "ring"),
        "reduce_scatter": ("halving_doubling", "ring"),
        "all_to_all": ("linear", "pairwise"),
        "gather": ("linear", "linear"),
        "scatter": ("linear", "linear"),
        "scan": ("binomial", "binomial"),
        "barrier": ("dissemination", "dissemination"),
    }
)
"""What is taken of hpccomm's own algorithms for small and for large arrays."""

NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name that ``algorithm=`` may have in some call."""


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
        return Decision(algorithm, "as asked")
    if native and not deterministic:
        return Decision(NATIVE, f"{backend} has {call.name} of {_what(call)} of its own")
    why = (
        "contributions are folded in rank order"
        if deterministic
        else f"{backend} has none of its own that does {call.name} of {_what(call)} as it is meant here"
    )
    small, large = SMALL_AND_LARGE[call.collective]
    if call.nbytes <= SMALL_BYTES and small in names:
        return Decision(small, f"{why}; at most {SMALL_BYTES} bytes")
    return Decision(large if large in names else names[0], why)


def _what(call: Signature) -> str:
    if call.op is None:
        return str(call.dtype)
    return f"{name_of(call.op)} on {call.dtype}"
