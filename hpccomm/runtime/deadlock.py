"""Finds ranks that wait for each other in vain, in one communicator or in several.

One rule covers all kinds of waits. A rank is stuck if its program only waits, and only stuck ranks could end
that wait. That is so in three cases:

- The rank is in a collective that a stuck rank has not begun.
- It is in a message whose other side is a stuck rank that has not begun its part.
- It is in a receive from any rank, or a wait for any of several calls, and every rank or call that could end
  the wait falls under this rule.

So the stuck ranks are the largest set of ranks in which each waits in vain for others of the set. A rank about
which too little is known, such as one that does not answer, is never stuck.

The answers need not be of one moment: a rank that waits for a stuck rank stays where it is.

A wait with a shorter deadline than the communicator's ends by itself, as a poll does, and makes no rank stuck.
A collective with such a deadline counts within its communicator, which fails on all its ranks either way.
A wait during which other threads may use the communicator counts only if the program has no other threads.
The same holds for waits in several communicators.

`inquiry` calls this module. The package imports it at its start: later, the program may have lost the right to read
the file, or have no file descriptor left.
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
"""Most ranks that are asked; ranks any of which could end a wait are asked beyond that."""

MOST_AWAITED = 8
"""Most ranks that are followed from a rank in a collective."""

# "Job ranks" below are ranks as the job numbers them.

Group = frozenset[int]
"""Job ranks. A call stays under way as long as all ranks of one of its groups do nothing for it."""

Known = Mapping[int, Answer]
"""The activity of ranks, keyed by job rank."""


class Wait(NamedTuple):
    """A call that a rank's program waits for.

    `there` has the rank's activity in the call's communicator (`CallState.across`), `now` has the call.
    """

    there: Facts
    now: Facts

    @property
    def uid(self) -> str:
        """The communicator's identifier."""
        return str(self.there["uid"])


Stuck = Mapping[int, tuple[Wait, Sequence[Group]]]
"""Stuck ranks, keyed by job rank: the call that each waits for, and the call's groups."""


def asked(calls: CallState, members: Iterable[int], seconds: float, **question: object) -> Known:
    """Ask job ranks, by any communicator that this rank shares with them, and return their answers. Blocks."""
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
    """Return the activity of this rank, of the ranks that it may wait for, of those that these wait for, and so on.

    Blocks while they are asked.

    Parameters
    ----------
    calls : CallState
        The communicator in which this rank waits.
    seconds : float
        Seconds that the answers of each round may take.
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
    """Return the error of a call that waits in vain, and the accusations to send; None if the call may still end.

    Parameters
    ----------
    calls : CallState
        The communicator's calls.
    entry : list
        The call's record.
    known : mapping
        The activity of ranks, from `explored`.
    what : tuple of str
        The call in words, and remarks about other possible reasons.

    Returns
    -------
    tuple of RankMismatch and list, or None
        The error, and pairs of job ranks and the question that accuses them.
    """
    me, uid = calls.backend.members[calls.origin.rank], calls.origin.uid
    stuck = stuck_with(me, uid, known)
    if not stuck or stuck[me][0].now["call"] != entry[SEQUENCE]:
        return None
    waits, told = {member: wait for member, (wait, _) in stuck.items()}, _told_from(me, stuck)
    text = _in_words(waits, told)
    ranks = [waits[each].there["rank"] for each in told if waits[each].uid == uid]
    if entry[NUMBER] and len(ranks) < calls.origin.size:  # other ranks wait in this collective, too
        ranks = ranks[1:] or [calls.backend.members.index(list(told)[1])]
    error = RankMismatch(f"{what[0]}: {text}{what[1]}", ranks=tuple(sorted(ranks)))
    here = {member: each.now["collective"] for member, each in waits.items() if each.uid == uid}
    # All ranks of this communicator are told: others may later wait for the stuck ranks.
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
    """Return the stuck ranks and their waits; empty unless `me` is stuck in the communicator `uid`.

    Waits within that communicator are tried first, then waits in all communicators.
    """
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
    """Return the answers of the ranks that keep `rank` in a message, keyed by rank of the communicator.

    They stand at the ends of the chains of ranks that wait for each other, as far as these are known. Empty if
    `rank` waits for no rank, or for this one.

    Parameters
    ----------
    origin : Origin
        The communicator's identity, with this rank.
    members : sequence of int
        The job ranks of the communicator.
    known : mapping
        The activity of ranks, from `explored`.
    rank : int
        The rank that waits, in the communicator.
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
    """Return the groups of stuck ranks that keep a rank waiting; none if one of the awaited calls may end.

    `groups` has the groups of each call that the rank waits for; any of these calls would end the wait.
    """
    kept = [[group for group in each if group <= stuck] for each in groups]
    if len(kept) == 1:
        return kept[0]
    return [Group().union(*(each[0] for each in kept))] if all(kept) else []


def _waits(answer: Answer, within: str | None, own: bool) -> list[Wait]:
    """Return the call that a rank's program waits for, or all calls of a wait for any; none if it may go on.

    Parameters
    ----------
    answer : Answer
        The rank's answer.
    within : str or None
        The communicator in which waits count; None for all.
    own : bool
        Whether it is this rank, which is known to have waited long.
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
    """Yield the job ranks to ask about a wait. If this rank waits for any rank, it asks all of them."""
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
    """Return the groups of a call. With `sure`, messages that may not be under way any more do not count."""
    there, now = wait
    members, rank, traffic = there["members"], there["rank"], dict(there["traffic"])
    does = {
        members.index(member): each
        for member, answer in known.items()
        for each in answer.facts.get("across", ())
        if each["uid"] == there["uid"]
    }

    def lacks(end: Facts, peer: int) -> bool:
        if peer not in does:  # a rank that ended or is silent has no activity here, but was asked
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
    # If only the rank itself could send to it, it waits for its deadline; if nobody could, they are lost.
    if could - {rank} and all(lacks(end, each) for end in ends for each in could):
        groups.append(Group(members[each] for each in could))
    return groups


def _over(answer: Answer | None, there: Facts | None) -> bool:
    """Whether a rank sends nothing more in a communicator."""
    ended = answer is not None and (answer.state == GONE or bool(answer.facts.get("leaving")))
    return ended or bool(there and there["closed"])


# Words.


def _told_from(me: int, stuck: Stuck) -> dict[int, Group]:
    """Return the stuck ranks that explain why `me` waits, `me` first, and the group that each waits for."""
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
    """Return in words which ranks wait where, and for which ranks."""
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
