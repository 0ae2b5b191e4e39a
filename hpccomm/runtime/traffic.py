"""Counts of the messages that a rank has begun to send to each peer and to receive from each.

Ranks that wait exchange these numbers, so that a message without a receive, or a receive without a
message, can be named. Pure functions of plain data draw the conclusions, for `inquiry`, `verdict`
and `hpccomm explain`.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpccomm.contracts.fingerprint import CallFingerprint
from hpccomm.contracts.side import ANSWERED, Answer, Facts
from hpccomm.runtime.recorder import LABEL, ORIGIN, Origin, calls, place

PLANNED, OTHERS = -1, -2
"""Channels of plans' messages, and of undistinguished ones; others are tags without
the dtype."""

CHANNELS = 1024
"""The most channels to distinguish to one peer."""

BLOCKED_SECONDS = 0.25
"""Seconds after which a message is blocked: a message sent without its receiver takes less."""

MOST_FOLLOWED = 256
"""The most awaited ranks to ask."""

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

        Each call counts its messages there, in its turn.
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

    def everything(self) -> dict[int, Counts]:
        """Return the result of `between` for each rank with messages."""
        peers = {peer for each in self._repeated for peer in (*each.came, *each.went)}
        return {peer: self.between(peer) for peer in sorted({*self._cells, *peers})}

    def between(self, rank: int) -> Counts:
        """Return how many messages to a rank have begun, and how many receives from it, by channel.

        From any thread. A call that begins at the same time may be counted or not.
        """
        cells = self._cells.get(rank, {}).copy()
        sent, posted = map(
            sum, zip(*(each.between(rank) for each in (*self._repeated, _NONE)), strict=True)
        )
        if sent or posted:
            before = cells.get(PLANNED, (0, 0))
            cells[PLANNED] = [before[0] + sent, before[1] + posted]
        return [(channel, each[0], each[1]) for channel, each in cells.items()]

    def waits(self, label: CallFingerprint) -> list[Facts]:
        """Return the awaited messages of a call: their numbers in the channel and with the peer."""
        found: list[Facts] = []
        for way, peer, channel in label.ends:
            counts = {each: (sent, posted) for each, sent, posted in self.between(peer)}
            index, ahead = (0, 0) if way == "dst" else (1, label.ahead)
            wait = {
                "way": way,
                "peer": peer,
                "channel": channel,
                "number": counts.get(channel, (0, 0))[index] + ahead,
                "of_all": sum(each[index] for each in counts.values()) + ahead,
                # A send may be done while the call waits for something else.
                "sure": way == "src" or len(label.ends) == 1,
                "told_apart": OTHERS not in counts,
            }
            found.append(wait)
        return found


_NONE = Repeated((), ())


def blocked_on(answer: Answer) -> tuple[int, ...]:
    """Return the ranks for whose messages a blocked rank waits."""
    now = answer.facts.get("now")
    if answer.state != ANSWERED or not now or not now.get("held") or now["since"] < BLOCKED_SECONDS:
        return ()
    return tuple({wait["peer"] for wait in now.get("waits", ())})


def in_vain(rank: int, answer: Answer, mine: Facts, chain: "Chain") -> list[int]:
    """Return the ranks for whose messages a rank waits in vain; else its unfinished receivers."""
    found: dict[bool, list[int]] = {True: [], False: []}
    for wait in answer.facts["now"]["waits"]:
        peer = wait["peer"]
        there = chain.get((rank, peer))
        counts = mine["counts"].get(rank) if peer == mine["rank"] else None
        if there is not None:
            counts = there.facts.get("counts", [])
        if counts is not None and unmatched(wait, counts):
            found[wait["sure"]].append(peer)
    return found[True] or found[False]


def ends_of(rank: int, answer: Answer, mine: Facts, chain: "Chain") -> dict[int, Answer]:
    """Return the ends of the chain of awaited ranks, unless this rank is in it."""
    me = mine["rank"]
    ends, seen, front = dict[int, Answer](), {rank}, [(rank, answer)]
    while front:
        waiter, told = front.pop()
        for peer in in_vain(waiter, told, mine, chain) if blocked_on(told) else ():
            if peer == me:
                return {}
            if peer not in seen:
                seen.add(peer)
                there = chain[waiter, peer]
                if blocked_on(there):
                    front.append((peer, there))
                else:
                    ends[peer] = there
    return ends


def followed(
    answers: Mapping[int, Answer], me: int, ask: Callable[[int, int], Answer]
) -> dict[tuple[int, int], Answer]:
    """Ask the ranks awaited in messages, and so on; return their answers, by both ranks.

    Parameters
    ----------
    answers : mapping of int to Answer
        Answers of the ranks asked before.
    me : int
        This rank.
    ask : callable
        ``ask(peer, rank)`` returns a rank's answer about its messages with another one.
    """
    chain: dict[tuple[int, int], Answer] = {}
    front = list(answers.items())
    while front and len(chain) < MOST_FOLLOWED:
        rank, answer = front.pop(0)
        for peer in blocked_on(answer):
            if peer != me and (rank, peer) not in chain:
                chain[rank, peer] = ask(peer, rank)
                if peer not in answers:
                    front.append((peer, chain[rank, peer]))
    return chain


def waits_for_itself(mine: Facts, counts: Counts) -> str:
    """Return the words on a message of a rank to or from itself that nothing moves on; empty if it may be done.

    Parameters
    ----------
    mine : mapping
        What the rank does.
    counts : list
        Its messages with itself, by channel.
    """
    now = mine["now"]
    for wait in now.get("waits", ()) if now and now["held"] else ():
        if wait["sure"] and unmatched(wait, counts):
            lacks = "sent it nothing" if wait["way"] == "src" else "begun no receive of it"
            who = f"rank {mine['rank']} waits for itself at {now['site']}".removesuffix(" at ")
            return f"{who}: it has {lacks}; begin both, one of them with async_op=True"
    return ""


def unmatched(wait: Facts, there: Counts) -> bool:
    """Whether a message that a rank waits for has no counterpart at its peer.

    Parameters
    ----------
    wait : mapping
        The message, and its number among those of its channel, and of all.
    there : list
        The peer's begun messages, by channel.
    """
    begun = {channel: sent if wait["way"] == "src" else posted for channel, sent, posted in there}
    if not wait["told_apart"] or OTHERS in begun:
        lacking: bool = sum(begun.values()) < wait["of_all"]
    else:
        lacking = begun.get(wait["channel"], 0) < wait["number"]
    return lacking


def unreceived(waiter: Facts, sender: int, there: Counts, here: Counts) -> list[str]:
    """Return the messages to a rank that waits for another message of that sender.

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
                what = f"{left} {_kind(channel)[3:]}s" if left > 1 else _kind(channel)
                found.append(
                    f"rank {sender} has sent {what} with tag {channel // 2}, which no rank receives, while "
                    f"{_kind(awaited)} with tag {awaited // 2} is awaited"
                )
    return found


Chain = Mapping[tuple[int, int], Answer]
"""Answers about messages with a waiting rank, by the waiting and the answering rank."""


def has_begun(facts: Facts, number: int) -> bool:
    """Whether a rank has begun the call of that number; a message has none, and is never begun.

    Nor is what belongs to the making of a communicator: there ranks number differently.
    """
    return number > 0 and (bool(facts.get("record")) or facts.get("collective", 0) >= number)


def crossed_with(mine: Facts, answers: Mapping[int, Answer], chain: Chain) -> tuple[int, ...]:
    """Return the ranks of a shortest circle of waits, from this one on; or none.

    They cannot continue: each is in a collective to which the next has not come, or blocked in a
    message whose counterpart the next has not begun. A program whose collective does not need those
    ranks might go on, but MPI allows every collective to wait for all.
    """
    own = mine["now"]
    if own is None or not own.get("held"):
        return ()
    me = mine["rank"]
    told = {**{peer: answer for (_, peer), answer in chain.items()}, **answers}
    known = {
        me: mine,
        **{rank: each.facts for rank, each in told.items() if each.state == ANSWERED},
    }

    def counts(waiter: int, peer: int) -> Counts | None:
        """Return a peer's counts of its messages with a rank that waits for it."""
        if peer == me:
            return mine["counts"].get(waiter)  # type: ignore[no-any-return]  # not of itself
        asked = answers.get(peer) if waiter == me else chain.get((waiter, peer))
        found: Counts | None = None if asked is None else asked.facts.get("counts")
        return found

    def awaited(rank: int) -> Iterator[int]:
        """Give the ranks that a rank waits for in vain."""
        now = known[rank].get("now")  # one without such a communicator says nothing
        if not now or not now.get("held") or (rank != me and now["since"] < BLOCKED_SECONDS):
            return
        if now["collective"] > 0:
            late = now["collective"]
            yield from (each for each, facts in known.items() if not has_begun(facts, late))
        for wait in now.get("waits", ()):
            there = counts(rank, wait["peer"])
            if wait["sure"] and there is not None and unmatched(wait, there):
                yield wait["peer"]

    return shortest_round(me, lambda rank: [each for each in awaited(rank) if each in known])


def shortest_round(start: int, awaited: Callable[[int], Iterable[int]]) -> tuple[int, ...]:
    """Return the other ranks of a shortest circle of waits; or an empty list.

    Parameters
    ----------
    start : int
        The rank that the round begins and ends with.
    awaited : callable
        Returns the ranks that a rank waits for.
    """
    reached: dict[int, tuple[int, ...]] = {start: ()}
    front = [start]
    while front:
        rank = front.pop(0)
        for peer in awaited(rank):
            if peer == start and rank != start:
                return reached[rank]
            if peer not in reached:
                reached[peer] = (*reached[rank], peer)
                front.append(peer)
    return ()


class LeftOver(NamedTuple):
    """Unreceived messages of one channel; the channel is `OTHERS` if unknown."""

    sender: int
    receiver: int
    channel: int
    number: int


def left_over(everyone: Mapping[int, Mapping[int, Counts]]) -> list[LeftOver]:
    """Return the unreceived messages, from the messages that ranks have begun with each other."""
    found = []
    for sender, peers in sorted(everyone.items()):
        for receiver, there in peers.items():
            here = everyone[receiver].get(sender, [])
            sent = {channel: number for channel, number, _ in there}
            taken = {channel: number for channel, _, number in here}
            if OTHERS in {*sent, *taken}:
                sent, taken = {OTHERS: sum(sent.values())}, {OTHERS: sum(taken.values())}
            found += [
                LeftOver(sender, receiver, channel, number - taken.get(channel, 0))
                for channel, number in sorted(sent.items())
                if number > taken.get(channel, 0)
            ]
    return found


def in_words(lost: Sequence[LeftOver], origin: Origin) -> str:
    """Return the first of some messages in words, and how many more there are. `origin` is its sender's."""
    sender, receiver, channel, _ = lost[0]
    what = _kind(channel) if channel >= 0 else "a message"
    for entry in reversed(calls()):
        label = entry[LABEL]
        if entry[ORIGIN] is origin and ("dst", receiver, channel) in label.ends:
            size = f" of {label.nbytes} bytes" if len(label.ends) == 1 else ""
            site = place(entry)
            what += f"{size}, sent at {site}" if site else size
            break
    more = sum(each.number for each in lost) - 1
    which = f" with tag {channel // 2}" if channel >= 0 else ""
    text = f"a message of rank {sender} to rank {receiver}{which}: {what}"
    return f"{text}; nor {more} more" if more else text


def _kind(channel: int) -> str:
    return "an object" if channel % 2 else "an array"
