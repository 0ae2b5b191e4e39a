"""Chooses the algorithm of a call: a function of facts that are equal on all ranks.

The dispatches ask a `Policy`; perf and tune list the algorithms by it.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

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
from hpccomm.schedules.algorithms import ALGORITHMS, KNOWN, Algorithm, Asked, registered
from hpccomm.schedules.algorithms import names as algorithm_names
from hpccomm.settings import DEFAULT_SEGMENT

if TYPE_CHECKING:
    from hpccomm.schedules.cost.network import Network
    from hpccomm.schedules.cost.terms import Estimated

NATIVE = "native"
AUTO = "auto"

UNEVEN_BYTES = 1 << 20
"""The bytes for estimates if each rank has its own number: all must choose alike."""

NAMES = (AUTO, NATIVE, *sorted({name for each in ALGORITHMS.values() for name in each}))
"""Every name that ``algorithm=`` may have in some call, of hpccomm's own algorithms."""


def names() -> tuple[str, ...]:
    """Return every name that ``algorithm=`` may have in some call, also of other packages."""
    return (AUTO, NATIVE, *algorithm_names())


IN_ORDER = (
    "contributions are folded in rank order, and the algorithm only moves them and the result"
)


class PolicyChoice(NamedTuple):
    """An algorithm with its parameters, or `AUTO`, and why.

    `other` is it, if it is not hpccomm's own. It may be chosen because the arrays are `registered`.
    """

    pick: Pick
    reason: str = ""
    other: Algorithm | None = None
    registered: bool = False

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.pick.algorithm

    def schedule_of(self, collective: str) -> Algorithm:
        """Return the algorithm, which is not native."""
        return self.other or ALGORITHMS[collective][self.algorithm]


class Conditions(NamedTuple):
    """The demands of a call on its algorithm, and the means of the ranks.

    Attributes
    ----------
    deterministic : bool
        Whether contributions must be folded in rank order.
    native : bool
        Whether the backend has its own form of the call.
    shared : bool
        Whether the ranks reach each other's memory.
    """

    deterministic: bool
    native: bool = False
    shared: bool = False


_REGISTERED_COUNTS = Conditions(deterministic=False, native=True, shared=True)
"""Conditions in which registered arrays may make a difference."""


def applicable(call: Signature, conditions: Conditions) -> tuple[str, ...]:
    """Return the names of hpccomm's own algorithms that ``algorithm=`` may take for this call."""
    algorithms = ALGORITHMS[call.collective].items()
    own = tuple(name for name, each in algorithms if not _misfit(call, each, conditions))
    return (NATIVE, *own) if conditions.native and not conditions.deterministic else own


def _misfit(call: Signature, algorithm: Algorithm, conditions: Conditions) -> str:
    """Return why an algorithm does not apply to a call; empty if it does."""
    if algorithm.shared and not conditions.shared:
        return "takes ranks that reach each other's memory"
    if algorithm.uniform and not call.uniform:
        return "takes blocks of one size"
    if conditions.deterministic and algorithm.ordered is None:
        return "has no form that folds contributions in rank order (Algorithm(..., ordered=...))"
    return ""


def asked_for(
    algorithm: Asked,
    setting: str,
    names: tuple[str, ...],
    call: Signature,
    over: str,
    conditions: Conditions,
) -> PolicyChoice:
    """Return the algorithm of a call: one of `names`, `AUTO`, or another package's.

    Parameters
    ----------
    algorithm : str, Algorithm, callable or None
        The user's argument. None is the communicator's setting, for calls that have such an algorithm.
    setting : str
        The communicator's.
    names : tuple of str
        The names that apply, of hpccomm's own algorithms.
    call : Signature
        The call.
    over : str
        What carries it, for the error.
    conditions : Conditions
        Those of the call.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists the ones that do.
    ConfigurationError
        If it is another package's, which cannot be imported.
    """
    asked = setting if algorithm is None else algorithm
    if asked == AUTO:
        return PolicyChoice(Pick(AUTO))
    if not isinstance(asked, str):
        chosen = asked if isinstance(asked, Algorithm) else Algorithm(asked)
        name = _qualified(chosen.build)
    else:
        if asked in names:
            return PolicyChoice(Pick(asked))
        known, others = KNOWN[call.collective], registered()[call.collective]
        if asked not in others:
            if algorithm is None:
                return PolicyChoice(Pick(AUTO))
            fitting = [each for each in others if not _misfit(call, known[each], conditions)]
            fits = ", ".join(repr(each) for each in (AUTO, *names, *fitting))
            advice = f"give one of {fits}"
            if asked not in NAMES:
                advice = did_you_mean(asked, (*names, *fitting), advice)
            raise UsageError(
                f"algorithm is {asked!r}, which does not apply to this {call.name} over {over}; {advice}"
            )
        name, chosen = asked, known[asked]
    misfit = _misfit(call, chosen, conditions)
    if not misfit:
        return PolicyChoice(Pick(name), other=chosen)
    if algorithm is None:
        return PolicyChoice(Pick(AUTO))
    fits = ", ".join(repr(each) for each in (AUTO, *names))
    raise UsageError(
        f"algorithm is {name!r}, which {misfit}, and does not apply to this {call.name} over {over}; "
        f"give one of {fits}"
    )


def _qualified(build: object) -> str:
    """Return the name of a function that makes schedules: equal on all ranks."""
    inner = getattr(build, "func", build)  # of a functools.partial
    name = getattr(inner, "__qualname__", type(inner).__name__)
    return f"{getattr(inner, '__module__', '')}.{name}".lstrip(".")


class Policy(NamedTuple):
    """Chooses for the calls of one communicator. The same on all its ranks.

    Attributes
    ----------
    shape : Shape
        Of the communicator.
    table : Table
        What ``"auto"`` goes by.
    source : str
        Where the table is from, in words.
    network : callable
        Returns what algorithms are compared on where the table does not fit: the links between the
        ranks. Always the same.
    """

    shape: Shape
    table: Table
    source: str
    network: Callable[[], "Network"]

    def decide(
        self,
        call: Signature,
        algorithm: Asked,
        conditions: Conditions,
        setting: str = AUTO,
    ) -> PolicyChoice:
        """Choose the algorithm of a call.

        Parameters
        ----------
        call : Signature
            The call.
        algorithm, conditions, setting
            As for `asked_for`.

        Raises
        ------
        UsageError
            If `algorithm` does not apply; the message lists the ones that do.
        """
        deterministic, names = conditions.deterministic, applicable(call, conditions)
        over = f"{self.shape.backend}{self._apart(call, algorithm, conditions.shared)}"
        pick, _, other, _ = asked_for(algorithm, setting, names, call, over, conditions)
        name = pick.algorithm
        if name == AUTO:
            return self._automatic(call, names, conditions)
        if not call.individual:
            pick = self.named(call.collective, name, call.nbytes, deterministic=deterministic)
        return PolicyChoice(pick, f"as asked; {IN_ORDER}" if deterministic else "as asked", other)

    def _on_registered(
        self, call: Signature, names: tuple[str, ...], conditions: Conditions
    ) -> PolicyChoice | None:
        """Choose for registered arrays; None where they make no difference, or none is known."""
        if not call.registered or conditions != _REGISTERED_COUNTS:
            return None
        row = self.table.find(call.collective, REGISTERED_CASE, call.nbytes)
        if row is None or row.pick.algorithm not in names:
            return None
        known = ALGORITHMS[call.collective].get(row.pick.algorithm)
        if known is None or not (known.shared or known.direct):
            return None  # the arrays make no difference to its steps
        why = f"the fastest on registered arrays from {row.start} bytes on by {self.source}"
        return PolicyChoice(row.pick, why, registered=True)

    def _apart(self, call: Signature, algorithm: Asked, shared: bool) -> str:
        """Return why an algorithm does not apply that needs shared memory, or ''."""
        known = None
        if isinstance(algorithm, str):
            known = ALGORITHMS[call.collective].get(algorithm)
        if known is None or shared or not known.shared:
            return ""
        if self.shape.nodes > 1:
            return f" on {self.shape.nodes} nodes, each with its own memory"
        return " between ranks that do not all share memory (HPCCOMM_SHARED_MEMORY=off?)"

    def named(
        self, collective: str, algorithm: str, nbytes: int, *, deterministic: bool = False
    ) -> Pick:
        """Return how an algorithm that a call names is run: as the table has it near that size."""
        cases = (ORDERED_CASE,) if deterministic else (NATIVE_CASE, OWN_CASE)
        return self.table.tuned(collective, cases, algorithm, nbytes)

    def _automatic(
        self, call: Signature, names: tuple[str, ...], conditions: Conditions
    ) -> PolicyChoice:
        native = NATIVE in names
        backend, ranks = self.shape.backend, self.shape.ranks
        if conditions.deterministic:
            case, why = ORDERED_CASE, f"{IN_ORDER}; "
        elif native:
            case, why = NATIVE_CASE, ""
        else:
            what = f"{call.name}{_what(call)}"
            case, why = OWN_CASE, f"{backend} does not have its own {what} with this meaning; "
        if native and ranks == 1:
            return PolicyChoice(Pick(NATIVE), "there is but one rank")
        if call.individual:
            why += "each rank has its own number of bytes, and all must choose alike"
            name = NATIVE if native else fastest(call, names, self.network()).algorithm
            return PolicyChoice(Pick(name), why)
        on_registered = self._on_registered(call, names, conditions)
        if on_registered is not None:
            return on_registered
        row = self.table.find(call.collective, case, call.nbytes)
        fits = native or self.table.near(self.shape)
        if row is not None and fits:
            chosen, other = row.pick.algorithm, None
            if chosen not in names and chosen not in NAMES:  # another package's, as a table has it
                other = asked_for(None, chosen, names, call, "", conditions).other
            if chosen in names or other is not None:
                reason = f"{why}the fastest from {row.start} bytes on by {self.source}"
                return PolicyChoice(row.pick, reason, other)
        why += f"no table that fits was measured for this (there is {self.source})"
        if native:
            return PolicyChoice(Pick(NATIVE), why)
        name, seconds = fastest(call, names, self.network())
        if seconds < math.inf:
            why += (
                f"; of hpccomm's algorithms this one has the shortest estimated time, about "
                f"{seconds * 1e6:.3g} us on the network {self.network().name!r}"
            )
        return PolicyChoice(Pick(name), why)


def fastest(call: Signature, names: Sequence[str], network: "Network") -> "Estimated":
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
    from hpccomm.schedules.cost.terms import ranked  # where a table says, no price is needed

    nbytes = UNEVEN_BYTES if call.individual else call.nbytes
    return ranked(network, call.collective, nbytes, names, DEFAULT_SEGMENT)[0]


def _what(call: Signature) -> str:
    if call.description.sends == "nothing":
        return ""
    if call.op is None:
        return f" of {call.dtype}"
    return f" of {name_of(call.op)} on {call.dtype}"
