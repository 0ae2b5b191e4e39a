"""Measuring this machine for a table: each collective, over sizes, by every algorithm that applies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hpccomm.bench.perf.names import NO_OP, NO_TYPE
from hpccomm.bench.rows import rates
from hpccomm.bench.tune import building, timing
from hpccomm.bench.tune.calls import DTYPE, ROOT, Array, Call, arguments, even, how
from hpccomm.bench.tune.timing import Seconds
from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.dispatch.policy import NATIVE, Pick, TableRows
from hpccomm.dispatch.policy.table import NATIVE_CASE, ORDERED_CASE, OWN_CASE
from hpccomm.errors import UsageError
from hpccomm.results.schema import UNCHECKED, Row
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.terms import ranked
from hpccomm.settings import DEFAULT_SEGMENT

HOPELESS = 1.6
"""A way that a first look finds so many times slower than the fastest is not looked at again."""

MOST_WAYS = 4
"""Ways that are measured at a size after the first look, of all and of hpccomm's own."""

SETTLED = 1 << 20
"""Bytes from which on a way that was far slower at the size before is not tried."""

FAR = 3.0
"""How many times slower that is."""

PROBES = (8, 16 << 10, 1 << 20, 64 << 20)
"""Bytes at which algorithms are compared by their estimated times, to leave out those far from the best."""

SENSIBLE = 2
"""Algorithms that are tried of those with the shortest estimated times at each of these sizes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long is measured.

    Attributes
    ----------
    blocks : int
        How often each way is timed at a size.
    seconds : float
        About how long each time.
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
        About the seconds of a call, by each way that was looked at.
    seconds : dict of Pick to float
        Of a call, by each way that was measured.
    samples : dict of Pick to ndarray of float64, shape (blocks, ranks)
        What these were taken from.
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
        How long is measured.
    every : bool
        Whether each algorithm is tried; otherwise those that are known to be good somewhere.
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
        self,
        collective: str,
        sizes: Sequence[int],
        *,
        deterministic: bool,
        tell: Callable[[Finding], None],
    ) -> list[Finding]:
        """Measure a collective at `sizes`, and between those where the fastest way changes.

        Collective; blocks. The findings are the same on all ranks, ascending.
        """
        found: list[Finding] = []
        rounded = {even(collective, size, self.comm.size) for size in sizes}
        for size in sorted(rounded - {0}) or [0]:
            found.append(self._measure(collective, size, deterministic, found[-1:]))
            tell(found[-1])
        between = {
            even(collective, size, self.comm.size)
            for rows in cases(found, deterministic).values()
            for size in building.changes(rows, [each.nbytes for each in found])
        }
        for size in sorted(between - {each.nbytes for each in found}):
            found.append(self._measure(collective, size, deterministic, []))
            tell(found[-1])
        return sorted(found, key=lambda finding: finding.nbytes)

    def _measure(
        self, collective: str, nbytes: int, deterministic: bool, smaller: list[Finding]
    ) -> Finding:
        ways = self.ways(collective, nbytes, deterministic)
        for before in smaller if nbytes > SETTLED else ():
            near = _near(before.ideas, FAR)
            ways = {pick: call for pick, call in ways.items() if pick in near}
        ideas = timing.first(self.comm, ways)
        kept = _near(ideas, HOPELESS, MOST_WAYS)
        samples = self.repeated({pick: call for pick, call in ways.items() if pick in kept}, ideas)
        seconds = {pick: timing.typical(each) for pick, each in samples.items()}
        return Finding(nbytes, ideas, seconds, samples)

    def repeated(
        self, ways: Mapping[Pick, Call], ideas: Mapping[Pick, float]
    ) -> dict[Pick, Seconds]:
        """Time calls in turns; `ideas` holds about how many seconds each takes. Collective."""
        effort = self._effort
        return timing.repeated(self.comm, ways, ideas, blocks=effort.blocks, seconds=effort.seconds)

    def ways(self, collective: str, nbytes: int, deterministic: bool) -> dict[Pick, Call]:
        """Return the ways of a call. Local."""
        found: dict[Pick, Call] = {}
        for segment, comm in self._comms.items():
            args, keywords = arguments(comm, collective, nbytes, self.memory)
            for name in self._names(collective):
                asked = keywords | how(collective, name, deterministic=deterministic)
                try:
                    choice = comm.explain(collective, *args, **asked)
                except UsageError:  # it does not apply
                    continue
                pick = Pick(name)
                if name != NATIVE:
                    pick = comm.policy.named(collective, name, nbytes, deterministic=deterministic)
                if segment:
                    if choice.segment is None:  # it is not cut: the same as without
                        continue
                    pick = pick._replace(segment=segment)
                if pick not in found:
                    found[pick] = partial(getattr(comm, collective), *args, **asked)
        return found

    def _names(self, collective: str) -> list[str]:
        """Return the algorithms that are tried."""
        network = self.comm.policy.network
        by_messages = [name for name, each in ALGORITHMS[collective].items() if not each.shared]
        sensible = {"shm", "hierarchical" if self.comm.num_nodes > 1 else "shm"}
        for nbytes in PROBES:
            best = ranked(network, collective, nbytes, by_messages, DEFAULT_SEGMENT)
            sensible.update(each.algorithm for each in best[:SENSIBLE])
        own = [name for name in ALGORITHMS[collective] if self._every or name in sensible]
        return [NATIVE, *own]


def _near(ideas: Mapping[Pick, float], factor: float, most: int | None = None) -> set[Pick]:
    """Return the ways within a factor of the fastest, of all and of hpccomm's own; native always."""
    by_speed = sorted(ideas, key=lambda pick: ideas[pick])
    own = [pick for pick in by_speed if pick.algorithm != NATIVE]
    kept = {pick for pick in by_speed if pick.algorithm == NATIVE}
    for picks in (by_speed, own):
        near = [pick for pick in picks if ideas[pick] <= factor * ideas[picks[0]]]
        kept.update(near[:most])
    return kept


def cases(found: Sequence[Finding], deterministic: bool) -> dict[str, TableRows]:
    """Return the rows of a collective for each case that was measured."""
    everything = [(each.nbytes, each.seconds) for each in found]
    if deterministic:
        return {ORDERED_CASE: building.rows(everything)}
    own = [
        (nbytes, {pick: took for pick, took in seconds.items() if pick.algorithm != NATIVE})
        for nbytes, seconds in everything
    ]
    rows = {OWN_CASE: building.rows(own)}
    if any(pick.algorithm == NATIVE for _, seconds in everything for pick in seconds):
        rows[NATIVE_CASE] = building.rows(everything)
    return rows


def stored(
    comm: Communicator, collective: str, finding: Finding, *, deterministic: bool
) -> Iterator[tuple[Row, Seconds]]:
    """Yield the rows of a results file for what was measured at one size."""
    what = DESCRIPTIONS[collective]
    for pick, samples in finding.samples.items():
        seconds = timing.typical(samples)
        yield (
            Row(
                collective,
                comm.backends["host"] or "",
                spelled(pick) + (" ordered" if deterministic else ""),
                NO_TYPE if what.sends == "nothing" else "float",
                "sum" if what.reduces else NO_OP,
                root=ROOT if what.rooted else -1,
                bytes=finding.nbytes,
                count=finding.nbytes // DTYPE.itemsize,
                in_place=what.sends == what.receives == "whole",
                time=seconds * 1e6,
                wrong=UNCHECKED,
                iterations=len(samples),
                **rates(finding.nbytes, seconds, what.bus_factor(comm.size)),
            ),
            samples,
        )


def spelled(pick: Pick) -> str:
    """Return a pick as it is printed: its algorithm, segment and channels, but for defaults."""
    name, segment, channels = pick
    return (
        f"{name}/{segment or ''}/{channels}" if channels else f"{name}/{segment}".removesuffix("/0")
    )
