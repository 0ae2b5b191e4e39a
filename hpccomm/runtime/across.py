"""Finds ranks that wait for each other in a circle, across several communicators.

Ranks may call several communicators in different orders. The awaited rank of a late call may wait
in another communicator itself, and so on: a rank that follows this chain back to itself has found a
circle. Its program must have only one thread, since another one might make the call. `inquiry` asks
it. It is loaded at the start: later, the program may have lost the right to read it, or have no
file left to open.
"""

from collections.abc import Callable, Iterator, Sequence

from hpccomm.contracts.side import ANSWERED, Facts
from hpccomm.errors import RankMismatch
from hpccomm.runtime import answering
from hpccomm.runtime.state import CallState
from hpccomm.runtime.traffic import BLOCKED_SECONDS, shortest_round, unmatched
from hpccomm.runtime.verdict import numbered

MOST_ASKED = 64
"""The most ranks to ask."""

MOST_AWAITED = 8
"""The most awaited ranks to follow from one rank."""


def found(
    calls: CallState, late: Sequence[int], described: str, seconds: float
) -> RankMismatch | None:
    """Return the error of a call that waits for ranks which wait for this one elsewhere; None if none do.

    Parameters
    ----------
    calls : CallState
        The communicator's.
    late : sequence of int
        Its ranks that have not come.
    described : str
        The call.
    seconds : float
        How long an answer may take.
    """
    here = answering.across()
    own = next((each for each in here["across"] if each["uid"] == calls.origin.uid), None)
    if calls.backend.shares_process or not here["alone"] or own is None or not _held([own], 0.0):
        return None

    def ask(member: int, question: Facts) -> Facts | None:
        for each in (calls, *answering.communicators()):
            side, members = each.backend.side, list(each.backend.members)
            if side is not None and member in members:
                rank = members.index(member)
                asked = {"comm": each.origin.uid, **question}
                answer = side.ask([rank], asked, seconds)[rank]
                return answer.facts if answer.state == ANSWERED else None
        return None

    members = calls.backend.members
    waits = in_a_round(
        here["across"],
        own,
        [members[each] for each in late],
        lambda member: ask(member, {"across": True}),
    )
    if not waits:
        return None
    told = "; ".join(map(_told, waits))
    error = RankMismatch(
        f"{described}: the ranks wait for each other in several communicators: {told}; "
        "call the communicators in one order on all ranks",
        ranks=[late[[members[each] for each in late].index(waits[1]["member"])]],
    )
    for each in waits[1:]:
        accusation = {
            "kind": "RankMismatch",
            "collective": each["now"]["collective"],
            "text": str(error),
            "ranks": [each["rank"]],
            "all": True,
        }
        ask(each["member"], {"accuse": accusation, "in": each["uid"]})
    return error


def in_a_round(
    here: Sequence[Facts], own: Facts, late: Sequence[int], ask: Callable[[int], Facts | None]
) -> list[Facts]:
    """Return the waits of a circle of ranks, from `own` on; or an empty list.

    Parameters
    ----------
    here : sequence of mapping
        This rank's activity on each of its communicators.
    own : mapping
        The one in which it waits.
    late : sequence of int
        The ranks, as the job numbers them, which have not come to it.
    ask : callable
        Returns the answer of such a rank, if it answers.
    """
    me = own["members"][own["rank"]]
    waits: dict[int, Facts | None] = {me: own}
    does: dict[int, Sequence[Facts]] = {me: here}

    def asked(member: int) -> Sequence[Facts]:
        """Return a rank's activity; nothing if it has other threads."""
        if member not in does:
            facts = ask(member) if len(does) <= MOST_ASKED else None
            does[member] = facts["across"] if facts is not None and facts.get("alone") else []
            # Each answer stays true: each rank is held up by the next.
            waits[member] = _held(does[member], BLOCKED_SECONDS)
        return does[member]

    def awaited(member: int) -> Iterator[int]:
        wait = waits[member]
        if wait is None:
            return
        if member != me and _awaits(wait, here):
            yield me
        for each in late[:MOST_AWAITED] if member == me else _awaited(wait):
            if each != me and _awaits(wait, asked(each)):
                yield each

    others = shortest_round(me, awaited)
    path = [own, *({**(waits[member] or {}), "member": member} for member in others)]
    # Within one communicator its own verdict tells more.
    return path if len({each["uid"] for each in path}) > 1 else []


def _held(there: Sequence[Facts], seconds: float) -> Facts | None:
    """Return where a rank is held up."""
    for each in there:
        now = each["now"]
        if now and now["held"] and now["since"] >= seconds and not each["failed"]:
            return each
    return None


def _awaits(wait: Facts, there: Sequence[Facts]) -> bool:
    """Whether a rank waits in vain for another one, which does this on its communicators."""
    own = next((each for each in there if each["uid"] == wait["uid"]), None)
    if own is None or own["rank"] == wait["rank"]:
        return False
    now = wait["now"]
    if now["collective"] > 0:
        return bool(own["collective"] < now["collective"])
    counts = dict(own["traffic"]).get(wait["rank"], [])
    ends = [end for end in now.get("waits", ()) if end["sure"] and end["peer"] == own["rank"]]
    return any(unmatched(end, counts) for end in ends)


def _awaited(wait: Facts) -> Iterator[int]:
    """Yield the ranks for which one may wait, as the job numbers them."""
    now, members = wait["now"], wait["members"]
    if now["collective"] > 0:
        ranks = wait["awaited"] or [each for each in range(len(members)) if each != wait["rank"]]
    else:
        ranks = [end["peer"] for end in now.get("waits", ()) if end["sure"]]
    yield from (members[each] for each in ranks[:MOST_AWAITED])


def _told(wait: Facts) -> str:
    now = wait["now"]
    call = numbered(now["operation"], now["collective"])
    at = f" at {now['site']}" if now["site"] else ""
    return f"rank {wait['rank']} of {wait['communicator']!r} waits in {call}{at}"
