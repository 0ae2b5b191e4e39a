"""Counts of the messages that a rank has begun to send to each peer and to receive from each.

Ranks that wait exchange these numbers, so that errors can name a message without a receive, or a receive without a
message. Pure functions of plain data draw the conclusions, for `inquiry`, `deadlock`, `verdict`
and `hpccomm explain`. The calls of `hpccomm.communicator` count their messages; `hpccomm.calls` reports messages that
were never received.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpccomm.contracts.backend import Facts
from hpccomm.contracts.signature import CallFingerprint
from hpccomm.runtime import recorder

PLANNED, OTHERS = -1, -2
"""The channels of plans' messages, and of messages whose channel is not distinguished. A channel from 0 on is twice the
tag, plus 1 for objects."""

CHANNELS = 1024
"""Most channels that are distinguished for one peer."""

BLOCKED_SECONDS = 0.25
"""Seconds of waiting after which a call counts as blocked; a message that needs no receiver is sent in less."""

ANY_TAG = -3, -4
"""The channels of receives of any tag: of arrays, and of objects."""

TURNS = -5
"""The channel of the messages that `Communicator.in_turn` sends to the next rank. Lower ones are a window's signals."""

Counts = Sequence[tuple[int, int, int]]
"""Tuples of a channel, the number of sends that have begun in it, and the number of receives that have begun in it."""


class Traffic:
    """The messages of one communicator."""

    def __init__(self) -> None:
        self._cells: dict[int, dict[int, list[int]]] = {}

    def cell(self, peer: int, channel: int) -> list[int]:
        """Return the list of two numbers of a peer and channel: the sends and the receives that have begun.

        Each call adds its messages to that list, in its turn.
        """
        cells = self._cells.setdefault(peer, {})
        if channel not in cells and len(cells) >= CHANNELS:
            channel = OTHERS
        return cells.setdefault(channel, [0, 0])

    def everything(self) -> dict[int, Counts]:
        """Return the result of `between` for each rank with messages."""
        return {peer: self.between(peer) for peer in sorted(self._cells)}

    def between(self, rank: int) -> Counts:
        """Return, for each channel, how many sends to a rank and receives from it have begun.

        From any thread. A call that begins at the same time may be counted or not.
        """
        cells = self._cells.get(rank, {}).copy()
        return [(channel, each[0], each[1]) for channel, each in cells.items()]

    def waits(
        self,
        label: CallFingerprint,
        beside: Sequence[CallFingerprint] = (),
        later: Sequence[CallFingerprint] = (),
        *,
        exact: bool = True,
    ) -> list[Facts]:
        """Return the facts of each message that a call waits for, such as its number in the channel and with the peer.

        For a receive from any rank or of any tag, the numbers count from the messages received so far.

        Parameters
        ----------
        label : CallFingerprint
            The call.
        beside : sequence of CallFingerprint
            Other calls under way.
        later : sequence of CallFingerprint
            Calls that have begun after `label`, also those that are over: a small message may overtake a large one.
        exact : bool
            Whether `later` is complete.
        """
        found: list[Facts] = []
        passed = Counter(end for each in later if not each.ahead for end in each.ends)
        others = {(way, peer) for each in beside for way, peer, _ in each.ends}
        # The label of a batch or plan does not tell how many messages of a channel it has.
        apart = exact and not any(
            each.name == "batch" or PLANNED in {end[2] for end in each.ends} for each in later
        )
        for way, peer, channel in label.ends:
            one = peer is not None and channel not in ANY_TAG
            counts: dict[int, list[int]] = {}
            if peer is not None and one:
                counts = {each: both for each, *both in self.between(peer)}
            index, ahead = (0, 0) if way == "dst" else (1, label.ahead)
            lone = (way, peer) not in others if one else not others
            wait = {
                "way": way,
                "peer": peer,
                "channel": channel,
                "number": counts.get(channel, [0, 0])[index] + ahead - passed[way, peer, channel],
                "of_all": sum(each[index] for each in counts.values()) + ahead,
                # A send may be done while the call waits for something else.
                "sure": (way != "dst" or len(label.ends) == 1)
                and apart
                and (lone or (one and channel != PLANNED)),
                "told_apart": OTHERS not in counts,
                "lone": lone,
                "open": label.ahead > 0,
            }
            found.append(wait)
        return found


def unmatched(wait: Facts, there: Counts, here: Counts = ()) -> bool:
    """Return whether a message that a rank waits for has no counterpart at its peer.

    Parameters
    ----------
    wait : mapping
        The message, as `Traffic.waits` returns it.
    there : list
        The `Counts` of the peer with that rank.
    here : list
        The `Counts` of the rank with the peer. They tell which messages earlier receives from any rank, or of any tag,
        have received.
    """
    channel = wait["channel"]
    if wait["way"] == "held":
        return True
    begun = {each: sent if wait["way"] == "src" else posted for each, sent, posted in there}
    one = wait["peer"] is not None and channel not in ANY_TAG
    had = {} if one else {each: posted for each, _, posted in here}
    apart = wait["told_apart"] and OTHERS not in {*begun, *had}
    if apart and channel in ANY_TAG:
        kind = ANY_TAG.index(channel)
        begun, had = (
            {each: n for each, n in counts.items() if each >= 0 and each % 2 == kind}
            for counts in (begun, had)
        )
    if channel in ANY_TAG or not apart:
        return bool(wait["lone"] and sum(begun.values()) < wait["of_all"] + sum(had.values()))
    return bool(begun.get(channel, 0) < wait["number"] + had.get(channel, 0))


def unreceived(waiter: Facts, sender: int, there: Counts, here: Counts) -> list[str]:
    """Return, in words, the messages that a sender sent to a rank which waits for another message of that sender.

    Parameters
    ----------
    waiter : mapping
        The facts of the waiting rank.
    sender : int
        The sender's rank.
    there, here : list
        The `Counts` of the sender with the waiting rank, and of the waiting rank with the sender.
    """
    posted = {channel: number for channel, _, number in here}
    found = []
    for wait in (waiter.get("now") or {}).get("waits", ()):
        awaited = wait["channel"]
        if (
            (wait["way"], wait["peer"]) != ("src", sender)
            or awaited < 0
            or not unmatched(wait, there)
        ):
            continue
        for channel, sent, _ in sorted(map(tuple, there)):
            left = sent - posted.get(channel, 0)
            if channel >= 0 and left > 0 and channel != awaited:
                what = f"{left} {_kind(channel)[3:]}s" if left > 1 else _kind(channel)
                found.append(
                    f"rank {sender} has sent {what} with tag {channel // 2}, which no rank receives, while "
                    f"{_kind(awaited)} with tag {awaited // 2} is awaited"
                )
    return found


def has_begun(facts: Facts, number: int) -> bool:
    """Whether a rank has begun the call `number`; False for a message, which has no number.

    It is False as well for calls that make a communicator, which ranks number differently.
    """
    return number > 0 and (bool(facts.get("record")) or facts.get("collective", 0) >= number)


class LeftOver(NamedTuple):
    """How many messages (`number`) of one channel were not received; the channel is `OTHERS` if unknown."""

    sender: int
    receiver: int
    channel: int
    number: int


def left_over(everyone: Mapping[int, Mapping[int, Counts]]) -> list[LeftOver]:
    """Return the unreceived messages. `everyone` has, for each rank, the result of `Traffic.everything`."""
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


def in_words(lost: Sequence[LeftOver], origin: recorder.Origin) -> str:
    """Return the first message of `lost` in words, and how many more there are. `origin` is the sender's."""
    sender, receiver, channel, _ = lost[0]
    what = _kind(channel) if channel >= 0 else "a message"
    for entry in reversed(recorder.calls()):
        label = entry[recorder.LABEL]
        if entry[recorder.ORIGIN] is origin and ("dst", receiver, channel) in label.ends:
            size = f" of {label.nbytes} bytes" if len(label.ends) == 1 else ""
            site = recorder.place(entry)
            what += f"{size}, sent at {site}" if site else size
            break
    more = sum(each.number for each in lost) - 1
    which = f" with tag {channel // 2}" if channel >= 0 else ""
    text = f"a message of rank {sender} to rank {receiver}{which}: {what}"
    return f"{text}; nor {more} more" if more else text


def _kind(channel: int) -> str:
    return "an object" if channel % 2 else "an array"
