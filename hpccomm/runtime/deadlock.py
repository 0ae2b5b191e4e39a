"""Finds ranks that wait for each other in vain, in one communicator or in several.

The rule is one for all kinds of waits. A rank is stuck if its program does nothing but wait, and what it
waits for can come from stuck ranks alone: it is in a collective to which a stuck rank has not come, in a
message that a stuck one has not begun, or in a receive from any rank, or a wait for any of several calls,
where this holds for each that could end it. So the stuck ranks are the largest set of which each member
waits in vain for others of it. A rank of which too little is known, such as one that does not answer, is
never stuck.

The answers need not be of one moment: whoever waits for a stuck rank stays where it is.

A wait that ends by an earlier deadline than the communicator's goes on by itself, as a poll does, and is in
no such set. A collective with one counts within its communicator, which fails on all its ranks either way.
A wait that leaves the communicator free to other threads counts only where the program has no others, and
so do waits in several communicators.

`inquiry` asks it. It is loaded at the start: later, the program may have lost the right to read it, or have
no file left to open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, Answer, Facts
from hpccomm.errors import RankMismatch
from hpccomm.runtime import answering
from hpccomm.runtime.recorder import NUMBER, SEQUENCE, CallRecord, Origin
from hpccomm.runtime.state import CallState
from hpccomm.runtime.traffic import BLOCKED_SECONDS, unmatched
from hpccomm.runtime.verdict import numbered
from hpccomm.units import MOST_NAMED, ranks_named

MOST_ASKED = 64
"""The most ranks to ask, but for those of which any could end a wait."""

MOST_AWAITED = 8
"""The most ranks to follow from a rank in a collective."""

Group = frozenset[int]
"""Ranks, as the job numbers them. A call stays under way as long as those of one of its groups do nothing for it."""

Known = Mapping[int, Answer]
"""What ranks do, as the job numbers them."""


class Wait(NamedTuple):
    """A call that a rank's program waits for: what the rank does in its communicator, and the call."""

    there: Facts
    now: Facts

    @property
    def uid(self) -> str:
        """The communicator's."""
        return str(self.there["uid"])


Stuck = Mapping[int, tuple[Wait, Sequence[Group]]]
"""Stuck ranks, as the job numbers them, with the call that each waits for, and its groups."""


def asked(calls: CallState, members: Iterable[int], seconds: float, **question: object) -> Known:
    """Ask ranks, as the job numbers them, by whichever communicators they share with this one."""
    left, answers = set(members), dict[int, Answer]()
    for each in (calls, *answering.of_rank(calls)):
        side, order = each.backend.side, list(each.backend.members)
        ranks = [order.index(member) for member in left.intersection(order)]
        if side is not None and ranks:
            found = side.ask(ranks, {"comm": each.origin.uid, **question}, seconds)
            answers |= {order[rank]: answer for rank, answer in found.items()}
            left.difference_update(order)
    return answers


def explored(calls: CallState, seconds: float) -> Known:
    """Return what this rank does, and the ranks that it may wait for, and so on. Blocks while they are asked.

    Parameters
    ----------
    calls : CallState
        The communicator in which it waits.
    seconds : float
        How long answers may take.
    """
    me, uid = calls.backend.members[calls.origin.rank], calls.origin.uid
    known = {me: Answer(ANSWERED, answering.across(calls))}
    front: Known = known
    while front:
        few, peers = MOST_ASKED - len(known), set[int]()
        for member, answer in front.items():
            for within in (uid, None):
                for wait in _waits(answer, within, member == me):
                    peers.update(_awaited(wait, few, own=member == me))
        peers -= known.keys()
        front = asked(calls, peers, seconds, across=True) if peers else {}
        known |= front
    return known


def found(
    calls: CallState, entry: CallRecord, known: Known, what: tuple[str, str]
) -> tuple[RankMismatch, list[tuple[list[int], Facts]]] | None:
    """Return the error of a call that waits in vain, and whom to tell what of it; None as long as it may be done.

    Parameters
    ----------
    calls : CallState
        The communicator's.
    entry : list
        The call's record.
    known : mapping
        What ranks do.
    what : tuple of str
        The call in words, and what else may be the reason.
    """
    me, uid = calls.backend.members[calls.origin.rank], calls.origin.uid
    stuck = stuck_with(me, uid, known)
    if not stuck or stuck[me][0].now["call"] != entry[SEQUENCE]:
        return None
    waits, told = {member: wait for member, (wait, _) in stuck.items()}, _told_from(me, stuck)
    text = _in_words(waits, told)
    ranks = [waits[each].there["rank"] for each in told if waits[each].uid == uid]
    if entry[NUMBER] and len(ranks) < calls.origin.size:  # others wait in it, too
        ranks = ranks[1:] or [calls.backend.members.index(list(told)[1])]
    error = RankMismatch(f"{what[0]}: {text}{what[1]}", ranks=tuple(sorted(ranks)))
    here = {member: each.now["collective"] for member, each in waits.items() if each.uid == uid}
    # All ranks of this communicator hear of it: others may come to wait for those that are stuck.
    here = dict.fromkeys(calls.backend.members, max(here.values())) | here
    of_number: dict[int, list[int]] = {}
    for member in here.keys() - {me}:
        of_number.setdefault(here[member], []).append(member)
    common = {"kind": RankMismatch.__name__, "text": str(error)}
    accusations: list[tuple[list[int], Facts]] = [
        (members, {"accuse": {**common, "ranks": ranks, "collective": number}})
        for number, members in of_number.items()
    ]
    for member, (there, now) in waits.items():
        if there["uid"] != uid:
            accuse = {
                **common,
                "ranks": [there["rank"]],
                "collective": now["collective"],
                "all": True,
            }
            accusations.append(([member], {"accuse": accuse, "at": [there["uid"], there["rank"]]}))
    return error, accusations


def stuck_with(me: int, uid: str, known: Known) -> Stuck:
    """Return the stuck ranks, and what each waits for; empty unless this one is among them, in this communicator."""
    for within in (uid, None):
        waits = {
            member: [(wait, _groups(wait, known)) for wait in _waits(answer, within, member == me)]
            for member, answer in known.items()
        }
        stuck: Stuck = {member: each[0] for member, each in waits.items() if each}
        while True:
            left: Stuck = {
                member: (wait, groups)
                for member, (wait, _) in stuck.items()
                if (groups := _in_vain([each for _, each in waits[member]], stuck.keys()))
            }
            if len(left) == len(stuck):
                break
            stuck = left
        if me in left and left[me][0].uid == uid:
            return left
    return {}


def behind(origin: Origin, members: Sequence[int], known: Known, rank: int) -> dict[int, Answer]:
    """Return who keeps a rank in a message, by rank: those at the end of the awaited ones, as far as they are known.

    Empty if it waits for none, or for this rank.

    Parameters
    ----------
    origin : Origin
        The communicator, of this rank.
    members : sequence of int
        Its ranks, as the job numbers them.
    known : mapping
        What ranks do.
    rank : int
        The rank that waits.
    """
    me, first, uid = members[origin.rank], members[rank], origin.uid
    ends, seen, front = dict[int, Answer](), {first}, [first]
    while front:
        member = front.pop()
        answer = known.get(member, Answer(SILENT))
        waits = _waits(answer, uid, own=False)
        there: Facts = next(
            (each for each in answer.facts.get("across", ()) if each["uid"] == uid), {}
        )
        if member != first and not waits:
            ends[members.index(member)] = Answer(answer.state, {**answer.facts, **there})
        for wait in waits:
            groups = _groups(wait, known) or _groups(wait, known, sure=False)
            peers = {peer for group in groups for peer in group} - seen
            if me in peers:
                return {}
            seen |= peers
            front += peers
    return ends


def _in_vain(groups: Sequence[Sequence[Group]], stuck: AbstractSet[int]) -> Sequence[Group]:
    """Return the groups of stuck ranks that keep a rank; none if one of the calls that it waits for may be over."""
    kept = [[group for group in each if group <= stuck] for each in groups]
    if len(kept) == 1:
        return kept[0]
    return [Group().union(*(each[0] for each in kept))] if all(kept) else []


def _waits(answer: Answer, within: str | None, own: bool) -> list[Wait]:
    """Return what a rank's program waits for: one call, or several of which any would do; nothing if it may go on.

    Parameters
    ----------
    answer : Answer
        The rank's.
    within : str or None
        The one communicator that counts; None for all.
    own : bool
        Whether it is this rank, which has waited long.
    """
    waits, facts = list[Wait](), answer.facts if answer.state == ANSWERED else {}
    for there in facts.get("across", ()):
        for now in there["blocked"]:
            if within is None:
                counts = now["patient"] and facts["alone"]
            else:
                counts = within == there["uid"] and now["held"]
                counts = counts and (now["occupies"] or facts["alone"])
            if counts and (own or now["since"] >= BLOCKED_SECONDS) and not there["failed"]:
                waits.append(Wait(there, now))
            elif now["any"]:
                return []
    return [wait for wait in waits if not wait.now["any"]][:1] or waits


def _awaited(wait: Wait, most: int, own: bool) -> Iterator[int]:
    """Yield the ranks to ask about a wait. Who waits for any rank itself asks all of them."""
    there, now = wait
    members, ends = there["members"], now.get("waits", ())
    if any(end["peer"] is None for end in ends):
        yield from members if own or len(members) <= MOST_AWAITED else ()
        return
    ranks = [end["peer"] for end in ends]
    if now["collective"] > 0:
        ranks += (there["awaited"] or range(len(members)))[:MOST_AWAITED]
    yield from (members[rank] for rank in ranks[: max(0, most)])


def _groups(wait: Wait, known: Known, sure: bool = True) -> list[Group]:
    """Return the groups of a call, also without its messages that are not `sure` to be under way still."""
    there, now = wait
    members, rank, traffic = there["members"], there["rank"], dict(there["traffic"])
    does = {
        members.index(member): each
        for member, answer in known.items()
        for each in answer.facts.get("across", ())
        if each["uid"] == there["uid"]
    }

    def lacks(end: Facts, peer: int) -> bool:
        if peer not in does:  # its end is another matter, and so is its silence
            return members[peer] in known
        if end["way"] == "held":
            return end["channel"] in does[peer]["holds"]
        counts = dict(does[peer]["traffic"]).get(rank, [])
        return unmatched(end, counts, traffic.get(peer, []))

    late = now["collective"]
    groups = [Group({members[each]}) for each in does if does[each]["collective"] < late]
    ends = [end for end in now.get("waits", ()) if end["sure"] or not sure]
    if not any(end["open"] for end in ends):
        peers = [end["peer"] for end in ends if lacks(end, end["peer"])]
        return [*groups, *(Group({members[peer]}) for peer in peers)]
    could = {
        each
        for each in (range(len(members)) if ends[0]["peer"] is None else [ends[0]["peer"]])
        if not _over(known.get(members[each]), does.get(each))
    }
    # A rank that only itself could send to waits for its deadline.
    if could != {rank} and all(lacks(end, each) for end in ends for each in could):
        groups.append(Group(members[each] for each in could))
    return groups


def _over(answer: Answer | None, there: Facts | None) -> bool:
    """Whether a rank sends nothing more in a communicator."""
    ended = answer is not None and (answer.state == GONE or bool(answer.facts.get("leaving")))
    return ended or bool(there and there["closed"])


# Words.


def _told_from(me: int, stuck: Stuck) -> dict[int, Group]:
    """Return the stuck ranks that explain why one waits, that one first, and for whom each waits."""
    told, front = dict[int, Group](), [me]
    while front:
        member = front.pop(0)
        if member not in told:
            told[member] = min(
                stuck[member][1],
                key=lambda group: (group.isdisjoint(told.keys() | {member}), len(group)),
            )
            front += sorted(told[member])
    return told


def _in_words(waits: Mapping[int, Wait], told: Mapping[int, Group]) -> str:
    """Return who waits where for whom."""
    itself = [waits[each] for each, group in told.items() if group == {each}]
    if itself:
        there, now = itself[0]
        end = next(end for end in now["waits"] if end["peer"] == there["rank"])
        lacks = "sent it nothing" if end["way"] == "src" else "begun no receive of it"
        who = f"rank {there['rank']} waits for itself at {now['site']}".removesuffix(" at ")
        return f"{who}: it has {lacks}; begin both, one of them with async_op=True"
    apart = len({waits[each].uid for each in told}) > 1
    alike: dict[str, list[int]] = {}
    for member, group in told.items():
        there, now = waits[member]
        of, at = (
            f" of {there['communicator']!r}" * apart,
            f" at {now['site']}" * bool(now["site"]),
        )
        call = numbered(now["operation"], now["collective"])
        named = ranks_named(there["members"].index(each) for each in group - {member})
        alike.setdefault(f"{of} {{}} in {call}{at} for {named}", []).append(there["rank"])
    sentences = [
        ranks_named(ranks) + what.replace("{}", "wait" if len(ranks) > 1 else "waits", 1)
        for what, ranks in alike.items()
    ]
    if len(sentences) > MOST_NAMED:
        sentences[MOST_NAMED:] = ["and so on"]
    where = " in several communicators" * apart
    remedy = "; call the communicators in one order on all ranks" * apart
    return f"the ranks wait for each other{where}: {'; '.join(sentences)}{remedy}"
