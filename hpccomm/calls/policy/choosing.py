"""Chooses the algorithm of a call: a function of facts that are equal on all ranks.

The dispatches ask a `Policy`; perf and tune list the algorithms by it.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpccomm.calls.policy.table import (
    NATIVE_CASE,
    ORDERED_CASE,
    OWN_CASE,
    REGISTERED_CASE,
    Pick,
    Shape,
    Table,
)
from hpccomm.contracts.signature import Choice, Signature
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


def algorithm_of(call: Signature, choice: Choice) -> Algorithm:
    """Return the algorithm that was chosen for a call, which is not native."""
    found: Algorithm = choice.other or ALGORITHMS[call.collective][choice.algorithm]
    return found


def applicable(call: Signature, native: bool = False, shared: bool = False) -> tuple[str, ...]:
    """Return the names of hpccomm's own algorithms that ``algorithm=`` may take for this call.

    Parameters
    ----------
    call : Signature
        The call.
    native : bool
        Whether the backend has its own form of it. Then ``"native"`` is the first name, unless contributions must be
        folded in rank order.
    shared : bool
        Whether the ranks reach each other's memory.
    """
    algorithms = ALGORITHMS[call.collective].items()
    own = tuple(name for name, each in algorithms if not _misfit(call, each, shared))
    return (NATIVE, *own) if native and not call.deterministic else own


def _misfit(call: Signature, algorithm: Algorithm, shared: bool) -> str:
    """Return why an algorithm does not apply to a call; empty if it does."""
    if algorithm.shared and not shared:
        return "takes ranks that reach each other's memory"
    if algorithm.uniform and not call.uniform:
        return "takes blocks of one size"
    if call.deterministic and algorithm.ordered is None:
        return "has no form that folds contributions in rank order (Algorithm(..., ordered=...))"
    return ""


def asked_for(
    algorithm: Asked,
    setting: str,
    names: tuple[str, ...],
    call: Signature,
    over: str,
    shared: bool = False,
) -> tuple[str, Algorithm | None]:
    """Return the algorithm that a call asks for: one of `names`, `AUTO`, or another package's, with its description.

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
    shared : bool
        Whether the ranks reach each other's memory.

    Raises
    ------
    UsageError
        If `algorithm` does not apply; the message lists the ones that do.
    ConfigurationError
        If it is another package's, which cannot be imported.
    """
    asked = setting if algorithm is None else algorithm
    if asked == AUTO:
        return AUTO, None
    if not isinstance(asked, str):
        chosen = asked if isinstance(asked, Algorithm) else Algorithm(asked)
        name = _qualified(chosen.build)
    else:
        if asked in names:
            return asked, None
        known, others = KNOWN[call.collective], registered()[call.collective]
        if asked not in others:
            if algorithm is None:
                return AUTO, None
            fitting = [each for each in others if not _misfit(call, known[each], shared)]
            fits = ", ".join(repr(each) for each in (AUTO, *names, *fitting))
            advice = f"give one of {fits}"
            if asked not in NAMES:
                advice = did_you_mean(asked, (*names, *fitting), advice)
            raise UsageError(
                f"algorithm is {asked!r}, which does not apply to this {call.name} over {over}; {advice}"
            )
        name, chosen = asked, known[asked]
    misfit = _misfit(call, chosen, shared)
    if not misfit:
        return name, chosen
    if algorithm is None:
        return AUTO, None
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

    @property
    def shared(self) -> bool:
        """Whether the ranks reach each other's memory."""
        return self.shape.memory != "off" and self.shape.nodes == 1

    def decide(
        self, call: Signature, algorithm: Asked, native: bool = False, setting: str = AUTO
    ) -> Choice:
        """Choose the algorithm of a call on host arrays. It has the parameters that a table names for it.

        Parameters
        ----------
        call : Signature
            The call.
        algorithm, setting
            As for `asked_for`.
        native : bool
            Whether the backend has its own form of the call.

        Raises
        ------
        UsageError
            If `algorithm` does not apply; the message lists the ones that do.
        """
        names = applicable(call, native, self.shared)
        over = f"{self.shape.backend}{self._apart(call, algorithm)}"
        name, other = asked_for(algorithm, setting, names, call, over, self.shared)
        if name == AUTO:
            return self._automatic(call, names)
        pick = Pick(name)
        if not call.individual:
            pick = self.named(
                call.collective, name, call.nbytes, deterministic=bool(call.deterministic)
            )
        return self._choice(
            call, pick, f"as asked; {IN_ORDER}" if call.deterministic else "as asked", other
        )

    def _choice(
        self,
        call: Signature,
        pick: Pick,
        reason: str,
        other: Algorithm | None = None,
        registered: bool = False,
    ) -> Choice:
        name, segment, channels = pick
        return Choice(
            call.name,
            "host",
            self.shape.backend,
            name,
            segment or None,
            registered,
            reason,
            channels=channels,
            other=other,
        )

    def _on_registered(self, call: Signature, names: tuple[str, ...]) -> Choice | None:
        """Choose for registered arrays; None where they make no difference, or none is known."""
        if not (call.registered and self.shared and NATIVE in names):
            return None
        row = self.table.find(call.collective, REGISTERED_CASE, call.nbytes)
        if row is None or row.pick.algorithm not in names:
            return None
        known = ALGORITHMS[call.collective].get(row.pick.algorithm)
        if known is None or not (known.shared or known.direct):
            return None  # the arrays make no difference to its steps
        why = f"the fastest on registered arrays from {row.start} bytes on by {self.source}"
        return self._choice(call, row.pick, why, registered=True)

    def _apart(self, call: Signature, algorithm: Asked) -> str:
        """Return why an algorithm does not apply that needs shared memory, or ''."""
        known = None
        if isinstance(algorithm, str):
            known = ALGORITHMS[call.collective].get(algorithm)
        if known is None or self.shared or not known.shared:
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

    def _automatic(self, call: Signature, names: tuple[str, ...]) -> Choice:
        native = NATIVE in names
        backend, ranks = self.shape.backend, self.shape.ranks
        if call.deterministic:
            case, why = ORDERED_CASE, f"{IN_ORDER}; "
        elif native:
            case, why = NATIVE_CASE, ""
        else:
            what = f"{call.name}{_what(call)}"
            case, why = OWN_CASE, f"{backend} does not have its own {what} with this meaning; "
        if native and ranks == 1:
            return self._choice(call, Pick(NATIVE), "there is but one rank")
        if call.individual:
            why += "each rank has its own number of bytes, and all must choose alike"
            name = NATIVE if native else fastest(call, names, self.network()).algorithm
            return self._choice(call, Pick(name), why)
        on_registered = self._on_registered(call, names)
        if on_registered is not None:
            return on_registered
        row = self.table.find(call.collective, case, call.nbytes)
        fits = native or self.table.near(self.shape)
        if row is not None and fits:
            chosen, other = row.pick.algorithm, None
            if chosen not in names and chosen not in NAMES:  # another package's, as a table has it
                _, other = asked_for(None, chosen, names, call, "", self.shared)
            if chosen in names or other is not None:
                reason = f"{why}the fastest from {row.start} bytes on by {self.source}"
                return self._choice(call, row.pick, reason, other)
        why += f"no table that fits was measured for this (there is {self.source})"
        if native:
            return self._choice(call, Pick(NATIVE), why)
        name, seconds = fastest(call, names, self.network())
        if seconds < math.inf:
            why += (
                f"; of hpccomm's algorithms this one has the shortest estimated time, about "
                f"{seconds * 1e6:.3g} us on the network {self.network().name!r}"
            )
        return self._choice(call, Pick(name), why)


def rounded_up(nbytes: int) -> int:
    """Return the next power of two, for what all sizes of a class have in common."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def fastest(call: Signature, names: Sequence[str], network: "Network") -> "Estimated":
    """Return the algorithm that is estimated to be the fastest at the next power of two bytes. Local; the same on every rank.

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

    nbytes = UNEVEN_BYTES if call.individual else rounded_up(call.nbytes)
    return ranked(network, call.collective, nbytes, names, DEFAULT_SEGMENT)[0]


def _what(call: Signature) -> str:
    if call.description.sends == "nothing":
        return ""
    if call.op is None:
        return f" of {call.dtype}"
    return f" of {name_of(call.op)} on {call.dtype}"
