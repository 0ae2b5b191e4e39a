"""The verdict on a late call, from the answers of other ranks: who is missing, or differs.

Pure functions of plain data. `inquiry` uses them while the job runs, and `hpccomm.tools.explain` later, on the dumps.
`deadlock`, `hpccomm.calls.lanes.check` and `hpccomm.communicator.planning` use its words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, STOPPED, Answer, Facts
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.pairing import odd_ones, unfit
from hpccomm.contracts.signature import MEMORY, PLAIN, written
from hpccomm.runtime.progress import FINALIZE
from hpccomm.runtime.traffic import has_begun, unmatched, unreceived
from hpccomm.units import MOST_NAMED, ranks_named

MOST_REFUSALS = 2
"""Most refused calls that are reported."""

LEFT_SECONDS = 2.0
"""Seconds of waiting after which a rank at the end of its program counts as gone, though it had begun the call: the
library may complete the call in its finalisation."""

NO_CALL: Facts = {"record": {"operation": "no call"}, "site": ""}
"""The facts of a rank that has made no call."""

LONGEST_QUOTED = 300
"""Most characters that are quoted of another rank's error."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a call waits.

    Attributes
    ----------
    missing : tuple of int
        Ranks that have not begun the call, or have given it up; for messages also ranks that may have ended rightly.
    differing : tuple of int
        Ranks whose call of that number asks for something else than most ranks' calls.
    gone : tuple of int
        Ranks whose process or program has ended, or that have closed the communicator.
    stopped : tuple of int
        Ranks that are stopped, by SIGSTOP or a debugger.
    silent : tuple of int
        Ranks that did not answer.
    held_up : tuple of int
        Ranks that have not begun the call because they wait in an earlier one, for other ranks that are to blame.
    text : str
        The verdict in words.
    unreceived : str
        Messages that were sent to this rank and that it does not receive, while it waits for another message.
    remarks : str
        The part of `text` that may name the reason: such messages of any rank, and calls that were refused.
    """

    missing: tuple[int, ...]
    differing: tuple[int, ...]
    gone: tuple[int, ...]
    stopped: tuple[int, ...]
    silent: tuple[int, ...]
    held_up: tuple[int, ...]
    text: str
    unreceived: str = ""
    remarks: str = ""

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that the call waits for, without those that are held up."""
        return tuple(sorted({*self.missing, *self.gone, *self.stopped, *self.silent}))


def judge(
    mine: Facts,
    answers: Mapping[int, Answer],
    behind: Callable[[int], Mapping[int, Answer]] = lambda _: {},
    *,
    overdue: bool = True,
) -> Verdict:
    """Return why the call of this rank waits.

    A rank whose last answer shows that it had begun the call, and whose process is gone or silent now, is
    blamed only if nothing else explains why the call waits.

    Parameters
    ----------
    mine : mapping
        This rank's own answer.
    answers : mapping of int to Answer
        Answers of other ranks, about the call of the same number. A silent rank keeps its last
        facts, if any.
    behind : callable, optional
        ``behind(rank)`` returns the ranks that keep a rank in a message, with their answers.
    overdue : bool, optional
        Whether the call has waited long. Before that, different calls are no finding if the ranks compare them
        before they begin: the comparison ends those calls, and the communicator goes on.
    """
    # Below 0 while the communicator is made.
    number = mine["now"]["collective"] if mine["now"] else 0
    absent: dict[int, Answer] = {}
    fallen: dict[int, Answer] = {}
    for rank, answer in sorted(answers.items()):
        if mine.get("closed") and answer.facts.get("closed"):
            continue  # both ranks end the communicator: neither keeps the other waiting
        left = answer.state == ANSWERED and bool(answer.facts.get("leaving"))
        if not number and _has_begun_its_part(mine, rank, answer):
            if left:  # it does nothing more for the message
                fallen[rank] = answer
            continue
        if not has_begun(answer.facts, number):
            absent[rank] = answer
        elif answer.facts.get("failed"):
            fallen[rank] = answer
        elif (left or answer.state != ANSWERED) and not _has_done(answer.facts, number):
            (absent if answer.state == STOPPED else fallen)[rank] = answer
    came = {mine["rank"]: mine}
    if number:
        came |= {rank: each.facts for rank, each in answers.items() if rank not in absent}
    # A rank that ends the communicator needs no calls of ranks that have left theirs by an error.
    ending = (mine.get("record") or {}).get("operation") == FINALIZE
    called = {
        rank: each
        for rank, each in sorted(came.items())
        if each.get("record") and not (ending and each.get("closed"))
    }
    compared = not overdue and all(each.get("compared") for each in called.values())
    differing = _differing(called) if number and not compared else ()
    lists = None if differing else _unfit(mine, called)
    if not absent and not differing:
        absent, came = fallen, {r: each for r, each in came.items() if r not in fallen}

    if differing:
        text = f"the ranks call different things as number {number}: {side_by_side(called)}"
    elif lists is not None:
        text, differing = lists
    elif absent:
        text = _told(mine, number, absent, came)
    else:
        text = "All ranks have called it, and it is not done"
    came_here, came_there = list[str](), list[str]()
    for rank, counts in mine.get("counts", {}).items():
        facts = answers[rank].facts if rank in answers else {}
        there = facts.get("counts", [])
        came_here += unreceived(mine, rank, there, counts)
        came_there += unreceived(facts, mine["rank"], counts, there)
    remarks = "".join(f"; {each}" for each in (*came_here, *came_there)) + refusals(
        {rank: answers[rank].facts if rank in answers else mine for rank in {*absent, *differing}}
    )
    text += remarks
    held_up = tuple(rank for rank, answer in absent.items() if _waits_before(answer, number))
    ends: dict[int, Answer] = {}
    if not number and not differing:
        found = {rank: behind(rank) for rank in absent}
        held_up = tuple(rank for rank, each in found.items() if each)
        ends = {rank: answer for each in found.values() for rank, answer in each.items()}
        sentences = whereabouts(ends, 0, "taken part in the awaited call") if ends else []
        text = "; ".join([text, *sentences])
    blamed = {rank: each for rank, each in absent.items() if rank not in held_up} | ends
    if not blamed:
        held_up, blamed = (), absent
    of_state = {
        state: tuple(rank for rank, answer in blamed.items() if _state(answer) == state)
        for state in (ANSWERED, GONE, STOPPED, SILENT)
    }
    missing, gone = of_state[ANSWERED], of_state[GONE]
    waited = (mine["now"] or {}).get("since", LEFT_SECONDS)
    if waited < LEFT_SECONDS and fallen and absent is fallen:
        hasty = tuple(rank for rank in gone if fallen[rank].state == ANSWERED)
        missing, gone = (*missing, *hasty), tuple(rank for rank in gone if rank not in hasty)
    if not number and len(gone) < len(answers):
        # A message may not need the ranks that are gone: they may have ended rightly.
        missing, gone = (*missing, *gone), ()
    return Verdict(
        missing,
        tuple(sorted(differing)),
        gone,
        of_state[STOPPED],
        of_state[SILENT],
        held_up,
        text,
        "; ".join(came_here),
        remarks,
    )


def _waits_before(answer: Answer, number: int) -> bool:
    """Whether a rank waits in a collective of this communicator before `number`."""
    now = answer.facts.get("now") or {"collective": 0}
    return answer.state == ANSWERED and 0 < now["collective"] < number


def _state(answer: Answer) -> str:
    """Return the state of a rank; a rank without further calls counts as gone."""
    left = answer.facts.get("leaving") or answer.facts.get("closed")
    return GONE if answer.state == ANSWERED and left else answer.state


def _has_done(facts: Facts, number: int) -> bool:
    done: int = facts.get("done", 0)
    return done >= number


def _differing(called: Mapping[int, Facts]) -> tuple[int, ...]:
    """Return the ranks whose calls differ from that of the majority; all ranks without a majority."""
    return odd_ones({rank: written(facts["record"]) for rank, facts in called.items()})


def _unfit(mine: Facts, called: Mapping[int, Facts]) -> tuple[str, tuple[int, int]] | None:
    """Return in words how the counts of two ranks in an uneven call differ, and the two ranks; None if they fit."""
    for rank, facts in called.items():
        own = () if rank == mine["rank"] else mine.get("between", {}).get(rank, ())
        for here, there in zip(own, facts.get("between", ()), strict=False):
            text = unfit(mine["rank"], here, rank, there)
            if text is not None:
                return text, (mine["rank"], rank)
    return None


def _has_begun_its_part(mine: Facts, rank: int, answer: Answer) -> bool:
    """Whether a rank has begun all sends and receives that this rank's message call needs."""
    own = mine["now"]
    if own is None or "waits" not in own or answer.state != ANSWERED:
        return False
    there, here = answer.facts.get("counts", ()), mine.get("counts", {}).get(rank, ())
    waits = [wait for wait in own["waits"] if wait["peer"] in (rank, None)]
    lacking = [unmatched(wait, there, here) for wait in waits]
    return not (all(lacking) and waits if any(wait["open"] for wait in waits) else any(lacking))


# Words.


def _told(mine: Facts, number: int, absent: Mapping[int, Answer], came: Mapping[int, Facts]) -> str:
    """Return in words which ranks are absent, where they are, and which ranks wait for them."""
    operation = (mine["record"] or mine["now"] or {}).get("operation", "the call")
    what = f"called {operation} #{number}" if number > 0 else f"taken part in the {operation}"
    sentences = whereabouts(absent, number, what)
    if len(came) > 1:
        sites = {str(each.get("site", "")) for each in came.values()}
        at = f" at {sites.pop()}" if len(sites) == 1 and "" not in sites else ""
        sentences.append(f"{ranks_named(sorted(came))} wait in it{at}")
    return "; ".join(sentences)


def whereabouts(absent: Mapping[int, Answer], number: int, what: str) -> list[str]:
    """Return where the missing ranks of a call are: one sentence for all ranks with the same facts.

    Parameters
    ----------
    absent : mapping of int to Answer
        The last answer of each missing rank.
    number : int
        Number of the call; 0 for a message.
    what : str
        What the ranks have not done, such as ``"called all_reduce #7"``.
    """
    groups: dict[str, list[int]] = {}
    for rank, answer in absent.items():
        groups.setdefault(_predicate(answer, number, what), []).append(rank)
    sentences = [_sentence(ranks, predicate, absent) for predicate, ranks in groups.items()]
    if len(sentences) > MOST_NAMED:
        rest = sorted(rank for ranks in list(groups.values())[MOST_NAMED:] for rank in ranks)
        sentences = [
            *sentences[:MOST_NAMED],
            _sentence(
                rest,
                f"{{who}} {{has}} not {what} either",
                {rank: Answer(ANSWERED) for rank in rest},
            ),
        ]
    return sentences


def _sentence(ranks: Sequence[int], predicate: str, absent: Mapping[int, Answer]) -> str:
    """Return the sentence about ranks; a mark such as ``{is}`` in the predicate becomes "is" or "are"."""
    facts, one = absent[ranks[0]].facts, len(ranks) == 1
    who = ranks_named(ranks)
    hosts = sorted({str(absent[rank].facts.get("host", "")) for rank in ranks})
    if hosts[0] and len(hosts) <= MOST_NAMED:
        who += f" on node{'s' if len(hosts) > 1 else ''} {', '.join(hosts)}"
    if one and facts.get("pid"):
        who += f" (pid {facts['pid']})"
    words = (
        ("{has}", "has", "have"),
        ("{is}", "is", "are"),
        ("{was}", "was", "were"),
        ("{does}", "does", "do"),
        ("{it}", "it", "they"),
        ("{process}", "process", "processes"),
    )
    for mark, singular, plural in words:
        predicate = predicate.replace(mark, singular if one else plural)
    return predicate.replace("{who}", who)


def _predicate(answer: Answer, number: int, what: str) -> str:
    """Return the words on a missing rank, with marks for its name and verbs: the same for ranks with the same facts."""
    facts = answer.facts
    begun = ", which {has} called it," if has_begun(facts, number) else ""
    if answer.state == GONE:
        return f"the {{process}} of {{who}}{begun} {{has}} ended{_last(facts)}"
    if answer.state == STOPPED:
        return f"{{who}}{begun} {{is}} stopped, by SIGSTOP or a debugger{_last(facts)}"
    if not facts.get("failed") and facts.get("leaving") and facts.get("now"):
        call = f"{_named(facts['now'])} at {facts['now'].get('site')}".removesuffix(" at ")
        return f"{{who}} {{has}} come to the end of the program without waiting for {call}"
    if facts.get("ending"):
        return f"{{who}}{begun} {{has}} come to the end of the program{_last(facts)}"
    if answer.state != ANSWERED:
        return (
            f"{{who}}{begun} {{does}} not answer: {{it}} {{is}} in native code that holds the "
            f"interpreter, or out of reach{_last(facts)}"
        )
    if facts.get("failed"):
        return f"{{who}} {{has}} given up: {_quoted(facts['failed'])}"
    if facts.get("leaving") or facts.get("over"):
        left = f", but for {_quoted(facts['over'])}" if facts.get("over") else ""
        return f"{{who}} {{has}} come to the end of the program without this call{left}"
    if facts.get("closed"):
        return f"{{who}} {{has}} no use of the communicator any more: it {_quoted(facts['closed'])}"
    if facts.get("unknown"):
        at = _at(facts)
        return f"{{who}} {{has}} no such communicator{f': {{it}} {at}' if at else ''}"
    if facts.get("error"):
        return f"{{who}} cannot tell what {{it}} {{does}}: {_quoted(facts['error'])}"
    at = _at(facts)
    return f"{{who}} {at}, and {{has}} not {what}" if at else f"{{who}} {{has}} not {what}"


def _at(facts: Facts) -> str:
    """Return where a rank is: ``{is} in step(), train.py line 41``."""
    now = facts.get("now")
    place = (now and now.get("site")) or facts.get("doing")
    where = " at ".join(filter(None, (_named(now) if now else "", place)))
    return f"{{is}} in {where}" if where else ""


def _last(facts: Facts) -> str:
    """Return the known facts of a rank, from its last answer."""
    now, collective = facts.get("now"), facts.get("collective")
    if facts.get("failed"):
        return f"; {{it}} had given up: {_quoted(facts['failed'])}"
    if now:
        return f"; when last heard of, {{it}} {{was}} in {_named(now)}"
    return f"; the last call heard of was #{collective}" if collective else ""


def _named(now: Facts) -> str:
    return numbered(now["operation"], now["collective"])


def numbered(operation: str, number: int) -> str:
    """Return a call in words, such as ``all_reduce #7``; for a message, which has no number, its name."""
    return f"{operation} #{number}" if number > 0 else operation


def refusals(facts: Mapping[int, Facts]) -> str:
    """Return in words the last call that each rank refused; empty if no rank refused one.

    A program that catches the error of a refusal goes on without the call that other ranks wait for.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, each in sorted(facts.items()):
        if lately := each.get("refused"):
            groups.setdefault((lately["site"], lately["error"]), []).append(rank)
    told = ""
    for (site, error), ranks in list(groups.items())[:MOST_REFUSALS]:
        ago = min(facts[rank]["refused"]["ago"] for rank in ranks)
        at = f" at {site}" if site else ""
        told += f"; {ranks_named(ranks)} had a call refused{at} {ago:.1f} s ago: {_quoted(error)}"
    return told


def _quoted(text: object) -> str:
    # Braces would be taken for marks.
    quoted = str(text).replace("{", "(").replace("}", ")")
    return quoted if len(quoted) <= LONGEST_QUOTED else f"{quoted[:LONGEST_QUOTED]}..."


def unlike(records: Mapping[int, Facts]) -> dict[str, dict[int, str]]:
    """Return the differing fields of the ranks' records, with each rank's value in words."""
    keys = sorted({key for record in records.values() for key in record})
    return {
        key: {rank: str(record.get(key, "none")) for rank, record in records.items()}
        for key in keys
        if len({written(record.get(key)) for record in records.values()}) > 1
    }


def side_by_side(called: Mapping[int, Facts]) -> str:
    """Return the differing parts of the ranks' calls in words; ranks with the same call stand together."""
    records = {rank: facts["record"] for rank, facts in called.items()}
    batches = [record.get("calls", ()) for record in records.values()]
    in_turn = zip_longest(*batches, fillvalue=NO_CALL["record"]) if all(batches) else ()
    for number, each in enumerate(in_turn, 1):
        if len({written(one) for one in each}) > 1:  # the first difference tells
            met = {r: {**called[r], "record": one} for r, one in zip(called, each, strict=True)}
            return f"call {number} of the batch: {side_by_side(met)}"
    for rank, each in zip(records, batches, strict=True):
        if each:
            records[rank] = {**records[rank], "calls": ", ".join(one["operation"] for one in each)}
    fields = unlike(records)
    differ = [key for key in fields if key != "operation"]
    groups: dict[str, list[int]] = {}
    for rank, record in records.items():
        known = record if MEMORY not in fields else {MEMORY: PLAIN, **record}
        values = ", ".join(f"{key} {known[key]}" for key in differ if key in known)
        site = called[rank].get("site", "")
        call = f"{record.get('operation')}({values}){f' at {site}' if site else ''}"
        groups.setdefault(call, []).append(rank)
    told = [f"{ranks_named(ranks)}: {call}" for call, ranks in groups.items()]
    if len(told) > MOST_NAMED:
        told = [*told[:MOST_NAMED], f"and {len(told) - MOST_NAMED} more"]
    dtypes = "dtype" in differ and "operation" not in fields
    hint = "; give one dtype on all ranks, such as x.astype(float) or float(x)" * dtypes
    rows = {str(record.get("shape")).partition(",")[2] for record in records.values()}
    uneven = differ == ["count", "shape"] and len(rows) == 1 and rows != {""} and "op" not in record
    if uneven and f"{record['operation']}_v" in CALLS:
        hint += f"; {record['operation']}_v takes blocks of different sizes"
    if "operation" not in fields and MEMORY in fields:
        hint += (
            "; give registered arrays on all ranks, such as x = comm.empty(shape, dtype), or plain ones on all: "
            "of a rank's x and out both must be registered"
        )
    return "; ".join(told) + hint
