"""The prediction of a program: its acts in virtual time, in the order in which they happen.

The replay is that of Dimemas and of LogGOPSim (T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim: simulating
large-scale applications in the LogGOPS model", 2010): ranks compute and wait for events, and events for ranks.
"""

import heapq
import itertools
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.recordings.program import BLOCK, END, START, ProgramModel

Seconds = NDArray[np.float64]


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
    begin: Seconds
    end: Seconds
    arrival: Seconds
    start: Seconds
    done: Seconds

    @property
    def seconds(self) -> float:
        """How long a step takes, as the mean over the steps and ranks."""
        last = self.end[self.program.starts[1:] - 1]
        return float((last - self.program.begins).mean()) / self.program.steps


def predict(program: ProgramModel) -> Prediction:
    """Return when the acts of a program take place. Takes a microsecond or two for each."""
    return _Replay(program).run()


def error(program: ProgramModel) -> float:
    """Return by which part the prediction of a program differs from what was recorded, if nothing is changed."""
    return abs(predict(program).seconds / program.seconds - 1) if program.seconds else 0.0


def parts(prediction: Prediction, fixed: Seconds) -> Seconds:
    """Return the five numbers of a step of each rank in seconds, shape (ranks, 5), as `hpccomm.recordings.shares` has them.

    Parameters
    ----------
    prediction : Prediction
        The prediction.
    fixed : ndarray of float64, shape (events,)
        Seconds of each event that do not depend on its bytes. It is small if they are half of its seconds.
    """
    program, acts, events = prediction.program, prediction.program.acts, prediction.program.events
    event, kind, rank = acts["event"], acts["kind"], program.rank()
    begin, end = prediction.begin, prediction.end
    came = np.where(events["source"] < 0, prediction.arrival, prediction.start)[event]
    blocked = end - begin
    waiting = np.where(kind >= BLOCK, np.clip(came - begin, 0, blocked), 0)
    small = np.where(2 * fixed >= events["seconds"], fixed, 0)[event]
    least = np.where(kind != END, np.minimum(small, blocked - waiting), 0)

    # What passes of the computation while an asynchronous call is under way, the ranks' times one behind the other.
    shift = rank * (end.max() + 1)
    open_calls = (kind == START) & (acts["own"] == 0) & (events["source"][event] != rank)
    since = np.sort((begin + shift)[open_calls])
    until = (prediction.done[event] + acts["tail"] + shift)[open_calls]
    until = np.maximum.accumulate(until[np.argsort((begin + shift)[open_calls], kind="stable")])
    since = np.maximum(since, np.concatenate([since[:1], until[:-1]]))
    covered = (
        np.repeat(np.cumsum(until - since), 2) - np.stack([until - since, 0 * since], 1).ravel()
    )
    knots = np.stack([since, until], 1).ravel()
    before = np.concatenate([[0.0], end[:-1]])
    before[program.starts[:-1]] = program.begins
    hidden = np.zeros(len(acts))
    if len(knots):
        hidden = np.interp(begin + shift, knots, covered) - np.interp(
            before + shift, knots, covered
        )
    each = (begin - before - hidden, hidden, waiting, blocked - waiting - least, least)
    sums = [np.bincount(rank, one, minlength=program.ranks) for one in each]
    return np.stack(sums, axis=1) / program.steps


class _Replay:
    """A program under way.

    `happening` has what is known to come: ends of events (0) and their begins (1), with a version, as a later
    event may slow an earlier one down.
    """

    def __init__(self, program: ProgramModel) -> None:
        acts, events = program.acts, program.events
        self.program = program
        self.kind, self.event, self.compute, self.own, self.tail = (
            acts[name].tolist() for name in ("kind", "event", "compute", "own", "tail")
        )
        self.seconds, self.source, self.queue, self.core = (
            events[name].tolist() for name in ("seconds", "source", "queue", "core")
        )
        self.stop = program.starts[1:].tolist()
        self.next = program.starts[:-1].tolist()
        self.begin, self.end = [0.0] * len(acts), [0.0] * len(acts)
        count = len(events)
        part = (acts["kind"] == START) | (acts["kind"] == BLOCK)
        self.missing = np.bincount(acts["event"][part], minlength=count).tolist()
        self.arrival, self.start, self.done = [0.0] * count, [-1.0] * count, [-1.0] * count
        self.blocked: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.happening: list[tuple[float, int, int, int]] = []
        self.under_way: dict[int, tuple[float, float, float]] = {}  # left, speed, since when
        self.version = [0] * count
        self.turns: dict[int, deque[int]] = {}
        self.members: list[list[int]] = [[] for _ in range(count)]
        for event, rank in zip(
            acts["event"][part].tolist(), program.rank()[part].tolist(), strict=True
        ):
            self.members[event].append(rank)

    def run(self) -> Prediction:
        """Let all happen."""
        for rank, begin in enumerate(self.program.begins.tolist()):
            self.go_on(rank, begin)
        while self.happening or self.unblock():
            now, what, event, version = heapq.heappop(self.happening)
            if what:
                queue = self.queue[event]
                if queue < 0:
                    self.started(event, now)
                elif queue in self.turns:
                    self.turns[queue].append(event)
                else:
                    self.turns[queue] = deque()
                    self.started(event, now)
            elif version == self.version[event]:
                self.ended(event, now)
        arrays = (self.begin, self.end, self.arrival, self.start, self.done)
        return Prediction(self.program, *map(np.array, arrays))

    def go_on(self, rank: int, now: float) -> None:
        """Let a rank compute and call until it waits."""
        kinds, events, compute, begin, end = (
            self.kind,
            self.event,
            self.compute,
            self.begin,
            self.end,
        )
        for act in range(self.next[rank], self.stop[rank]):
            now += compute[act]
            begin[act] = now
            kind = kinds[act]
            if kind == END:
                end[act] = now
                continue
            event = events[act]
            if kind <= BLOCK:
                self.arrived(event, rank, now)
            if kind == START:
                now += self.own[act]
            elif self.done[event] < 0:
                self.next[rank] = act + 1
                self.blocked[event].append((rank, act))
                return
            else:
                now = self.released(act, event)
            end[act] = now
        self.next[rank] = self.stop[rank]

    def arrived(self, event: int, rank: int, now: float) -> None:
        """Count a rank that comes to an event; the last one, or the source, begins it."""
        if now > self.arrival[event]:
            self.arrival[event] = now
        self.missing[event] -= 1
        source = self.source[event]
        if source == rank or (source < 0 and not self.missing[event] and self.start[event] < 0):
            heapq.heappush(
                self.happening, (self.arrival[event] if source < 0 else now, 1, event, 0)
            )

    def released(self, act: int, event: int) -> float:
        """Return when a rank goes on that waited for an event that is done."""
        came, own, done = self.begin[act], float(self.own[act]), self.done[event]
        result = done + float(self.tail[act])
        if self.kind[act] == BLOCK:
            return max(result, came + own)
        hidden = max(0.0, min(came, done) - self.start[event])
        return max(result, came + float(self.core[event]) * hidden) + own

    def started(self, event: int, now: float) -> None:
        """Begin an event."""
        self.start[event] = now
        if self.queue[event] >= 0:
            self.under_way[event] = self.seconds[event], 1.0, now
            if len(self.under_way) > 1:
                self.share(now)
        heapq.heappush(self.happening, (self.ends(event, now), 0, event, self.version[event]))

    def ends(self, event: int, now: float) -> float:
        """Return when an event that goes on as it does will end."""
        if event not in self.under_way:
            return now + float(self.seconds[event])
        left, speed, since = self.under_way[event]
        return since + left / speed

    def share(self, now: float) -> None:
        """Let the events of one rank have equal parts of its link."""
        load = Counter(itertools.chain.from_iterable(self.members[each] for each in self.under_way))
        for each, (left, speed, since) in self.under_way.items():
            new = 1 / max(load[rank] for rank in self.members[each])
            if new != speed:
                self.under_way[each] = left - (now - since) * speed, new, now
                self.version[each] += 1
                heapq.heappush(self.happening, (self.ends(each, now), 0, each, self.version[each]))

    def ended(self, event: int, now: float) -> None:
        """End an event: the next of its queue begins, and the ranks that wait for it go on."""
        self.done[event] = now
        self.version[event] += 1
        if self.under_way.pop(event, None) and self.under_way:
            self.share(now)
        turns = self.turns.get(self.queue[event])
        if turns:
            self.started(turns.popleft(), now)
        elif turns is not None:
            del self.turns[self.queue[event]]
        for rank, act in self.blocked[event]:
            self.end[act] = self.released(act, event)
            self.go_on(rank, self.end[act])

    def unblock(self) -> bool:
        """Begin an event whose other ranks wait for each other, if there is one."""
        waiting = [
            (self.arrival[event], 1, event, 0)
            for event, blocked in enumerate(self.blocked)
            if blocked and self.start[event] < 0
        ]
        self.happening.extend(sorted(waiting)[:1])
        return bool(waiting)
