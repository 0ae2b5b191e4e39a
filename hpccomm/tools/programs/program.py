"""The model of a recorded program: the acts of each rank in some typical steps, as tables.

The form is that of Dimemas' traces: seconds of computation, and what is called between them.
`hpccomm.tools.programs.prediction` replays a program. What would help is a function that returns another `ProgramModel`, with
other seconds of computation, other kinds of acts, or other prices of calls: `dataclasses.replace` and copies of the
two tables suffice.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS
from hpccomm.results.recording import (
    CALL_COLUMNS,
    Calls,
    CallSignature,
    CallWaits,
    Recording,
    messages,
    roots,
    waits,
)
from hpccomm.tools.programs.steps import ProgramSteps

END, START, BLOCK, WAIT = range(4)
"""Kinds of acts: the end of a step, a call from which the program goes on, one that blocks it, the wait for a call."""

ACT = np.dtype(
    [
        ("kind", "<i4"),  # END, START, BLOCK or WAIT
        ("event", "<i4"),  # the number of its event; -1 of END
        ("compute", "<f8"),  # seconds between the rank's act before and this one
        ("own", "<f8"),  # seconds that it takes of the rank, whatever the others do
        ("tail", "<f8"),  # seconds from the end of the event to the end on this rank
    ]
)
"""An act of a rank begins `compute` seconds after the one before it. How long it takes:

- START: `own` seconds.
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
    ]
)
"""An event is a call of several ranks: a collective, or a message, which begins at its sender if that does not wait."""

SMALL = 4096
"""Bytes of a message whose sender does not wait in any network."""

MOST_ACTS = 20_000
"""The most acts of a model of several steps."""


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
    steps : int
        Their number.
    seconds : float
        How long a step took, as the mean over the steps and ranks.
    """

    starts: NDArray[np.int64]
    acts: NDArray[np.void]
    events: NDArray[np.void]
    begins: NDArray[np.float64]
    signatures: tuple[CallSignature, ...]
    steps: int
    seconds: float

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.begins)

    def rank(self) -> NDArray[np.int64]:
        """Return the rank of each act."""
        return np.repeat(np.arange(self.ranks), np.diff(self.starts))

    def calls(self) -> NDArray[np.bool_]:
        """Return whether each act is a call."""
        return np.isin(self.acts["kind"], [START, BLOCK])

    def members(self) -> NDArray[np.int64]:
        """Return how many calls each event has: one of each of its ranks."""
        return np.bincount(self.acts["event"][self.calls()], minlength=len(self.events))


def model(recording: Recording, steps: ProgramSteps, most: int = MOST_ACTS) -> ProgramModel:
    """Return the model of a recorded program.

    It has neighboring steps whose mean is the median, so that noise averages out. `most` acts limit their number.

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
    acts, events = _tables(_part(recording, bounds), bounds)
    return ProgramModel(
        np.searchsorted(acts["rank"], np.arange(recording.ranks + 1)),
        repack_fields(acts[list(ACT.names or ())]),
        events,
        (bounds[0] - bounds[0].min()) * 1e-9,
        recording.signatures,
        number,
        float((bounds[-1] - bounds[0]).mean()) * 1e-9 / number,
    )


def _part(recording: Recording, bounds: NDArray[np.int64]) -> Recording:
    """Return a recording of the calls that begin within the bounds."""
    calls, numbers = recording.calls, []
    for rank in range(recording.ranks):
        whole = calls.of_rank(rank)
        first, stop = np.searchsorted(calls["begin"][whole], bounds[[0, -1], rank])
        numbers.append(np.arange(whole.start + first, whole.start + stop))
    starts = np.cumsum([0, *map(len, numbers)])
    chosen = np.concatenate(numbers)
    columns = {column.name: calls[column.name][chosen] for column in CALL_COLUMNS}
    return replace(recording, calls=Calls(starts, columns))


def _ends(part: Recording, waiting: CallWaits) -> tuple[NDArray[np.int64], ...]:
    """Return what takes part in events: calls, or ends of calls that have several messages.

    Returns
    -------
    call, event : ndarray of int64
        The call, and the number of its event: first the collectives, then the messages.
    sends : ndarray of bool
        Whether it sends the message, or is the root that all data is from.
    """
    matched, pairs, calls = waiting.collectives, messages(part), part.calls
    root, from_root = roots(part)
    source = np.where(from_root, root, -1)[calls["signature"][matched.calls]]
    at_root = source == calls.ranks()[matched.calls]
    known = [matched.calls, pairs.sends, pairs.receives]
    rest = ~part.of_signature("marks")
    rest[np.concatenate(known)] = False
    others = np.flatnonzero(rest)
    number = len(pairs.sends)
    of_messages, of_others = np.split(len(matched) + np.arange(number + len(others)), [number])
    event = [matched.of(np.arange(len(matched))), of_messages, of_messages, of_others]
    sends = [at_root, np.ones(number, bool), np.zeros(number + len(others), bool)]
    return tuple(map(np.concatenate, ([*known, others], event, sends)))


_ROW = np.dtype([*ACT.descr, ("rank", "<i8"), ("at", "<i8"), ("until", "<i8"), ("result", "<i8")])
"""An act with its rank, when it began and the rank went on, and when the result was there; in ns."""


def _tables(
    part: Recording, bounds: NDArray[np.int64]
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return the acts, as `_ROW`, and the events of a part of a recording."""
    waiting, calls = waits(part), part.calls
    call, event, sends = _ends(part, waiting)
    signature, rank = calls["signature"][call], calls.ranks()[call]
    begin, end, asked = calls["begin"][call], calls["end"][call], calls["asked"][call]
    events = np.zeros(int(event.max(initial=0)) + 1, EVENT)
    events["signature"][event] = signature
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
    rows["event"], rows["rank"] = event, rank
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
    marks["event"] = -1
    marks["rank"] = np.tile(np.arange(part.ranks), len(bounds) - 1)
    marks["at"] = marks["until"] = bounds[1:].ravel()
    rows = np.concatenate([marks, rows, waited])
    for name in ("at", "until"):
        rows[name] -= bounds[0].min()
    return _in_order(rows, bounds[0]), events


def _price(
    rows: NDArray[np.void],
    events: NDArray[np.void],
    gives: NDArray[np.bool_],
    last: NDArray[np.int64],
) -> None:
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
    rows["own"] = np.where(received, own * 1e-9, rows["own"])
    least = np.full(len(events), np.inf)
    np.minimum.at(least, event[result], taken[result])
    least[np.isinf(least)] = 0
    events["seconds"] = _alone(rows, events, start, least) * 1e-9
    rows["tail"] = np.where(result, taken - least[event], 0) * 1e-9


def _alone(
    rows: NDArray[np.void],
    events: NDArray[np.void],
    start: NDArray[np.int64],
    taken: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return what the events of queues would have taken without others on their ranks at the same time."""
    members = members_of(len(events), rows["event"], rows["rank"])
    alone, under_way, before = taken.copy(), set[int](), 0.0
    queued = np.flatnonzero((events["queue"] >= 0) & (taken > 0)).tolist()
    ends = [((start[each] + taken[each]).item(), 0, each) for each in queued]
    for now, begins, event in sorted([*ends, *((start[each].item(), 1, each) for each in queued)]):
        if len(under_way) > 1 and now > before:
            for each, speed in speeds(members, under_way).items():
                alone[each] -= (now - before) * (1 - speed)
        (under_way.add if begins else under_way.discard)(event)
        before = now
    return alone


def members_of(count: int, event: NDArray[np.int32], rank: NDArray[np.int64]) -> list[list[int]]:
    """Return the ranks of each of `count` events, from the event and the rank of each act."""
    members: list[list[int]] = [[] for _ in range(count)]
    for each, one in zip(event.tolist(), rank.tolist(), strict=True):
        members[each].append(one)
    return members


def speeds(members: list[list[int]], under_way: Collection[int]) -> dict[int, float]:
    """Return the part of its speed alone that each event under way has: on a rank they share its link equally."""
    load = Counter(chain.from_iterable(members[each] for each in under_way))
    return {each: 1 / max(load[rank] for rank in members[each]) for each in under_way}


def _in_order(rows: NDArray[np.void], begins: NDArray[np.int64]) -> NDArray[np.void]:
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
        # What another thread calls while the program is blocked begins with what blocks it, and blocks nothing.
        beside = (rows["at"] + shift < before) & (rows["kind"] >= BLOCK)
        around = np.maximum.accumulate(np.where(until == reach, np.arange(len(rows)), 0))
        calls = np.flatnonzero(beside & (rows["kind"] == BLOCK))
        rows["at"][calls] = rows["until"][calls] = rows["at"][around[calls - 1]]
        rows["kind"][calls] = START
        rows["compute"] = np.maximum(rows["at"] + shift - before, 0) * 1e-9
        rows = rows[~(beside & (rows["kind"] == WAIT))]
    return rows
