"""The model of a recorded program, and its prediction in virtual time.

A model has the acts of each rank in some typical steps, as tables. The form is that of Dimemas' traces: seconds of
computation, and what is called between them. A change of the program is a function that returns another `ProgramModel`, with
other seconds of computation, other kinds of acts, or other prices of calls: `dataclasses.replace` and copies of the
two tables suffice.

`predict` replays the acts in the order in which they happen, as Dimemas does and LogGOPSim (T. Hoefler, T. Schneider,
A. Lumsdaine, "LogGOPSim: simulating large-scale applications in the LogGOPS model", 2010): ranks compute and wait for
events, and events for ranks.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS
from hpccomm.results.recording import (
    ASYNC,
    CALL_COLUMNS,
    Calls,
    CallSignature,
    CallWaits,
    Indices,
    Recording,
    roots,
    waits,
)
from hpccomm.tools.programs.steps import Bools, Floats, ProgramSteps, step_parts

Table = NDArray[np.void]

END, START, BESIDE, BLOCK, WAIT = range(5)
"""Kinds of acts: the end of a step; a call from which the program goes on; one that another thread makes while the program is
blocked; one that blocks it; and the wait for a call."""

ACT = np.dtype(
    [
        ("kind", "<i4"),  # END, START, BESIDE, BLOCK or WAIT
        ("event", "<i4"),  # the number of its event; -1 of END
        ("compute", "<f8"),  # seconds between the rank's act before and this one
        ("own", "<f8"),  # seconds that it takes of the rank, whatever the others do
        ("tail", "<f8"),  # seconds from the end of the event to the end on this rank
        ("call", "<i8"),  # the number of its call in the recording; -1 of END
        ("signature", "<i4"),  # the number of the signature of that call
        ("buffer", "<i8"),  # the memory of its array, as it was recorded
    ]
)
"""An act of a rank begins `compute` seconds after the one before it. How long it takes:

- START, BESIDE: `own` seconds.
- BLOCK: until `tail` seconds after the end of the event, and at least `own` seconds.
- WAIT: until `tail` seconds after the end of the event, and then `own` seconds.
"""

EVENT = np.dtype(
    [
        ("seconds", "<f8"),  # from its begin to its end, if it has its ranks' links for itself
        ("nbytes", "<i8"),  # of the larger array of a rank
        ("signature", "<i4"),  # the number of its signature, which may have other bytes
        ("source", "<i4"),  # the rank that begins it; -1: it begins when all its ranks have come
        ("queue", "<i4"),  # events of a queue take turns, in the order of the table; -1: no queue
        ("ranks", "<i4"),  # how many ranks make a call of it; 0 if that is not known
    ]
)
"""An event is a call of several ranks: a collective, or a message, which begins at its sender if that does not wait."""

SMALL = 4096
"""Bytes of a message whose sender does not wait in any network."""

MOST_ACTS = 20_000
"""The most acts of a model of several steps."""

WHOLE = 100_000
"""The most acts of one step that is modelled whole."""

BUCKET = 25 << 20
"""Bytes of gradients that are reduced together, as PyTorch's DistributedDataParallel does by default."""

BACKWARD = 2 / 3
"""The part of a step's computation that makes the gradients: twice as much as the forward pass."""

PIECES = 16
"""Pieces of a longer step that are modelled, as of a recording without steps."""


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """Typical steps of a program, one after the other.

    Attributes
    ----------
    starts : ndarray of int64, shape (ranks + 1,)
        The first act of each rank, and behind the last one.
    acts : ndarray of ACT
        One rank's acts after the other's, in their order.
    events : ndarray of EVENT
        What the acts take part in.
    begins : ndarray of float64, shape (ranks,)
        Seconds at which each rank begins.
    signatures : tuple of CallSignature
        What calls have in common.
    steps : float
        Their number. Pieces of one step are a part of it.
    seconds : float
        How long a step took, as the mean over the steps and ranks.
    """

    starts: Indices
    acts: Table
    events: Table
    begins: Floats
    signatures: tuple[CallSignature, ...]
    steps: float
    seconds: float

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.begins)

    def rank(self) -> Indices:
        """Return the rank of each act."""
        return np.repeat(np.arange(self.ranks), np.diff(self.starts))

    def calls(self) -> Bools:
        """Return whether each act is a call."""
        return np.isin(self.acts["kind"], [START, BESIDE, BLOCK])

    def members(self) -> Indices:
        """Return how many calls each event has: one of each of its ranks."""
        return np.bincount(self.acts["event"][self.calls()], minlength=len(self.events))


def model(recording: Recording, steps: ProgramSteps, most: int = MOST_ACTS) -> ProgramModel:
    """Return the model of a recorded program.

    It has neighboring steps whose mean is the median, so that noise averages out. `most` acts limit their number. A
    step of more than `WHOLE`, such as a recording without steps, is modelled by `PIECES` of it.

    Parameters
    ----------
    recording : Recording
        The recording.
    steps : ProgramSteps
        Its steps.
    most : int, default 20000
        The most acts of several steps.
    """
    taken, each = steps.durations, max(1, recording.calls.count // len(steps))
    number = max(1, min(most // each, len(steps) // 2))
    sums = np.concatenate([[0.0], np.cumsum(taken)])
    means = (sums[number:] - sums[:-number]) / number
    first = int(np.argmin(np.abs(means - np.median(taken))))
    bounds = steps.bounds[first : first + number + 1]
    if each <= WHOLE:
        return modelled(recording, bounds)
    part = WHOLE / each
    return of_pieces([modelled(recording, each) for each in _pieces(bounds, part)], part)


def modelled(recording: Recording, bounds: Indices) -> ProgramModel:
    """Return the model of the steps between bounds, shape ``(steps + 1, ranks)``."""
    acts, events = _tables(recording, bounds)
    number = len(bounds) - 1
    return ProgramModel(
        np.searchsorted(acts["rank"], np.arange(recording.ranks + 1)),
        repack_fields(acts[list(ACT.names or ())]),
        events,
        (bounds[0] - bounds[0].min()) * 1e-9,
        recording.signatures,
        number,
        float((bounds[-1] - bounds[0]).mean()) * 1e-9 / number,
    )


def gradients(nbytes: int, compute: float, ranks: int, *, overlap: bool) -> ProgramModel:
    """Return the program of a step that computes and then has gradients reduced.

    Parameters
    ----------
    nbytes : int
        Bytes of all gradients.
    compute : float
        Seconds of computation.
    ranks : int
        Number of ranks.
    overlap : bool
        Whether buckets of gradients are reduced beside the backward pass, which takes two thirds of the computation
        and makes them one after the other, instead of all at once after it.
    """
    count = max(1, round(nbytes / BUCKET)) if overlap else 1
    acts = np.zeros(2 * count + 1, ACT)
    acts["kind"] = np.repeat([START, WAIT, END], [count, count, 1])
    acts["event"] = [*range(count), *range(count), -1]
    acts["compute"][:count] = compute * BACKWARD / count
    acts["compute"][0] += compute * (1 - BACKWARD)
    events = np.zeros(count, EVENT)
    events["nbytes"], events["source"] = nbytes // count, -1
    signature = CallSignature("all_reduce", 0, nbytes // count, ASYNC)
    starts, table = np.arange(ranks + 1) * len(acts), np.tile(acts, ranks)
    return ProgramModel(starts, table, events, np.zeros(ranks), (signature,), 1, compute)


def _pieces(bounds: Indices, part: float) -> Iterator[Indices]:
    """Yield the bounds of pieces of a step. Together they are a part of it, and they are spread evenly over it.

    A piece has the same bounds on all ranks. Each phase of the step has the share of the pieces that it has of the step.
    """
    first, last = bounds.min(), bounds.max()
    long = (last - first) / PIECES
    for begin in first + long * (np.arange(PIECES) + (1 - part) / 2):
        both = np.array([[begin], [begin + part * long]], np.int64)
        yield np.repeat(both, bounds.shape[1], axis=1)


def of_pieces(pieces: Sequence[ProgramModel], part: float) -> ProgramModel:
    """Return the model of pieces that are a part of a step, one after the other."""
    rank = np.concatenate([each.rank() for each in pieces])
    events = np.cumsum([0, *(len(each.events) for each in pieces)])
    acts = np.concatenate([each.acts for each in pieces])
    ends = acts["event"] < 0
    acts["event"] += np.repeat(events[:-1], [len(each.acts) for each in pieces])
    acts["event"][ends] = -1
    return replace(
        pieces[0],
        starts=np.cumsum([0, *np.bincount(rank, minlength=pieces[0].ranks)]),
        acts=acts[np.argsort(rank, kind="stable")],
        events=np.concatenate([each.events for each in pieces]),
        steps=part,
        seconds=sum(each.seconds for each in pieces) / part,
    )


def _part(recording: Recording, bounds: Indices) -> tuple[Recording, Indices]:
    """Return a recording of the calls that begin within the bounds, and their numbers in the whole one."""
    calls, numbers = recording.calls, []
    for rank in range(recording.ranks):
        whole = calls.of_rank(rank)
        first, stop = np.searchsorted(calls["begin"][whole], bounds[[0, -1], rank])
        numbers.append(np.arange(whole.start + first, whole.start + stop))
    starts = np.cumsum([0, *map(len, numbers)])
    chosen = np.concatenate(numbers)
    columns = {column.name: calls[column.name][chosen] for column in CALL_COLUMNS}
    return replace(recording, calls=Calls(starts, columns)), chosen


def _ends(part: Recording, waiting: CallWaits) -> tuple[Indices, ...]:
    """Return the participants of events: calls, or each end of a message if a call has several.

    Returns
    -------
    call, event : ndarray of int64
        The call, and the number of its event: first the collectives, then the messages.
    sends : ndarray of bool
        Whether it sends the message, or is the root that all data is from.
    ranks : ndarray of int64
        How many ranks make a call of the event; 0 if that is not known.
    """
    matched, pairs, calls = waiting.collectives, waiting.messages, part.calls
    root, from_root = roots(part)
    source = np.where(from_root, root, -1)[calls["signature"][matched.calls]]
    at_root = source == calls.ranks()[matched.calls]
    known = [matched.calls, pairs.sends, pairs.receives]
    rest = ~part.of_signature("marks")
    rest[np.concatenate(known)] = False
    others = np.flatnonzero(rest)
    number = len(pairs.sends)
    of_messages, of_others = np.split(len(matched) + np.arange(number + len(others)), [number])
    event = [matched.per_call(np.arange(len(matched))), of_messages, of_messages, of_others]
    sends = [at_root, np.ones(number, bool), np.zeros(number + len(others), bool)]
    sizes = np.array([*(len(each.ranks) for each in part.groups), 0])
    of_all = sizes[part.of_signature("group")[matched.calls]]
    ranks = [of_all, np.full(2 * number, 2), np.zeros(len(others), np.int64)]
    return tuple(map(np.concatenate, ([*known, others], event, sends, ranks)))


_ROW = np.dtype([*ACT.descr, ("rank", "<i8"), ("at", "<i8"), ("until", "<i8"), ("result", "<i8")])
"""An act with its rank, when it began and the rank went on, and when the result was there; in ns."""


def _tables(recording: Recording, bounds: Indices) -> tuple[Table, Table]:
    """Return the acts, as `_ROW`, and the events of a part of a recording."""
    part, numbers = _part(recording, bounds)
    waiting, calls = waits(part), part.calls
    call, event, sends, ranks = _ends(part, waiting)
    signature, rank = calls["signature"][call], calls.ranks()[call]
    begin, end, asked = calls["begin"][call], calls["end"][call], calls["asked"][call]
    events = np.zeros(int(event.max(initial=0)) + 1, EVENT)
    events["signature"][event], events["ranks"][event] = signature, ranks
    np.maximum.at(events["nbytes"], event, part.of_signature("nbytes")[call])
    last = np.zeros(len(events), np.int64)
    np.maximum.at(last, event, begin)

    # A sender that once did not wait for a receiver waits for none.
    several = np.bincount(call, minlength=1)[call] > 1
    free = (end < last[event]) & (several | (waiting.awaited[call] == call))
    message = np.array([each.operation not in CALLS for each in part.signatures])
    eager = message & (np.array([each.nbytes for each in part.signatures]) <= SMALL)
    eager[signature[sends & free]] = True
    gives = sends & eager[signature]
    events["source"] = -1
    events["source"][event[gives]] = rank[gives]
    free = gives | free & (events["source"][event] < 0)
    group = np.array([each.group for each in part.signatures])
    alone = message[events["signature"]] | (events["source"] >= 0)
    events["queue"] = np.where(alone, -1, group[events["signature"]])
    # One that blocks does not wait for asynchronous ones of its communicator.
    blocks = part.of_signature("blocks")[call] & ~several
    blocking = np.ones(len(events), bool)
    blocking[event[~blocks]] = False
    events["queue"][blocking & ~alone] += len(part.groups)

    rows = np.zeros(len(event), _ROW)
    rows["kind"] = np.where(blocks & ~free, BLOCK, START)
    rows["event"], rows["rank"], rows["call"] = event, rank, numbers[call]
    rows["signature"], rows["buffer"] = signature, calls["buffer"][call]
    rows["at"], rows["until"] = begin, np.where(blocks, end, begin)
    rows["result"] = np.where(free, -1, end)
    rows["own"] = np.where(free, rows["until"] - begin, 0) * 1e-9
    _price(rows, events, gives, last)

    later = (asked > 0) & (asked < bounds[-1][rank])
    chosen = ~free & ~blocks & (several | later)
    waited, later = rows[chosen], later[chosen]
    waited["kind"] = WAIT
    until = (asked + calls["waited"][call])[chosen]
    waited["at"] = np.where(later, asked[chosen], waited["at"])
    waited["until"] = np.where(later, until, waited["result"])
    over = waited["until"] - np.maximum(waited["at"], waited["result"])
    waited["own"] = np.maximum(over, 0) * 1e-9
    marks = np.zeros(bounds[1:].size, _ROW)
    marks["event"] = marks["call"] = -1
    marks["rank"] = np.tile(np.arange(part.ranks), len(bounds) - 1)
    marks["at"] = marks["until"] = bounds[1:].ravel()
    rows = np.concatenate([marks, rows, waited])
    for name in ("at", "until"):
        rows[name] -= bounds[0].min()
    return _in_order(rows, bounds[0]), events


def _price(rows: Table, events: Table, gives: Bools, last: Indices) -> None:
    """Set the seconds of events, and how long the calls take on each rank."""
    event, result = rows["event"], rows["result"] >= 0
    first = np.full(len(events), np.iinfo(np.int64).max)
    np.minimum.at(first, event[result], rows["result"][result])
    # One of a queue begins when all before it have ended.
    done = np.maximum(last, np.where(first < np.iinfo(np.int64).max, first, 0))
    start = last.copy()
    for queue in np.unique(events["queue"][events["queue"] >= 0]):
        own = np.flatnonzero(events["queue"] == queue)
        start[own[1:]] = np.maximum(last[own[1:]], np.maximum.accumulate(done[own])[:-1])
    start[event[gives]] = rows["at"][gives]

    taken = np.maximum(rows["result"] - start[event], 0)
    # A receiver that comes late shows its own time, and one that comes early that of the message.
    received = result & (events["source"][event] >= 0)
    late = received & (rows["at"] > start[event])
    own = np.where(received, np.minimum(rows["result"] - rows["at"], taken), 0)
    signature = events["signature"][event]
    for each in np.unique(signature[late]):
        of_late, of_early = late & (signature == each), received & ~late & (signature == each)
        usual = int(np.median(taken[of_early] if of_early.any() else own[of_late]))
        taken[of_late] = np.minimum(taken[of_late], np.maximum(own[of_late], usual))
        own[of_early] = np.minimum(taken[of_early], int(np.median(own[of_late])))
    rows["own"] = np.where(received & (rows["kind"] == BLOCK), own * 1e-9, rows["own"])
    least = np.full(len(events), np.inf)
    np.minimum.at(least, event[result], taken[result])
    least[np.isinf(least)] = 0
    events["seconds"] = _alone(rows, events, start, least) * 1e-9
    rows["tail"] = np.where(result, taken - least[event], 0) * 1e-9


def _alone(rows: Table, events: Table, start: Indices, taken: Floats) -> Floats:
    """Return the ns that events of queues would have taken if no other event had been under way on their ranks."""
    queued = np.flatnonzero((events["queue"] >= 0) & (taken > 0))
    queued = queued[np.argsort(start[queued], kind="stable")]
    ends = start[queued] + taken[queued]
    if (start[queued][1:] >= np.maximum.accumulate(ends)[:-1]).all():
        return taken
    members = members_of(len(events), rows["event"], rows["rank"])
    alone, under_way, before = taken.copy(), set[int](), 0.0
    happening = [
        *zip(ends.tolist(), repeat(0), queued.tolist()),
        *zip(start[queued].tolist(), repeat(1), queued.tolist()),
    ]
    for now, begins, event in sorted(happening):
        if len(under_way) > 1 and now > before:
            for each, speed in speeds(members, under_way).items():
                alone[each] -= (now - before) * (1 - speed)
        (under_way.add if begins else under_way.discard)(event)
        before = now
    return alone


def members_of(count: int, event: NDArray[np.int32], rank: Indices) -> list[list[int]]:
    """Return the ranks of each of `count` events, from the event and the rank of each act."""
    members: list[list[int]] = [[] for _ in range(count)]
    for each, one in zip(event.tolist(), rank.tolist(), strict=True):
        members[each].append(one)
    return members


def speeds(members: list[list[int]], under_way: Collection[int]) -> dict[int, float]:
    """Return the part of its speed alone that each event under way has: on a rank they share its link equally."""
    load = Counter(chain.from_iterable(members[each] for each in under_way))
    return {each: 1 / max(load[rank] for rank in members[each]) for each in under_way}


def _in_order(rows: Table, begins: Indices) -> Table:
    """Return acts by rank and time, with the computation between them."""
    begins = begins - begins.min()
    away = int(max(rows["at"].max(), rows["until"].max())) + 1
    for _ in range(2):
        rows = rows[np.lexsort([rows["kind"], rows["at"], rows["rank"]])]
        shift, until = rows["rank"] * away, rows["until"] + rows["rank"] * away
        reach = np.maximum.accumulate(until)
        before = np.concatenate([reach[:1], reach[:-1]])
        firsts = np.diff(rows["rank"], prepend=-1) > 0
        before[firsts] = begins + np.arange(len(begins)) * away
        # A call of another thread, made while the program is blocked, begins with the blocking act and blocks nothing.
        inside = rows["at"] + shift < before
        beside = inside & (rows["kind"] >= BLOCK)
        around = np.maximum.accumulate(np.where(until == reach, np.arange(len(rows)), 0))
        calls = np.flatnonzero(beside & (rows["kind"] == BLOCK))
        rows["at"][calls] = rows["until"][calls] = rows["at"][around[calls - 1]]
        rows["kind"][calls] = BESIDE
        rows["kind"][inside & (rows["kind"] == START)] = BESIDE
        rows["compute"] = np.maximum(rows["at"] + shift - before, 0) * 1e-9
        if not beside.any():
            break
        rows = rows[~(beside & (rows["kind"] == WAIT))]
    return rows


@dataclass(frozen=True, slots=True)
class Prediction:
    """When each act and each event takes place, in seconds from the begin of the first rank.

    Attributes
    ----------
    program : ProgramModel
        What is predicted.
    begin, end : ndarray of float64, shape (acts,)
        Of each act: when the rank came to it, and when it went on.
    arrival, start, done : ndarray of float64, shape (events,)
        When the last rank was there, and when the event began and ended.
    """

    program: ProgramModel
    begin: Floats
    end: Floats
    arrival: Floats
    start: Floats
    done: Floats

    @property
    def seconds(self) -> float:
        """How long a step takes, as the mean over the steps and ranks."""
        last = self.end[self.program.starts[1:] - 1]
        return float((last - self.program.begins).mean()) / self.program.steps


def predict(program: ProgramModel) -> Prediction:
    """Return when the acts of a program take place. Takes a microsecond or two for each."""
    return _Replay(program).run()


def error(seconds: float, steps: ProgramSteps) -> float:
    """Return the median difference between recorded steps and the predicted one, as a part of the typical step.

    It is NaN for one step: the prediction is made of that step, so their difference says nothing.
    """
    if len(steps) == 1:
        return math.nan
    durations = steps.durations * 1e-9
    return float(
        np.median(np.abs(durations - seconds)) / max(durations[steps.typical].mean(), 1e-9)
    )


def five_numbers(prediction: Prediction, fixed: Floats) -> Floats:
    """Return the five numbers of a step of each rank in seconds, shape (ranks, 5), as `hpccomm.tools.programs.steps` has them.

    Parameters
    ----------
    prediction : Prediction
        The prediction.
    fixed : ndarray of float64, shape (events,)
        Seconds of each event that do not depend on its bytes. If they are half of its seconds, the event is small.
    """
    program, acts, events = prediction.program, prediction.program.acts, prediction.program.events
    begin, end, kind, event = prediction.begin, prediction.end, acts["kind"], acts["event"]
    arrived = np.where(events["source"] < 0, prediction.arrival, prediction.start)[event]
    arrived = np.where(kind >= BLOCK, arrived, begin)
    small = np.where(2 * fixed >= events["seconds"], fixed, 0)[event]
    flying = kind == WAIT
    start, stop = prediction.start[event], np.minimum(begin, prediction.done[event])
    numbers = []
    for rank, (first, last) in enumerate(pairwise(program.starts.tolist())):
        bounds = np.array([program.begins[rank], end[last - 1]])
        blocked = tuple(each[first:last] for each in (begin, end, arrived, small))
        flights = tuple(each[first:last][flying[first:last]] for each in (start, stop))
        numbers.append(step_parts(bounds, blocked, flights))
    return np.concatenate(numbers) / program.steps


class _Replay:
    """The state of a program that is predicted.

    `happening` holds the begins (1) of events that are to come, and their ends (0) unless their speed changes before.
    """

    def __init__(self, program: ProgramModel) -> None:
        acts, events = program.acts, program.events
        self.program = program
        self.kind, self.event, self.compute, self.own, self.tail = (
            acts[name].tolist() for name in ("kind", "event", "compute", "own", "tail")
        )
        self.seconds, self.source, self.queue = (
            events[name].tolist() for name in ("seconds", "source", "queue")
        )
        self.begin, self.end = [0.0] * len(acts), [0.0] * len(acts)
        count = len(events)
        part = program.calls()
        self.arrival, self.start, self.done = [0.0] * count, [-1.0] * count, [-1.0] * count
        self.blocked: list[list[int]] = [[] for _ in range(count)]
        self.ranks = [self.acting(rank) for rank in range(program.ranks)]
        self.happening: list[tuple[float, int, int]] = []
        self.speed: dict[int, float] = {}  # of the events of queues that are under way
        self.due = [0.0] * count
        self.turns: dict[int, deque[int]] = {}
        self.members = members_of(count, acts["event"][part], program.rank()[part])
        self.missing = list(map(len, self.members))

    def run(self) -> Prediction:
        """Predict the whole program."""
        for rank in range(self.program.ranks):
            self.go_on(rank)
        while self.happening or self.unblock():
            now, begins, event = heapq.heappop(self.happening)
            queue = self.queue[event]
            if begins and queue in self.turns:
                self.turns[queue].append(event)
            elif begins:
                if queue >= 0:
                    self.turns[queue] = deque()
                self.started(event, now)
            elif now == self.due[event] and self.done[event] < 0:
                self.ended(event, now)
        arrays = (self.begin, self.end, self.arrival, self.start, self.done)
        return Prediction(self.program, *map(np.array, arrays))

    def go_on(self, rank: int) -> None:
        """Let a rank act until it waits for an event."""
        event = next(self.ranks[rank], None)
        if event is not None:
            self.blocked[event].append(rank)

    def acting(self, rank: int) -> Iterator[int]:
        """Compute and call as a rank does; yield each event that it waits for, to go on when that is over."""
        kinds, events, compute = self.kind, self.event, self.compute
        begin, end, now = self.begin, self.end, float(self.program.begins[rank])
        for act in range(*self.program.starts[rank : rank + 2].tolist()):
            now += compute[act]
            begin[act] = now
            kind, event, own = kinds[act], events[act], self.own[act]
            if END < kind <= BLOCK:
                self.arrived(event, rank, now)
            if kind <= BESIDE:
                now += own
            else:
                if self.done[event] < 0:
                    yield event
                result = self.done[event] + self.tail[act]
                now = max(result, now + own) if kind == BLOCK else max(result, now) + own
            end[act] = now

    def arrived(self, event: int, rank: int, now: float) -> None:
        """Count a rank that comes to an event; the last one, or the source, begins it."""
        if now > self.arrival[event]:
            self.arrival[event] = now
        self.missing[event] -= 1
        source = self.source[event]
        if source == rank or (source < 0 and not self.missing[event] and self.start[event] < 0):
            heapq.heappush(self.happening, (self.arrival[event] if source < 0 else now, 1, event))

    def started(self, event: int, now: float) -> None:
        """Begin an event."""
        self.start[event], self.due[event] = now, now + self.seconds[event]
        heapq.heappush(self.happening, (self.due[event], 0, event))
        if self.queue[event] >= 0:
            self.speed[event] = 1.0
            self.share(now)

    def share(self, now: float) -> None:
        """Let the events of one rank have equal parts of its link."""
        if len(self.speed) < 2 and 1.0 in self.speed.values():
            return
        for each, new in speeds(self.members, self.speed).items():
            if new != self.speed[each]:
                self.due[each] = now + (self.due[each] - now) * self.speed[each] / new
                self.speed[each] = new
                heapq.heappush(self.happening, (self.due[each], 0, each))

    def ended(self, event: int, now: float) -> None:
        """End an event: the next of its queue begins, and the ranks that wait for it go on."""
        self.done[event] = now
        if self.speed.pop(event, 0):
            self.share(now)
        turns = self.turns.get(self.queue[event])
        if turns:
            self.started(turns.popleft(), now)
        elif turns is not None:
            del self.turns[self.queue[event]]
        for rank in self.blocked[event]:
            self.go_on(rank)

    def unblock(self) -> bool:
        """Begin an event whose other ranks wait for each other, if there is one."""
        waiting = [
            (self.arrival[event], 1, event)
            for event, blocked in enumerate(self.blocked)
            if blocked and self.start[event] < 0
        ]
        self.happening.extend(sorted(waiting)[:1])
        return bool(waiting)
