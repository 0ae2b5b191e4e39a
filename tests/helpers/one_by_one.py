"""The same rules, one message at a time: slow, and written without the simulator's arrays.

Every rank and link is a Python object; what happens is taken in the order of time from a heap.
For schedules of one channel without barriers and shared memory.
"""

import heapq
import itertools
from collections import defaultdict

from hpccomm.schedules.schedule import Folds


class Link:
    """Serves messages round by round, and those of one round as they come."""

    def __init__(self, gap, per_byte):
        self.gap, self.per_byte = gap, per_byte
        self.free = 0.0
        self.left = defaultdict(int)  # messages that are still to come, by round
        self.held = []

    def served(self, message, now):
        """Take a message that is ready; return those that have passed, with their times."""
        heapq.heappush(self.held, (message.round, _tick(now), message.number, now, message))
        passed = []
        while self.held and self.held[0][0] == min(self.left):
            turn, _, _, ready, each = heapq.heappop(self.held)
            self.free = max(self.free, ready) + self.gap + each.nbytes * self.per_byte
            passed.append((each, self.free))
            self.left[turn] -= 1
            if not self.left[turn]:
                del self.left[turn]
        return passed


class Message:
    """A message on its way."""

    def __init__(self, number, turn, sender, receiver, nbytes):
        self.number, self.round = number, turn
        self.sender, self.receiver, self.nbytes = sender, receiver, nbytes
        self.links, self.latency = [], 0.0
        self.waits, self.passed = 0, 0.0


class Rank:
    """What a rank has done and waits for."""

    def __init__(self, start):
        self.clock, self.round = start, 0
        self.sends, self.receives, self.work = (defaultdict(list) for _ in range(3))
        self.waits, self.arrived = None, defaultdict(int)


def ends(schedule, network, itemsize, starts):
    """Return when each rank is done."""
    (channel,) = schedule.channels
    ranks = [Rank(start) for start in starts]
    links = {}
    rounds = list(channel())
    numbers = itertools.count()
    for turn, each in enumerate(rounds):
        for table in each.sends:
            for sender, receiver, count in zip(table.rank, table.peer, table.count, strict=True):
                message = Message(next(numbers), turn, sender, receiver, count * itemsize)
                message.links, message.latency = _passed(network, links, sender, receiver)
                for link in message.links:
                    link.left[turn] += 1
                ranks[sender].sends[turn].append(message)
                ranks[receiver].receives[turn].append(message)
        for step in each.local:
            folded = len(step.sources) - 1 if isinstance(step, Folds) else 0
            speed = network.reduce / folded if folded else network.copy
            for rank, count in zip(step.rank, step.count, strict=True):
                ranks[rank].work[turn].append(count * itemsize / speed)

    heap, order = [], itertools.count()

    def at(time, do, *what):
        # At one time, all that makes messages ready comes before the first of them is served.
        number = what[0].number if do is ready else -1
        heapq.heappush(heap, (_tick(time), number, next(order), do, what))

    def begin(rank):
        if rank.round == len(rounds):
            return
        rank.waits = len(rank.sends[rank.round]) + len(rank.receives[rank.round])
        rank.waits -= rank.arrived[rank.round]
        for message in rank.sends[rank.round]:
            message.passed = rank.clock
            message.waits = len(message.links)
            at(rank.clock, ready, message, rank.clock)
        if not rank.waits:
            finish(rank)

    def finish(rank):
        rank.waits = None
        rank.clock += sum(rank.work[rank.round])
        rank.round += 1
        at(rank.clock, begin, rank)

    def ready(message, now):
        for link in message.links:
            for each, time in link.served(message, now):
                each.waits -= 1
                each.passed = max(each.passed, time)
                if not each.waits:
                    at(each.passed, done, ranks[each.sender], each.passed, each.round)
                    there = each.passed + each.latency
                    at(there, done, ranks[each.receiver], there, each.round)

    def done(rank, time, turn):
        if rank.waits is None or turn != rank.round:
            rank.arrived[turn] += 1
            early[id(rank), turn] = max(early[id(rank), turn], time)
            return
        rank.clock = max(rank.clock, time, early[id(rank), turn])
        rank.waits -= 1
        if not rank.waits:
            finish(rank)

    early = defaultdict(float)
    for rank in ranks:
        at(rank.clock, begin, rank)
    while heap:
        *_, do, what = heapq.heappop(heap)
        do(*what)
    assert all(rank.round == len(rounds) for rank in ranks)
    return [rank.clock for rank in ranks]


def _passed(network, links, sender, receiver):
    """Return what a message passes, and its latency."""
    size = network.ranks_per_node
    nodes = sender // size, receiver // size
    inside = nodes[0] == nodes[1]
    level = network.inner if inside else network.across
    names = [((inside, "total"), 0.0, level.total_bandwidth)]
    for way, rank in enumerate((sender, receiver)):
        end = inside, nodes[way], 0 if level.duplex == "half" else way
        names.append(((*end, rank % size % level.ports), level.gap, level.bandwidth))
        if not (inside and way):
            names.append(((*end, "shared"), 0.0, level.node_bandwidth))
    found = [links.setdefault(name, Link(gap, 1 / speed)) for name, gap, speed in names]
    return [link for link in found if link.per_byte], level.latency


def _tick(time):
    """Return a time as a number of femtoseconds: what is equal but for rounding is equal."""
    return round(time * 1e15)
