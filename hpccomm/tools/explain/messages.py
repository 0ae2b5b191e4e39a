"""For whom a rank waits in a message or a one-sided call of mpi4py, as the calls of all ranks tell.

A receive waits for ranks that have sent it nothing that fits, a send for the rank that has no receive for it. Sends and
receives between two ranks are matched in their order, as MPI does. `hpccomm.tools.explain.job` asks for the ranks, and
`faults` for messages that a waiting rank does not receive.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hpccomm.tools.explain.dumps import Dump, Membership, RecordedCall

Tag = int | str | None
"""The tag of a message, None for any; or what a call on a window tells another rank."""

POSTED, COMPLETED = "posted", "completed"

EPOCHS = {
    "Post": ("Post", (("dst", POSTED),)),
    "Start": ("Start", (("src", POSTED),)),
    "Complete": ("Start", (("src", POSTED), ("dst", COMPLETED))),
    "Wait": ("Post", (("src", COMPLETED),)),
}
"""Calls on a window as messages: the call that names the other ranks, and what is told to these or heard from them."""


class End(NamedTuple):
    """A message that a call sends or receives.

    Attributes
    ----------
    call : RecordedCall
        The call.
    way : str
        ``"dst"`` or ``"src"``.
    peer : int or None
        The other rank of the communicator; None for any.
    tag : int, str or None
        See `Tag`.
    """

    call: RecordedCall
    way: str
    peer: int | None
    tag: Tag

    @property
    def takes(self) -> bool:
        """Whether it takes a message that it finds: a probe, or ``Start``, leaves it."""
        return "probe" not in self.call.operation.lower() and self.call.operation != "Start"


def ends(call: RecordedCall) -> list[End]:
    """Return the messages that a call sends and receives."""
    found: list[End] = []
    for part in call.terms.get("calls", [call.terms]):
        ways = [way for way in ("dst", "src") if way in part]
        found += [End(call, way, part[way], part.get("tag")) for way in ways]
        if not ways and "tag" in part:
            found.append(End(call, "src", None, part["tag"]))
    return found


def receives(call: RecordedCall) -> bool:
    """Whether a call receives a message."""
    return any(each.way == "src" for each in ends(call))


class Messages:
    """The messages of the ranks of a communicator, or what they tell each other on a window.

    Parameters
    ----------
    dumps : mapping of int to Dump
        The dumps by rank.
    group : Membership
        The communicator or window. All ranks here are its own ones, but for those of `awaited` and `unreceived`.
    """

    def __init__(self, dumps: Mapping[int, Dump], group: Membership) -> None:
        self._members = group.members
        self._calls = [
            [call for call in dumps[rank].calls if call.uid == group.uid] if rank in dumps else []
            for rank in group.members
        ]
        self._ends: dict[int, list[End]] = {}
        self._left: dict[tuple[int, int], tuple[list[End], list[End]]] = {}

    def _of(self, rank: int) -> list[End]:
        """Return the messages of a rank, in their order."""
        if rank not in self._ends:
            found, named = list[End](), dict[str, list[int]]()
            for call in self._calls[rank]:
                found += ends(call)
                by, parts = EPOCHS.get(call.operation, ("", ()))
                if by == call.operation:
                    peers = call.terms.get("peers", ())
                    named[by] = [at for at, each in enumerate(self._members) if each in peers]
                found += [
                    End(call, way, peer, tag) for way, tag in parts for peer in named.get(by, ())
                ]
            self._ends[rank] = found
        return self._ends[rank]

    def left(self, sender: int, receiver: int) -> tuple[list[End], list[End]]:
        """Return the sends of one rank to another for which there is no receive, and receives under way without a send."""
        if (sender, receiver) in self._left:
            return self._left[sender, receiver]
        sent = [each for each in self._of(sender) if (each.way, each.peer) == ("dst", receiver)]
        received = [
            each
            for each in self._of(receiver)
            if each.way == "src" and (each.peer == sender or (each.peer is None and each.call.open))
        ]
        done = [each for each in received if not each.call.open and each.takes]
        over = Counter(each.tag for each in done)
        firsts = [call for rank in (sender, receiver) for call in self._calls[rank][:1]]
        if any(first.sequence > 1 for first in firsts):
            # Older calls are not known: what was sent after the last receive of its tag is left.
            over.clear()
            since = max(first.began for first in firsts)
            last = {each.tag: each.call.began + (each.call.seconds or 0.0) for each in done}
            sent = [
                each
                for each in sent
                if each.call.open or each.call.began > max(since, last.get(each.tag, 0.0))
            ]
        sends, lacking = list[End](), list[End]()
        for each in sent:
            if over[each.tag]:
                over[each.tag] -= 1
            else:
                sends.append(each)
        for each in received:
            if each.call.open:
                fitting = next((send for send in sends if each.tag in (None, send.tag)), None)
                if fitting is None:
                    lacking.append(each)
                elif each.takes:
                    sends.remove(fitting)
        self._left[sender, receiver] = sends, lacking
        return sends, lacking

    def awaited(self, rank: int, call: RecordedCall) -> tuple[int, ...]:
        """Return the ranks of the job for which one of them waits in a call without a number, maybe itself."""
        own, found = self._members.index(rank), set[int]()
        everyone = range(len(self._members))
        for end in self._of(own):
            if end.call is not call or (end.way, end.tag) == ("dst", COMPLETED):
                continue
            peers = everyone if end.peer is None else [end.peer]
            lacking = [
                peer
                for peer in peers
                if any(
                    each.call is call
                    for each in (
                        self.left(own, peer)[0] if end.way == "dst" else self.left(peer, own)[1]
                    )
                )
            ]
            if end.peer is not None:
                found.update(lacking)
            elif len(lacking) == len(everyone):
                found.update({*everyone} - {own})
        target = call.terms.get("target", -1)
        if call.operation in ("Lock", "Unlock", "Flush") and target in everyone:
            holders = {each for each in everyone if call.operation == "Lock" and each != own}
            found |= {each for each in holders if self._holds(each, target)} or {target} - {own}
        return tuple(sorted(self._members[each] for each in found))

    def _holds(self, rank: int, target: int) -> bool:
        """Whether a rank has a window locked on a target."""
        locks = [
            call.operation.startswith("Lock")
            for call in self._calls[rank]
            if not call.open
            and (
                call.operation in ("Lock_all", "Unlock_all")
                or (call.operation in ("Lock", "Unlock") and call.terms.get("target") == target)
            )
        ]
        return bool(locks and locks[-1])

    def unreceived(self, rank: int, call: RecordedCall) -> list[str]:
        """Return in words what was sent to a rank of the job with other tags than it waits for; or what it has received."""
        own, said = self._members.index(rank), list[str]()
        for end in ends(call):
            if end.way == "dst":
                continue
            for sender in range(len(self._members)) if end.peer is None else [end.peer]:
                left = self.left(sender, own)[0]
                if left:
                    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
                    said.append(
                        f"rank {self._members[sender]} has sent rank {rank} a message with tag {left[0].tag}{more} "
                        f"({left[0].call.site}), for which rank {rank} has no receive, while tag {end.tag} is awaited"
                    )
            if end.peer is None and not said:
                count = sum(
                    each.way == "src" and end.tag in (None, each.tag)
                    for each in self._of(own)
                    if not each.call.open and each.takes
                )
                said.append(
                    f"all {count} such messages that were sent to rank {rank} have been received"
                )
        return said
