"""Which algorithm a call takes: a pure function of what is equal on all ranks."""

from typing import NamedTuple

from hpccomm.algorithms import ALGORITHMS
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import name_of

NATIVE = "native"
AUTO = "auto"

SMALL_BYTES = 2048
"""Up to here one round in which everyone sends all beats two rounds of blocks."""

REDUCTIONS = frozenset(("all_reduce", "reduce", "reduce_scatter", "scan"))


NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name that ``algorithm=`` may have in some call."""


class Decision(NamedTuple):
    """An algorithm's name and why it was taken."""

    algorithm: str
    reason: str


def applicable(call: Signature, *, native: bool, deterministic: bool) -> tuple[str, ...]:
    """Return the names that ``algorithm=`` may take for this call, best first."""
    own = tuple(ALGORITHMS[call.collective])
    return (NATIVE, *own) if native and not deterministic else own


def decide(
    call: Signature, algorithm: str, *, native: bool, backend: str, deterministic: bool
) -> Decision:
    """Choose the algorithm of a call.

    Parameters
    ----------
    call : Signature
        What is asked for.
    algorithm : str
        A name, or ``"auto"``.
    native : bool
        Whether the backend has its own way to do it.
    backend : str
        The backend's name, for the reason.
    deterministic : bool
        Whether contributions must be folded in rank order.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists those that do.
    """
    names = applicable(call, native=native, deterministic=deterministic)
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
    if "linear" in names and "pairwise" in names and call.nbytes <= SMALL_BYTES:
        return Decision("linear", f"{why}; at most {SMALL_BYTES} bytes")
    return Decision(names[0], why)


def _what(call: Signature) -> str:
    if call.op is None:
        return str(call.dtype)
    return f"{name_of(call.op)} on {call.dtype}"
