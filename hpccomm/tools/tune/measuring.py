"""The measurement of this machine for a table: each collective, over sizes, by every algorithm that applies.

`hpccomm.tools.tune.tune` calls it for each collective. The measured calls are on float32, and reductions are sums.
In the end `auto` is measured with the new table, and compared with the best fixed choices, measured again.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.policy import AUTO, NATIVE, Policy
from hpccomm.calls.tuning_table import (
    NATIVE_CASE,
    ORDERED_CASE,
    OWN_CASE,
    REGISTERED_CASE,
    Pick,
    TableRow,
    TableRows,
)
from hpccomm.communicator import Communicator
from hpccomm.contracts.collectives import DESCRIPTIONS, REDUCTIONS, Collective
from hpccomm.errors import UsageError
from hpccomm.results.schema import UNCHECKED, Row
from hpccomm.schedules.algorithms import ALGORITHMS, registered
from hpccomm.schedules.cost.terms import ranked
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.tools.perf.facts import figures
from hpccomm.tools.perf.isolated import back_to_back
from hpccomm.tools.perf.options import Sizes
from hpccomm.tools.perf.patterns import NO_OP, NO_TYPE

Array = NDArray[Any]
Call = Callable[[], object]

DTYPE = np.dtype(np.float32)
ROOT = 0

_FORMS = {ORDERED_CASE: "contributions in rank order", REGISTERED_CASE: "registered arrays"}
"""The forms of calls that have their own cases in tables, with their difference from plain calls."""


def arrays(nbytes: int, comm: Communicator | None = None) -> tuple[Array, Array]:
    """Return two arrays for calls of up to `nbytes`. They are written to, so that the system has provided the memory.

    With a communicator, they are its registered memory.
    """
    count = nbytes // DTYPE.itemsize
    empty = np.empty if comm is None else comm.empty
    memory = tuple(empty((count,), DTYPE) for _ in range(2))
    for each in memory:
        each.fill(0)
    return memory[0], memory[1]


def policy_of(comm: Communicator) -> Policy:
    """Return the policy that chooses algorithms for a communicator's calls on host arrays."""
    return comm._core.lanes.host.dispatch.policy  # noqa: SLF001 (tuning makes the tables that it reads)


@dataclass(frozen=True, slots=True)
class TunedCall:
    """A call that is tuned.

    Attributes
    ----------
    collective : str
        Name of the collective.
    form : str
        `ORDERED_CASE` or `REGISTERED_CASE`; empty for plain calls.
    """

    collective: str
    form: str = ""

    @property
    def what(self) -> Collective:
        """The description of the collective."""
        return DESCRIPTIONS[self.collective]

    @property
    def difference(self) -> str:
        """Its difference from plain calls of the collective, in words; empty for a plain call."""
        return _FORMS.get(self.form, "")

    def case(self, *, native: bool) -> str:
        """Return its case in tables. `native` is whether the backend has an algorithm of its own for it."""
        return self.form or (NATIVE_CASE if native else OWN_CASE)

    def even(self, nbytes: int, ranks: int) -> int:
        """Return the largest size that the call can have, up to `nbytes`."""
        unit = DTYPE.itemsize * (ranks if self.what.blockwise else 1)
        return nbytes // unit * unit

    def arguments(
        self, comm: Communicator, nbytes: int, memory: tuple[Array, Array], algorithm: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, by position and by keyword.

        All arrays hold zeros, and sums of zeros are zeros. All-reduce, reduce, broadcast and scan are in
        place, the others out of place.

        Parameters
        ----------
        comm : Communicator
            The communicator that makes the call.
        nbytes : int
            Size of the larger array of a rank, as `even` returns it.
        memory : tuple of two ndarray
            The result of `arrays`.
        algorithm : str
            Name of the algorithm.
        """
        what, (x, y) = self.what, memory
        keywords: dict[str, Any] = {"algorithm": algorithm}
        if self.form == ORDERED_CASE:
            keywords["deterministic"] = True
        if not what.moves:
            return (), keywords
        if what.rooted:
            keywords["root"] = ROOT
        count = nbytes // DTYPE.itemsize
        if not what.blockwise:
            whole = x[:count]
            if what.in_place == "on request":
                keywords["out"] = whole
            return (whole,), keywords
        block = count // comm.size
        lengths = {"block": block, "blocks": block * comm.size}
        sends, receives = what.uses(comm.rank, ROOT)
        keywords["out"] = y[: lengths[what.receives]] if receives else None
        return (x[: lengths[what.sends]] if sends else None,), keywords


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The request of a tuning run.

    Attributes
    ----------
    collectives : tuple of str
        The collectives.
    sizes : Sizes
        Bytes of the larger array of a rank.
    blocks : int
        Number of blocks of calls in which each candidate is timed at a size.
    seconds : float
        The approximate duration of a block.
    segments : tuple of int
        Bytes that algorithms move at a time, in addition to the built-in table's segments.
    deterministic : bool
        Whether reductions are measured with contributions in rank order as well.
    registered : bool
        Whether calls on registered arrays are measured as well.
    every : bool
        Whether to try every algorithm, or only those with short estimated times.
    verify : bool
        Whether `auto` is measured by the new table.
    output : Path
        The results file.
    """

    collectives: tuple[str, ...]
    sizes: Sizes
    blocks: int
    seconds: float
    segments: tuple[int, ...]
    deterministic: bool
    registered: bool
    every: bool
    verify: bool
    output: Path

    def calls(self) -> list[TunedCall]:
        """Return the calls: the collectives, then those in rank order, and those on registered arrays."""
        plain = [TunedCall(name) for name in self.collectives]
        ordered = [TunedCall(name, ORDERED_CASE) for name in self.collectives if name in REDUCTIONS]
        registered = [
            TunedCall(each.collective, REGISTERED_CASE) for each in plain if each.what.moves
        ]
        return plain + ordered * self.deterministic + registered * self.registered

    def first_sizes(self, call: TunedCall) -> list[int]:
        """Return the sizes of the first round."""
        return list(self.sizes.measured(DTYPE.itemsize)) if call.what.moves else [0]


CHANGE = math.log(1.1)
"""Least gain over all sizes for which the pick changes: the logarithm of a time ratio."""

LIMIT = math.log(1.05)
"""Logarithmic loss against the fastest pick of a size beyond which a pick's loss counts more."""

WEIGHT = 10.0
"""The additional weight of the part of a loss that is beyond `LIMIT`."""

OWN = math.log(1.02)
"""Least gain at a size, as a logarithm of a time ratio, for which an algorithm of hpccomm replaces the library's
own call, which lets other threads run Python while it waits."""

Times = Sequence[tuple[int, Mapping[Pick, float]]]
"""Pairs of a size in bytes and the seconds of each pick that was measured there, in ascending order."""


def rows(times: Times) -> TableRows:
    """Return rows whose picks are close to the fastest at every size, with few changes.

    The rows are the sequence of picks with the least cost. The cost is the sum of the logarithmic losses
    against the fastest pick of each size, and of a constant for each change. Because of this constant,
    noise between picks of about the same speed causes no change. The sequence is found by dynamic
    programming (A. J. Viterbi, "Error bounds for convolutional codes and an asymptotically optimum
    decoding algorithm", 1967).

    If two neighboring sizes have different picks, the second row starts at the geometric mean of the sizes.
    """
    picks = sorted({pick for _, measured in times for pick in measured})
    preferred = np.array([0.0 if pick.algorithm == NATIVE else OWN for pick in picks])
    cost, before = np.zeros(len(picks)), []
    for _, measured in times:
        cheapest = int(cost.argmin())
        stays = cost <= cost[cheapest] + CHANGE
        before.append(np.where(stays, np.arange(len(picks)), cheapest))
        fastest = min(measured.values())
        lost = [loss(measured.get(pick, math.inf), fastest) for pick in picks]
        cost = np.minimum(cost, cost[cheapest] + CHANGE) + lost + preferred
    at, chosen = int(cost.argmin()), list[Pick]()
    for previous in reversed(before):
        chosen.insert(0, picks[at])
        at = int(previous[at])
    result = [TableRow(0, chosen[0])]
    sizes = [nbytes for nbytes, _ in times]
    for (below, old), (above, new) in pairwise(zip(sizes, chosen, strict=True)):
        if new != old:
            result.append(TableRow(round(math.sqrt(below * above)), new))
    return tuple(result)


def loss(seconds: float, fastest: float) -> float:
    """Return the logarithmic loss of a pick at a size; the part beyond `LIMIT` counts more."""
    lost = math.log(seconds / fastest)
    return lost + WEIGHT * max(0.0, lost - LIMIT)


def changes(rows: TableRows, sizes: Sequence[int]) -> list[int]:
    """Return further sizes to measure: one between each two neighboring sizes that have different picks.

    Between neighbors that differ by a factor of at most two, no size is needed.
    """
    between = []
    for row in rows[1:]:
        below = max((size for size in sizes if size < row.start), default=0)
        above = min(size for size in sizes if size >= row.start)
        if below and above > 2 * below:
            between.append(round(math.sqrt(below * above)))
    return between


Seconds = NDArray[np.float64]
Candidates = Mapping[Pick, Call]
"""The candidates for a call: a function for each algorithm, segment and number of channels."""

MOST_CALLS = 1000
"""The most calls of a block."""

HOPELESS = 1.6
"""A candidate that takes more than this many times as long as the fastest in the first, short measurement is
not measured again."""

MOST_CANDIDATES = 4
"""The most candidates that are measured again at a size, of all and of hpccomm's own."""

SETTLED = 1 << 20
"""From this size in bytes on, a candidate that was far slower at the size before is not tried."""

FAR = 3.0
"""A candidate is far slower if it takes more than this many times as long as the fastest."""

PROBES = (8, 16 << 10, 1 << 20, 64 << 20)
"""Sizes in bytes at which estimated times are compared, to leave out algorithms far from the best."""

SENSIBLE = 2
"""Number of algorithms, those with the shortest estimated times, that are tried at each of these sizes."""

SLOWER = 1.1
"""Ratio of the time of `auto` to that of the best fixed choice above which `auto` counts as slower."""

RIVALS = 3
"""Number of fixed choices, the fastest ones, against which `auto` is measured."""

TURNS = 3
"""Most measurements of a size, since `auto` may be slower in a single measurement by chance."""


@dataclass(frozen=True, slots=True)
class SizeTimes:
    """The measurements at one size.

    Attributes
    ----------
    nbytes : int
        The size.
    rough : dict of Pick to float
        Approximate seconds of a call, for each candidate of the first, short measurement.
    samples : dict of Pick to ndarray of float64, shape (blocks, ranks)
        Mean seconds of a call, for each candidate of the full measurement.
    """

    nbytes: int
    rough: dict[Pick, float]
    samples: dict[Pick, Seconds]

    @property
    def seconds(self) -> dict[Pick, float]:
        """Seconds of a call, for each candidate of the full measurement."""
        return {pick: typical(each) for pick, each in self.samples.items()}


def in_turns(
    comm: Communicator, candidates: Candidates, blocks: int, calls: Mapping[Pick, int]
) -> dict[Pick, Seconds]:
    """Time blocks of calls in turns, so that a change of the machine affects all candidates alike. Collective; blocks.

    Parameters
    ----------
    comm : Communicator
        The communicator of the ranks.
    candidates : mapping of Pick to callable
        The calls.
    blocks : int
        Number of blocks of each candidate.
    calls : mapping of Pick to int
        Number of calls of a block, the same on all ranks.

    Returns
    -------
    dict of Pick to ndarray of float64, shape (blocks, ranks)
        Mean seconds of a call; the same on all ranks.
    """
    own = np.empty((len(candidates), blocks))
    for block in range(blocks):
        for seconds, (pick, call) in zip(own, candidates.items(), strict=True):
            comm.barrier()
            seconds[block] = back_to_back([call] * calls[pick]).mean()
    times: Seconds = comm.all_gather(own, algorithm="ring")
    return dict(zip(candidates, np.moveaxis(times, 0, -1), strict=True))


def roughly(comm: Communicator, candidates: Candidates) -> dict[Pick, float]:
    """Return the approximate seconds of each candidate, the same on all ranks. Collective; blocks."""
    for call in candidates.values():  # the first use does more work than later ones
        call()
    times = in_turns(comm, candidates, 3, dict.fromkeys(candidates, 2))
    return {pick: float(seconds.max(axis=1).min()) for pick, seconds in times.items()}


def typical(samples: Seconds) -> float:
    """Return the lower quartile of the slowest rank's seconds.

    Other work on the machine only adds to a time. On a quiet machine the quartile is close to the median;
    on a busy one it is closer than the median to the time that the call itself needs.
    """
    return float(np.quantile(samples.max(axis=1), 0.25))


class Bench:
    """The communicators and arrays on which calls are measured.

    Parameters
    ----------
    comms : mapping of int to Communicator
        A communicator for each segment in bytes; 0 leaves segments and channels to the built-in table.
    request : TuneRequest
        The request. Its `blocks`, `seconds`, `registered` and `every` are used.
    largest : int
        Bytes of the largest array of a call.
    """

    def __init__(
        self, comms: Mapping[int, Communicator], request: TuneRequest, largest: int
    ) -> None:
        self._comms = comms
        self._request = request
        self.comm = next(iter(comms.values()))
        self._plain = arrays(largest)
        self._registered = arrays(largest, self.comm) if request.registered else self._plain

    def memory(self, call: TunedCall) -> tuple[Array, Array]:
        """Return the arrays of a call."""
        return self._registered if call.form == REGISTERED_CASE else self._plain

    def sweep(
        self, call: TunedCall, sizes: Sequence[int], report: Callable[[SizeTimes], None]
    ) -> list[SizeTimes]:
        """Measure a call at `sizes`, and at sizes between those where the fastest candidate changes.

        Collective; blocks. The times are the same on all ranks, in ascending order of size.
        """
        measured: dict[int, SizeTimes] = {}
        before: SizeTimes | None = None
        ranks = self.comm.size
        for size in sorted({call.even(size, ranks) for size in sizes} - {0}) or [0]:
            before = measured[size] = self._measure(call, size, before)
            report(before)
        between = {
            call.even(size, ranks)
            for rows in cases([*measured.values()], call).values()
            for size in changes(rows, [*measured])
        }
        for size in sorted(between - measured.keys()):
            measured[size] = self._measure(call, size, None)
            report(measured[size])
        return [measured[size] for size in sorted(measured)]

    def _measure(self, call: TunedCall, nbytes: int, smaller: SizeTimes | None) -> SizeTimes:
        candidates: Candidates = self.candidates(call, nbytes)
        if smaller is not None and nbytes > SETTLED:
            candidates = _near(candidates, smaller.rough, FAR)
        rough = roughly(self.comm, candidates)
        close = _near(candidates, rough, HOPELESS, MOST_CANDIDATES)
        return SizeTimes(nbytes, rough, self.repeated(close, rough))

    def repeated(self, candidates: Candidates, rough: Mapping[Pick, float]) -> dict[Pick, Seconds]:
        """Time calls in turns; `rough` holds the approximate seconds of each. Collective."""
        calls = {
            pick: min(MOST_CALLS, math.ceil(self._request.seconds / max(rough[pick], 1e-7)))
            for pick in candidates
        }
        return in_turns(self.comm, candidates, self._request.blocks, calls)

    def candidates(self, call: TunedCall, nbytes: int) -> dict[Pick, Call]:
        """Return the candidates for a call. Local."""
        result: dict[Pick, Call] = {}
        for segment, comm in self._comms.items():
            for name in self._names(call.collective):
                args, keywords = call.arguments(comm, nbytes, self.memory(call), name)
                try:
                    choice = comm.explain(call.collective, *args, **keywords)
                except UsageError:  # it does not apply
                    continue
                pick = Pick(name)
                if name != NATIVE:
                    pick = policy_of(comm).named(
                        call.collective, name, nbytes, deterministic=call.form == ORDERED_CASE
                    )
                if segment:
                    if choice.segment is None:  # it is not cut into segments: the same as without
                        continue
                    pick = pick._replace(segment=segment)
                result.setdefault(pick, partial(getattr(comm, call.collective), *args, **keywords))
        return result

    def _names(self, collective: str) -> list[str]:
        """Return the algorithms to try. Those of other packages have no estimate, so all of them are tried."""
        network = policy_of(self.comm).network()
        by_messages = [name for name, each in ALGORITHMS[collective].items() if not each.shared]
        sensible = {"shm", "hierarchical" if self.comm.num_nodes > 1 else "shm"}
        for nbytes in PROBES:
            best = ranked(network, collective, nbytes, by_messages, DEFAULT_SEGMENT)
            sensible.update(each.algorithm for each in best[:SENSIBLE])
        every = self._request.every
        own = [name for name in ALGORITHMS[collective] if every or name in sensible]
        return [NATIVE, *own, *registered()[collective]]


def _near(
    candidates: Candidates, rough: Mapping[Pick, float], factor: float, most: int | None = None
) -> Candidates:
    """Return the candidates within a factor of the fastest of all, or of hpccomm's fastest; and always the native one.

    With `most`, only that many of all candidates, and of hpccomm's, are returned. `rough` holds the seconds of each.
    """
    by_speed = sorted(rough, key=lambda pick: rough[pick])
    own = [pick for pick in by_speed if pick.algorithm != NATIVE]
    near = set(by_speed) - set(own)
    for picks in (by_speed, own):
        near.update([pick for pick in picks if rough[pick] <= factor * rough[picks[0]]][:most])
    return {pick: run for pick, run in candidates.items() if pick in near}


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The times of `auto` and of fixed choices at one size.

    Attributes
    ----------
    call : TunedCall
        The call.
    nbytes : int
        The size.
    seconds : float
        Seconds of a call by `auto`.
    fixed : dict of Pick to float
        Seconds of a call by the fastest fixed choices and by the backend's own algorithm.
    chosen : Pick
        The choice of `auto` at this size.
    """

    call: TunedCall
    nbytes: int
    seconds: float
    fixed: dict[Pick, float]
    chosen: Pick

    @property
    def best(self) -> Pick:
        """The fastest fixed choice."""
        return min(self.fixed, key=lambda pick: self.fixed[pick])

    @property
    def ratio(self) -> float:
        """The time of `auto` over that of the fastest fixed choice."""
        return self.seconds / self.fixed[self.best]

    @property
    def slower(self) -> bool:
        """Whether `auto` took more than `SLOWER` times as long as the best fixed choice.

        If the best choice is that of `auto`, both times are of the same calls, and differ by noise.
        """
        return self.best != self.chosen and self.ratio > SLOWER


def confirm(bench: Bench, tuned: Communicator, call: TunedCall, times: SizeTimes) -> Confirmation:
    """Measure `auto` and its rivals, in turns, at one size. Collective; blocks.

    Parameters
    ----------
    bench : Bench
        Measures the fixed choices.
    tuned : Communicator
        A communicator that uses the new table.
    call : TunedCall
        The call.
    times : SizeTimes
        The earlier measurement of the size.
    """
    candidates = bench.candidates(call, times.nbytes)
    rough = {pick: took for pick, took in times.seconds.items() if pick in candidates}
    fastest = sorted(rough, key=lambda pick: rough[pick])[:RIVALS]
    runs = {pick: candidates[pick] for pick in rough if pick in fastest or pick.algorithm == NATIVE}
    # If the backend has no algorithm of its own, the table's case is another one.
    native = any(pick.algorithm == NATIVE for pick in candidates)
    row = policy_of(tuned).table.find(call.collective, call.case(native=native), times.nbytes)
    automatic, chosen = Pick(AUTO), Pick(AUTO) if row is None else row.pick
    args, keywords = call.arguments(tuned, times.nbytes, bench.memory(call), AUTO)
    runs[automatic] = partial(getattr(tuned, call.collective), *args, **keywords)
    rough[automatic] = rough[fastest[0]]
    roughly(bench.comm, runs)
    samples = {pick: np.empty((0, bench.comm.size)) for pick in runs}
    for _ in range(TURNS):
        more = bench.repeated(runs, rough)
        samples = {pick: np.concatenate([each, more[pick]]) for pick, each in samples.items()}
        seconds = {pick: typical(each) for pick, each in samples.items()}
        confirmation = Confirmation(call, times.nbytes, seconds.pop(automatic), seconds, chosen)
        if not confirmation.slower:
            break
    return confirmation


def cases(measured: Sequence[SizeTimes], call: TunedCall) -> dict[str, TableRows]:
    """Return the rows of a call for each case that was measured."""
    everything = [(each.nbytes, each.seconds) for each in measured]
    if call.form:
        return {call.form: rows(everything)}
    own = [
        (nbytes, {pick: took for pick, took in seconds.items() if pick.algorithm != NATIVE})
        for nbytes, seconds in everything
    ]
    of_case = {OWN_CASE: rows(own)}
    if own != everything:
        of_case[NATIVE_CASE] = rows(everything)
    return of_case


def stored(comm: Communicator, call: TunedCall, times: SizeTimes) -> Iterator[tuple[Row, Seconds]]:
    """Yield the rows of a results file, with their samples, for the measurements at one size."""
    what, nbytes = call.what, times.nbytes
    suffix, backend = call.form and f" {call.form}", comm.backends["host"] or ""
    type_name, op_name = "float" if what.moves else NO_TYPE, "sum" if what.reduces else NO_OP
    in_place = what.sends == what.receives == "whole"
    size = ROOT if what.rooted else -1, nbytes, nbytes // DTYPE.itemsize, in_place
    for pick, samples in times.samples.items():
        case = call.collective, backend, spelled(pick) + suffix, type_name, op_name, *size
        rates = figures(nbytes, typical(samples), what.bus_factor(comm.size))
        yield Row(*case, *rates, UNCHECKED, len(samples), time.time()), samples


def spelled(pick: Pick) -> str:
    """Return a pick as text: its algorithm, with segment and channels unless they are the default."""
    name, segment, channels = pick
    return (
        f"{name}/{segment or ''}/{channels}" if channels else f"{name}/{segment}".removesuffix("/0")
    )
