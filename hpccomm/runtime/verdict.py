"""What follows from the answers of other ranks about a call that waits: who is missing, or differs.

Pure functions of plain data, which dumps of several ranks can be judged by as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from hpccomm.contracts.side import ANSWERED, GONE, STOPPED, Answer, Facts

MOST_NAMED = 8
"""Groups of ranks that are told of one by one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a call waits.

    Attributes
    ----------
    missing, differing, gone, stopped, silent : tuple of int
        Ranks that have not begun the call; whose call of that number asks for something else; whose process has
        ended; is stopped; did not answer.
    text : str
        The same in words.
    """

    missing: tuple[int, ...]
    differing: tuple[int, ...]
    gone: tuple[int, ...]
    stopped: tuple[int, ...]
    silent: tuple[int, ...]
    text: str

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that the call waits for."""
        return tuple(sorted({*self.missing, *self.gone, *self.stopped, *self.silent}))


def judge(mine: Facts, answers: Mapping[int, Answer]) -> Verdict:
    """Return why the call of this rank waits.

    Parameters
    ----------
    mine : mapping
        What this rank would answer itself.
    answers : mapping of int to Answer
        Those of other ranks, about the call of the same number.
    """
    record, rank = mine["record"] or {}, mine["rank"]
    number = mine["now"]["collective"] if mine["now"] else 0
    came: dict[int, Facts] = {rank: mine}
    absent: dict[str, list[int]] = {GONE: [], STOPPED: [], "silent": [], "missing": []}
    for other, answer in sorted(answers.items()):
        if answer.facts.get("record") and number:
            came[other] = answer.facts
        elif answer.state == ANSWERED:
            absent["missing"].append(other)
        else:
            absent[answer.state].append(other)
    differing = _odd_ones({r: each["record"] for r, each in came.items()} if number else {})
    name = f"{record.get('operation', 'the call')} #{number}" if number else "the message"
    if differing:
        text = f"the ranks call different things as number {number}: {_side_by_side(came)}"
    else:
        parts = [
            _sentence(r, answers[r], name) for r in sorted(chain.from_iterable(absent.values()))
        ]
        if len(parts) > MOST_NAMED:
            parts = [*parts[:MOST_NAMED], f"{len(parts) - MOST_NAMED} more ranks"]
        arrived = [r for r in came if r != rank]
        if not parts:
            parts = ["All ranks have called it, and it is not done"]
        elif arrived:
            parts.append(f"{ranks_named(sorted([rank, *arrived]))} wait in it")
        text = "; ".join(parts)
    return Verdict(
        tuple(absent["missing"]),
        differing,
        tuple(absent[GONE]),
        tuple(absent[STOPPED]),
        tuple(absent["silent"]),
        text,
    )


def ranks_named(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    Examples
    --------
    >>> ranks_named([3]), ranks_named([0, 1, 2, 7])
    ('rank 3', 'ranks 0-2, 7')
    """
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    words = [f"{s[0]}-{s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans]
    if len(words) > MOST_NAMED:
        words = [*words[:MOST_NAMED], "..."]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}"


def _odd_ones(records: Mapping[int, Facts]) -> tuple[int, ...]:
    """Return the ranks whose records differ from what most have."""
    groups: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        groups.setdefault(repr(sorted(record.items(), key=str)), []).append(rank)
    if len(groups) < 2:
        return ()
    most = max(groups.values(), key=len)
    return tuple(sorted(rank for each in groups.values() if each is not most for rank in each))


def _side_by_side(came: Mapping[int, Facts]) -> str:
    """Return what ranks call, only what differs, like ranks together."""
    records = {rank: facts["record"] for rank, facts in came.items()}
    keys = {key for record in records.values() for key in record}
    differ = {
        key for key in keys if len({repr(record.get(key)) for record in records.values()}) > 1
    }
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, facts in sorted(came.items()):
        values = ", ".join(
            f"{key} {facts['record'][key]}"
            for key in sorted(differ - {"operation"})
            if key in facts["record"]
        )
        what = f"{facts['record'].get('operation')}({values})"
        groups.setdefault((what, str(facts.get("site", ""))), []).append(rank)
    return "; ".join(
        f"{ranks_named(ranks)}: {what}{f' at {site}' if site else ''}"
        for (what, site), ranks in groups.items()
    )


def _sentence(rank: int, answer: Answer, name: str) -> str:
    """Return where a rank is that has not come."""
    facts = answer.facts
    who = f"rank {rank}"
    if facts.get("host"):
        who += f" (host {facts['host']}, pid {facts.get('pid')})"
    if answer.state == GONE:
        return f"the process of {who} has ended"
    if answer.state == STOPPED:
        return f"{who} is stopped and has not called {name}"
    if answer.state != ANSWERED:
        return f"{who} does not answer"
    if facts.get("unknown"):
        return f"{who} has no such communicator any more"
    if facts.get("failed"):
        return f"{who} has given up: {facts['failed']}"
    if facts.get("closed"):
        return f"{who} has ended the communicator: it {facts['closed']}"
    now: Facts | None = facts.get("now")
    where: Iterable[str] = [f"it is in {now['operation']}"] if now else []
    if facts.get("doing"):
        where = [*where, f"it is at {facts['doing']}"]
    return f"{who} has not called {name}: {', '.join(where) or 'it has made no call since'}"
