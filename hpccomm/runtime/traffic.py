"""How many messages a rank has begun to send to each peer, and how many receives from each.

Ranks that wait tell each other these numbers, so that a message that nobody sends, or receives, can be named.
What follows from them is told by pure functions of plain data.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from hpccomm.contracts.side import ANSWERED, Answer, Facts
from hpccomm.contracts.terms import Terms

PLANNED, OTHERS = -1, -2
"""Channels of the messages of plans, and of those that are not told apart. Others are the transport's tag without
the dtype: messages of one channel come in order."""

CHANNELS = 1024
"""So many channels to one peer are told apart."""

BLOCKED_SECONDS = 0.25
"""A message that has waited so long is blocked: one that needs no receiver to be sent takes less."""

Counts = list[tuple[int, int, int]]
"""By channel: how many messages have begun to be sent, and how many receives have begun."""


class Repeated:
    """An exchange that a plan repeats. To count its messages each time would be a tenth of its cost.

    Attributes
    ----------
    times : int
        How often it has begun.
    came, went : Counter
        By rank, receives and sends of one time.
    """

    __slots__ = ("came", "times", "went")

    def __init__(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.times = 0
        self.came, self.went = Counter(sources), Counter(targets)

    def between(self, rank: int) -> tuple[int, int]:
        """Return how many messages to a rank and receives from it have begun."""
        return self.went[rank] * self.times, self.came[rank] * self.times


class Traffic:
    """The messages of one communicator."""

    def __init__(self) -> None:
        self._cells: dict[int, dict[int, list[int]]] = {}
        self._repeated: list[Repeated] = []
        self._gone: deque[Repeated] = deque()  # of those, the ones whose plan is gone

    def cell(self, peer: int, channel: int) -> list[int]:
        """Return the numbers of messages to a peer that have begun to be sent, and of receives from it.

        Whoever makes a call counts it there, in its turn.
        """
        cells = self._cells.setdefault(peer, {})
        if channel not in cells and len(cells) >= CHANNELS:
            channel = OTHERS
        return cells.setdefault(channel, [0, 0])

    def repeated(self, exchange: Repeated, plan: Callable[[], Any]) -> None:
        """Count an exchange for as long as its plan lives, and what it did afterwards. In turn."""
        while self._gone:
            ended = self._gone.popleft()
            self._repeated.remove(ended)
            for peer in {*ended.came, *ended.went}:
                cell = self.cell(peer, PLANNED)
                cell[:] = [a + b for a, b in zip(cell, ended.between(peer), strict=True)]
        self._repeated.append(exchange)
        # Any thread may drop a plan, and must not count then: this list is changed in turn.
        weakref.finalize(plan, self._gone.append, exchange).atexit = False

    def peers(self) -> list[int]:
        """Return the ranks to which messages have begun to be sent, or receives from which."""
        return sorted(self._cells.copy())

    def between(self, rank: int) -> Counts:
        """Return how many messages to a rank have begun, and how many receives from it, by channel.

        From any thread. A call that begins meanwhile may be counted or not.
        """
        cells = self._cells.get(rank, {}).copy()
        sent, posted = map(
            sum, zip(*(each.between(rank) for each in (*self._repeated, _NONE)), strict=True)
        )
        if sent or posted:
            before = cells.get(PLANNED, (0, 0))
            cells[PLANNED] = [before[0] + sent, before[1] + posted]
        return [(channel, each[0], each[1]) for channel, each in cells.items()]

    def waits(self, terms: Terms) -> list[Facts]:
        """Return for which messages a call waits: their numbers in the channel, and of all with that peer."""
        found: list[Facts] = []
        for way, peer, channel in terms.ends:
            counts = {each: (sent, posted) for each, sent, posted in self.between(peer)}
            index, ahead = (0, 0) if way == "dst" else (1, terms.ahead)
            wait = {
                "way": way,
                "peer": peer,
                "channel": channel,
                "number": counts.get(channel, (0, 0))[index] + ahead,
                "of_all": sum(each[index] for each in counts.values()) + ahead,
                # A send may be done while the call waits for something else.
                "sure": way == "src" or len(terms.ends) == 1,
                "told_apart": OTHERS not in counts,
            }
            found.append(wait)
        return found


_NONE = Repeated((), ())


def blocked_on(answer: Answer) -> tuple[int, ...]:
    """Return the ranks for whose messages a rank waits that can do nothing else meanwhile."""
    now = answer.facts.get("now")
    if answer.state != ANSWERED or not now or not now.get("held") or now["since"] < BLOCKED_SECONDS:
        return ()
    return tuple({wait["peer"] for wait in now.get("waits", ()) if wait["sure"]})


def unmatched(wait: Facts, there: Counts) -> bool:
    """Whether a message that a rank waits for has no counterpart at its peer.

    Parameters
    ----------
    wait : mapping
        The message, and its number among those of its channel, and of all.
    there : list
        What the peer has begun, by channel.
    """
    begun = {channel: sent if wait["way"] == "src" else posted for channel, sent, posted in there}
    if not wait["told_apart"] or OTHERS in begun:
        lacking: bool = sum(begun.values()) < wait["of_all"]
    else:
        lacking = begun.get(wait["channel"], 0) < wait["number"]
    return lacking


def unreceived(waiter: Facts, sender: int, there: Counts, here: Counts) -> list[str]:
    """Return what has been sent to a rank, which waits for another message of that sender.

    Parameters
    ----------
    waiter : mapping
        What the rank does.
    sender : int
        The other one.
    there, here : list
        What the sender and the waiting rank have begun between them, by channel.
    """
    posted = {channel: number for channel, _, number in here}
    found = []
    for wait in (waiter.get("now") or {}).get("waits", ()):
        if (wait["way"], wait["peer"]) != ("src", sender) or not unmatched(wait, there):
            continue
        awaited = wait["channel"]
        for channel, sent, _ in sorted(map(tuple, there)):
            left = sent - posted.get(channel, 0)
            if channel >= 0 and left > 0 and channel != awaited:
                what = f"{left} {_KINDS[channel % 2][3:]}s" if left > 1 else _KINDS[channel % 2]
                found.append(
                    f"rank {sender} has sent {what} with tag {channel // 2}, which nobody receives, while "
                    f"{_KINDS[awaited % 2]} with tag {awaited // 2} is awaited"
                )
    return found


_KINDS = "an array", "an object"
