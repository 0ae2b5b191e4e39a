"""Measures this machine for a table: each collective, over sizes, by every algorithm that applies."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpccomm.bench.perf.names import NO_OP, NO_TYPE
from hpccomm.bench.rows import figures
from hpccomm.bench.tune import building, timing
from hpccomm.bench.tune.calls import DTYPE, ROOT, Array, Call, TunedCall
from hpccomm.bench.tune.timing import Seconds
from hpccomm.communicator import Communicator
from hpccomm.dispatch.policy import NATIVE, Pick, TableRows
from hpccomm.dispatch.policy.table import NATIVE_CASE, ORDERED_CASE, OWN_CASE, REGISTERED_CASE
from hpccomm.errors import UsageError
from hpccomm.results.schema import UNCHECKED, Row
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.terms import ranked
from hpccomm.schedules.registry import registered
from hpccomm.settings import DEFAULT_SEGMENT

HOPELESS = 1.6
"""A way that takes more than this many times as long as the fastest in the first, short measurement is
not measured again."""

MOST_WAYS = 4
"""The most ways that are measured again at a size, of all and of hpccomm's own."""

SETTLED = 1 << 20
"""From this size in bytes on, a way that was far slower at the size before is not tried."""

FAR = 3.0
"""A way is far slower if it takes more than this many times as long as the fastest."""

PROBES = (8, 16 << 10, 1 << 20, 64 << 20)
"""Sizes in bytes at which estimated times are compared, to leave out algorithms far from the best."""

SENSIBLE = 2
"""At each of these sizes, this many algorithms with the shortest estimated times are tried."""


_SUFFIXES = {ORDERED_CASE: " ordered", REGISTERED_CASE: " registered"}
"""What follows the algorithm in a results file."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time the measurement takes.

    Attributes
    ----------
    blocks : int
        How often each way is timed at a size.
    seconds : float
        The approximate duration of each of these times.
    """

    blocks: int
    seconds: float


@dataclass(slots=True)
class Finding:
    """What was measured at one size.

    Attributes
    ----------
    nbytes : int
        The size.
    ideas : dict of Pick to float
        Approximate seconds of a call, by each way that was tried.
    seconds : dict of Pick to float
        Seconds of a call, by each way that was measured in full.
    samples : dict of Pick to ndarray of float64, shape (blocks, ranks)
        The times from which `seconds` were computed.
    """

    nbytes: int
    ideas: dict[Pick, float]
    seconds: dict[Pick, float]
    samples: dict[Pick, Seconds]


class Bench:
    """Communicators with the arrays that calls are measured on.

    Parameters
    ----------
    comms : mapping of int to Communicator
        One for each segment in bytes; 0 leaves segments and channels to the built-in table.
    memory : tuple of two ndarray
        For the calls.
    effort : Effort
        How much time the measurement takes.
    every : bool
        Whether to try every algorithm, or only those with short estimated times.
    """

    def __init__(
        self,
        comms: Mapping[int, Communicator],
        memory: tuple[Array, Array],
        effort: Effort,
        *,
        every: bool,
    ) -> None:
        self._every = every
        self._comms = comms
        self.memory = memory
        self._effort = effort
        self.comm = next(iter(comms.values()))

    def sweep(
        self, call: TunedCall, sizes: Sequence[int], tell: Callable[[Finding], None]
    ) -> list[Finding]:
        """Measure a call at `sizes`, and at sizes between those where the fastest way changes.

        Collective; blocks. The findings are the same on all ranks, in ascending order of size.
        """
        found: list[Finding] = []
        ranks = self.comm.size
        for size in sorted({call.even(size, ranks) for size in sizes} - {0}) or [0]:
            found.append(self._measure(call, size, found[-1:]))
            tell(found[-1])
        between = {
            call.even(size, ranks)
            for rows in cases(found, call).values()
            for size in building.changes(rows, [each.nbytes for each in found])
        }
        for size in sorted(between - {each.nbytes for each in found}):
            found.append(self._measure(call, size, []))
            tell(found[-1])
        return sorted(found, key=lambda finding: finding.nbytes)

    def _measure(self, call: TunedCall, nbytes: int, smaller: list[Finding]) -> Finding:
        ways = self.ways(call, nbytes)
        for before in smaller if nbytes > SETTLED else ():
            near = _near(before.ideas, FAR)
            ways = {pick: run for pick, run in ways.items() if pick in near}
        ideas = timing.first(self.comm, ways)
        kept = _near(ideas, HOPELESS, MOST_WAYS)
        samples = self.repeated({pick: run for pick, run in ways.items() if pick in kept}, ideas)
        seconds = {pick: timing.typical(each) for pick, each in samples.items()}
        return Finding(nbytes, ideas, seconds, samples)

    def repeated(
        self, ways: Mapping[Pick, Call], ideas: Mapping[Pick, float]
    ) -> dict[Pick, Seconds]:
        """Time calls in turns; `ideas` holds the approximate seconds of each. Collective."""
        effort = self._effort
        return timing.repeated(self.comm, ways, ideas, blocks=effort.blocks, seconds=effort.seconds)

    def ways(self, call: TunedCall, nbytes: int) -> dict[Pick, Call]:
        """Return the ways to carry out a call. Local."""
        found: dict[Pick, Call] = {}
        for segment, comm in self._comms.items():
            for name in self._names(call.collective):
                args, keywords = call.arguments(comm, nbytes, self.memory, name)
                try:
                    choice = comm.explain(call.collective, *args, **keywords)
                except UsageError:  # it does not apply
                    continue
                pick = Pick(name)
                if name != NATIVE:
                    pick = comm.policy.named(
                        call.collective, name, nbytes, deterministic=call.deterministic
                    )
                if segment:
                    if choice.segment is None:  # it is not cut: the same as without
                        continue
                    pick = pick._replace(segment=segment)
                if pick not in found:
                    found[pick] = partial(getattr(comm, call.collective), *args, **keywords)
        return found

    def _names(self, collective: str) -> list[str]:
        """Return the algorithms that are tried: those of other packages have no terms, and all are."""
        network = self.comm.policy.network
        by_messages = [name for name, each in ALGORITHMS[collective].items() if not each.shared]
        sensible = {"shm", "hierarchical" if self.comm.num_nodes > 1 else "shm"}
        for nbytes in PROBES:
            best = ranked(network, collective, nbytes, by_messages, DEFAULT_SEGMENT)
            sensible.update(each.algorithm for each in best[:SENSIBLE])
        own = [name for name in ALGORITHMS[collective] if self._every or name in sensible]
        return [NATIVE, *own, *registered()[collective]]


def _near(ideas: Mapping[Pick, float], factor: float, most: int | None = None) -> set[Pick]:
    """Return the ways within a factor of the fastest, of all and of hpccomm's own; native always."""
    by_speed = sorted(ideas, key=lambda pick: ideas[pick])
    own = [pick for pick in by_speed if pick.algorithm != NATIVE]
    kept = {pick for pick in by_speed if pick.algorithm == NATIVE}
    for picks in (by_speed, own):
        near = [pick for pick in picks if ideas[pick] <= factor * ideas[picks[0]]]
        kept.update(near[:most])
    return kept


def cases(found: Sequence[Finding], call: TunedCall) -> dict[str, TableRows]:
    """Return the rows of a call for each case that was measured."""
    everything = [(each.nbytes, each.seconds) for each in found]
    if call.deterministic or call.registered:
        return {call.case(native=True): building.rows(everything)}
    own = [
        (nbytes, {pick: took for pick, took in seconds.items() if pick.algorithm != NATIVE})
        for nbytes, seconds in everything
    ]
    rows = {OWN_CASE: building.rows(own)}
    if any(pick.algorithm == NATIVE for _, seconds in everything for pick in seconds):
        rows[NATIVE_CASE] = building.rows(everything)
    return rows


def stored(comm: Communicator, call: TunedCall, finding: Finding) -> Iterator[tuple[Row, Seconds]]:
    """Yield the rows of a results file for what was measured at one size."""
    what, nbytes = call.what, finding.nbytes
    suffix, backend = _SUFFIXES.get(call.case(native=True), ""), comm.backends["host"] or ""
    type_name, op_name = "float" if call.moves else NO_TYPE, "sum" if what.reduces else NO_OP
    in_place = what.sends == what.receives == "whole"
    size = ROOT if what.rooted else -1, nbytes, nbytes // DTYPE.itemsize, in_place
    for pick, samples in finding.samples.items():
        case = call.collective, backend, spelled(pick) + suffix, type_name, op_name, *size
        times = figures(nbytes, timing.typical(samples), what.bus_factor(comm.size))
        yield Row(*case, *times, UNCHECKED, len(samples), time.time()), samples


def spelled(pick: Pick) -> str:
    """Return a pick as it is printed: its algorithm, segment and channels, but for defaults."""
    name, segment, channels = pick
    return (
        f"{name}/{segment or ''}/{channels}" if channels else f"{name}/{segment}".removesuffix("/0")
    )
