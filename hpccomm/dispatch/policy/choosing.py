"""Which algorithm a call takes: a function of what is equal on all ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.policy.table import (
    NATIVE_CASE,
    ORDERED_CASE,
    OWN_CASE,
    REGISTERED_CASE,
    Pick,
    Shape,
    Table,
)
from hpccomm.errors import UsageError, did_you_mean
from hpccomm.reductions import name_of
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.terms import Estimated, ranked
from hpccomm.settings import DEFAULT_SEGMENT

NATIVE = "native"
AUTO = "auto"

UNEVEN_BYTES = 1 << 20
"""What an algorithm is estimated for where each rank has its own number of bytes: all must choose alike."""

NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name that ``algorithm=`` may have in some call."""


IN_ORDER = (
    "contributions are folded in rank order, and the algorithm only moves them and the result"
)


class Decision(NamedTuple):
    """An algorithm, how it is run, and why it was taken."""

    pick: Pick
    reason: str

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.pick.algorithm


def applicable(
    call: Signature, *, native: bool = False, shared: bool = False, deterministic: bool
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


def taken(algorithm: str | None, setting: str, names: tuple[str, ...], call: str, over: str) -> str:
    """Return which algorithm a call takes: one of `names`, or `AUTO`.

    Parameters
    ----------
    algorithm : str or None
        The user's argument. None is the communicator's setting, for calls that have such an algorithm.
    setting : str
        The communicator's.
    names : tuple of str
        The names that apply.
    call, over : str
        The call, and what carries it, for the error.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists those that do.
    """
    if algorithm is None:
        return setting if setting in names else AUTO
    if algorithm != AUTO and algorithm not in names:
        fits = ", ".join(repr(name) for name in (AUTO, *names))
        advice = f"give one of {fits}"
        if algorithm not in NAMES:
            advice = did_you_mean(algorithm, names, advice)
        raise UsageError(
            f"algorithm is {algorithm!r}, which does not apply to this {call} over {over}; {advice}"
        )
    return algorithm


@dataclass(frozen=True, slots=True)
class Policy:
    """Chooses for the calls of one communicator. The same on all its ranks.

    Attributes
    ----------
    shape : Shape
        Of the communicator.
    table : Table
        What ``"auto"`` goes by.
    source : str
        Where the table is from, in words.
    network : Network
        What algorithms are compared on where the table does not fit: the links between the ranks.
    """

    shape: Shape
    table: Table
    source: str
    network: Network

    def decide(
        self,
        call: Signature,
        algorithm: str | None,
        setting: str = AUTO,
        *,
        native: bool,
        shared: bool,
        deterministic: bool,
    ) -> Decision:
        """Choose the algorithm of a call.

        Parameters
        ----------
        call : Signature
            What is asked for.
        algorithm, setting : str
            As for `taken`.
        native, shared, deterministic : bool
            As for `applicable`.

        Raises
        ------
        UsageError
            If `algorithm` does not apply; the message lists those that do.
        """
        names = applicable(call, native=native, shared=shared, deterministic=deterministic)
        over = f"{self.shape.backend}{self._apart(call, algorithm, shared)}"
        algorithm = taken(algorithm, setting, names, call.name, over)
        if algorithm == AUTO:
            return self._automatic(call, names, deterministic)
        pick = Pick(algorithm)
        if not call.individual:
            pick = self.named(call.collective, algorithm, call.nbytes, deterministic=deterministic)
        return Decision(pick, f"as asked; {IN_ORDER}" if deterministic else "as asked")

    def registered(
        self,
        call: Signature,
        algorithm: str | None,
        setting: str = AUTO,
        *,
        native: bool,
        shared: bool,
        deterministic: bool,
    ) -> Decision | None:
        """Choose what a call takes where its arrays are registered on all ranks.

        Parameters are those of `decide`. None where that is the backend's own way as well, or is not known.
        """
        if not (native and shared) or deterministic or call.individual or self.shape.ranks == 1:
            return None
        names = applicable(call, native=native, shared=shared, deterministic=deterministic)
        if taken(algorithm, setting, names, call.name, "") != AUTO:
            return None
        row = self.table.find(call.collective, REGISTERED_CASE, call.nbytes)
        if row is None or row.pick.algorithm == NATIVE or row.pick.algorithm not in names:
            return None
        why = f"the fastest on registered arrays from {row.start} bytes on by {self.source}"
        return Decision(row.pick, why)

    def _apart(self, call: Signature, algorithm: str | None, shared: bool) -> str:
        """Return why an algorithm does not apply that needs shared memory, or ''."""
        known = ALGORITHMS[call.collective].get(algorithm or AUTO)
        if known is None or shared or not known.shared:
            return ""
        if self.shape.nodes > 1:
            return f" on {self.shape.nodes} nodes, of which each has its own memory"
        return " between ranks that do not all share memory (HPCCOMM_SHARED_MEMORY=off?)"

    def named(
        self, collective: str, algorithm: str, nbytes: int, *, deterministic: bool = False
    ) -> Pick:
        """Return how an algorithm that a call names is run: as the table has it near that size."""
        cases = (ORDERED_CASE,) if deterministic else (NATIVE_CASE, OWN_CASE)
        return self.table.tuned(collective, cases, algorithm, nbytes)

    def _automatic(self, call: Signature, names: tuple[str, ...], deterministic: bool) -> Decision:
        native = NATIVE in names
        backend, ranks = self.shape.backend, self.shape.ranks
        if deterministic:
            case, why = ORDERED_CASE, f"{IN_ORDER}; "
        elif native:
            case, why = NATIVE_CASE, ""
        else:
            what = f"{call.name}{_what(call)}"
            case, why = OWN_CASE, f"{backend} has none of its own that does {what} as it is meant; "
        if native and ranks == 1:
            return Decision(Pick(NATIVE), "there is but one rank")
        if call.individual:
            why += "each rank has its own number of bytes, and all must choose alike"
            name = NATIVE if native else fastest(call, names, self.network).algorithm
            return Decision(Pick(name), why)
        row = self.table.find(call.collective, case, call.nbytes)
        fits = native or self.table.near(self.shape)
        if row is not None and fits and row.pick.algorithm in names:
            return Decision(
                row.pick, f"{why}the fastest from {row.start} bytes on by {self.source}"
            )
        why += f"no table that fits was measured for this (there is {self.source})"
        if native:
            return Decision(Pick(NATIVE), why)
        name, seconds = fastest(call, names, self.network)
        if seconds < math.inf:
            why += (
                f"; of hpccomm's algorithms this one has the shortest estimated time, about "
                f"{seconds * 1e6:.3g} us on the network {self.network.name!r}"
            )
        return Decision(Pick(name), why)


def fastest(call: Signature, names: Sequence[str], network: Network) -> Estimated:
    """Return the algorithm that is estimated to be the fastest. Local; the same on every rank.

    Parameters
    ----------
    call : Signature
        The call.
    names : sequence of str
        The algorithms that are compared, as of `ranked`.
    network : Network
        The links between the ranks.
    """
    nbytes = UNEVEN_BYTES if call.individual else call.nbytes
    return ranked(network, call.collective, nbytes, names, DEFAULT_SEGMENT)[0]


def _what(call: Signature) -> str:
    if call.description.sends == "nothing":
        return ""
    if call.op is None:
        return f" of {call.dtype}"
    return f" of {name_of(call.op)} on {call.dtype}"
