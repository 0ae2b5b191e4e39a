"""The prediction of a program: its acts in virtual time, in the order in which they happen.

The replay is that of Dimemas and of LogGOPSim (T. Hoefler, T. Schneider, A. Lumsdaine, "LogGOPSim: simulating
large-scale applications in the LogGOPS model", 2010): ranks compute and wait for events, and events for ranks.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.tools.programs.program import (
    ACT,
    BLOCK,
    END,
    START,
    WAIT,
    ProgramModel,
    members_of,
    speeds,
)
from hpccomm.tools.programs.steps import ProgramSteps

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


def error(seconds: float, steps: ProgramSteps) -> float:
    """Return how far recorded steps are from the predicted one, in the median, as a part of the typical step.

    It is NaN for one step, of which the prediction is made: the distance from itself says nothing.
    """
    if len(steps) == 1:
        return math.nan
    durations = steps.durations * 1e-9
    return float(
        np.median(np.abs(durations - seconds)) / max(durations[steps.typical].mean(), 1e-9)
    )


def five_numbers(prediction: Prediction, fixed: Seconds) -> Seconds:
    """Return the five numbers of a step of each rank in seconds, shape (ranks, 5), as `hpccomm.tools.programs.steps` has them.

    Parameters
    ----------
    prediction : Prediction
        The prediction.
    fixed : ndarray of float64, shape (events,)
        Seconds of each event that do not depend on its bytes. It is small if they are half of its seconds.
    """
    program, acts, events = prediction.program, prediction.program.acts, prediction.program.events
    event, kind, rank = acts["event"], acts["kind"], program.rank()
    begin, blocked = prediction.begin, prediction.end - prediction.begin
    came = np.where(events["source"] < 0, prediction.arrival, prediction.start)[event]
    waiting = np.where(kind >= BLOCK, np.clip(came - begin, 0, blocked), 0)
    small = np.where(2 * fixed >= events["seconds"], fixed, 0)[event]
    least = np.where(kind != END, np.minimum(small, blocked - waiting), 0)
    # The ranks' times lie one behind the other on one axis, so that one table says how long each was blocked until then.
    shift = rank * (prediction.end.max() + 1)
    times = np.stack([begin, prediction.end], axis=1) + shift[:, None]
    until = np.cumsum(blocked)[:, None] - np.stack([blocked, 0 * blocked], axis=1)
    start, stop = prediction.start[event], np.minimum(begin, prediction.done[event])
    passed = [np.interp(each + shift, times.ravel(), until.ravel()) for each in (start, stop)]
    flight = stop - start - (passed[1] - passed[0])
    parts = (np.where(kind == WAIT, flight, 0), waiting, blocked - waiting - least, least)
    hidden, *others = (np.bincount(rank, each.clip(0), program.ranks) for each in parts)
    compute = prediction.end[program.starts[1:] - 1] - program.begins - sum(others)
    hidden = np.minimum(hidden, compute)
    return np.stack([compute - hidden, hidden, *others], axis=1) / program.steps


class _Replay:
    """A program under way.

    `happening` has what is known to come: ends of events (0), if nothing changes their speed until then, and begins (1).
    """

    def __init__(self, program: ProgramModel) -> None:
        acts, events = program.acts, program.events
        self.program = program
        self.kind, self.event, self.compute, self.own, self.tail = (
            acts[name].tolist() for name in ACT.names or ()
        )
        self.seconds, self.source, self.queue = (
            events[name].tolist() for name in ("seconds", "source", "queue")
        )
        self.stop = program.starts[1:].tolist()
        self.next = program.starts[:-1].tolist()
        self.begin, self.end = [0.0] * len(acts), [0.0] * len(acts)
        count = len(events)
        part = program.calls()
        self.arrival, self.start, self.done = [0.0] * count, [-1.0] * count, [-1.0] * count
        self.blocked: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self.happening: list[tuple[float, int, int]] = []
        self.speed: dict[int, float] = {}  # of the events of queues that are under way
        self.due = [0.0] * count
        self.turns: dict[int, deque[int]] = {}
        self.members = members_of(count, acts["event"][part], program.rank()[part])
        self.missing = list(map(len, self.members))

    def run(self) -> Prediction:
        """Let all happen."""
        for rank, begin in enumerate(self.program.begins.tolist()):
            self.go_on(rank, begin)
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

    def go_on(self, rank: int, now: float) -> None:
        """Let a rank compute and call until it waits."""
        kinds, events, compute = self.kind, self.event, self.compute
        begin, end = self.begin, self.end
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
            heapq.heappush(self.happening, (self.arrival[event] if source < 0 else now, 1, event))

    def released(self, act: int, event: int) -> float:
        """Return when a rank goes on that waited for an event that is done."""
        came, own = self.begin[act], float(self.own[act])
        result = self.done[event] + float(self.tail[act])
        return max(result, came + own) if self.kind[act] == BLOCK else max(result, came) + own

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
        for rank, act in self.blocked[event]:
            self.end[act] = self.released(act, event)
            self.go_on(rank, self.end[act])

    def unblock(self) -> bool:
        """Begin an event whose other ranks wait for each other, if there is one."""
        waiting = [
            (self.arrival[event], 1, event)
            for event, blocked in enumerate(self.blocked)
            if blocked and self.start[event] < 0
        ]
        self.happening.extend(sorted(waiting)[:1])
        return bool(waiting)
