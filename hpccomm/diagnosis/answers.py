"""The answers that ranks would have given about a call, from dumps written after the job failed.

They come from a rank's own dump, and from the answers that other ranks recorded.
`hpccomm.runtime.verdict.judge` draws the conclusions, as it does while a job runs. `faults` and
`words` ask it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpccomm.contracts.side import ANSWERED, Answer
from hpccomm.diagnosis.dumps import Dump, RecordedCall
from hpccomm.diagnosis.history import Job
from hpccomm.runtime.verdict import Verdict, judge, numbered
from hpccomm.units import ranks_named

SIGNALS = ("was sent SIGTERM", "was interrupted")
"""In the last words of ranks that were ended from outside, or because of another rank."""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """The facts of a call that the verdict needs.

    Attributes
    ----------
    verdict : Verdict
        Why it waits.
    answers : mapping of int to Answer
        What that rests on.
    unheard : tuple of int
        Ranks that left no trace.
    """

    verdict: Verdict
    answers: Mapping[int, Answer]
    unheard: tuple[int, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that are known not to take part."""
        return tuple(sorted({*self.verdict.absent, *self.verdict.held_up}))


def judged(job: Job, call: RecordedCall, rank: int, others: Iterable[int]) -> JudgedCall:
    """Return why a rank's call waits.

    Parameters
    ----------
    call : RecordedCall
        The call.
    rank : int
        The rank that waits.
    others : iterable of int
        The ranks that it may wait for.
    """
    number = call.number
    answers = {each: heard(job, each, call.uid, number) for each in others if each != rank}
    since = call.waited(job.dumps[rank].time)
    now = {"operation": call.operation, "collective": number, "since": since}
    own = {"rank": rank, "now": now, "record": call.record if number else None, "site": call.site}
    known = {each: answer for each, answer in answers.items() if answer is not None}
    unheard = tuple(each for each in answers if each not in known)
    return JudgedCall(judge(own, known), known, unheard)


def heard(job: Job, rank: int, uid: str, number: int = 0) -> Answer | None:
    """Return a rank's answer about the collective of that number, or about a message (0).

    None where nothing is known: it left no dump, and gave no answer.
    """
    seen, history, dump = job.seen(rank, uid), job.histories[uid], job.dumps.get(rank)
    if dump is None and seen is None:
        return None
    state = ANSWERED if dump or seen is None else seen.state
    known = {} if seen is None else seen.facts
    begun = history.begun.get(rank, 0)
    facts: dict[str, object] = {"host": host_of(job, rank)}
    if 0 < number <= begun:
        call = history.calls.get(rank, {}).get(number)
        facts |= {"collective": begun, "done": known.get("done", 0)}
        facts["leaving"] = known.get("leaving", False)
        if call is not None:
            facts |= {"record": call.record, "site": call.site}
            facts["done"] = facts["done"] if call.open else number
        return Answer(state, facts)
    if dump is None:
        return Answer(state, {**known, **facts, "collective": begun})
    waits = list(job.waiting(rank))
    under_way = [call for call in dump.calls if call.state == "started"]
    if waits or under_way:
        call = waits[-1].call if waits else under_way[-1]
        name, site = call_name(job, call.uid, call.number, call.operation), call.site
        if waits:
            site += f" (waiting for {ranks_named(waits[-1].awaited)} for {waits[-1].seconds:.1f} s)"
        facts["now"] = {"operation": name, "collective": 0, "site": site}
    elif known.get("leaving"):
        facts["leaving"] = True
    elif rank in job.raised:
        raised = job.raised[rank]
        facts["failed"] = f"raised {raised.error.partition(':')[0]}{at_place(raised.site)}"
    else:
        doing = facts["doing"] = known.get("doing")
        facts["failed"] = _ended(dump, doing) or _failed(job, dump, uid) or known.get("failed")
    return Answer(ANSWERED, facts)


def _ended(dump: Dump, doing: object) -> str:
    """Return why a rank ended, in its own words; empty if it did not, or if where it was says more."""
    ended = dump.ended.removeprefix(f"rank {dump.rank} ")
    if doing and any(each in ended for each in SIGNALS):
        ended = ""
    wrote = any(word in dump.reason.lower() for word in ("exception", "exit", "sigterm"))
    return ended or (dump.reason.strip().split("\n", maxsplit=1)[0].rstrip(".") if wrote else "")


def _failed(job: Job, dump: Dump, uid: str) -> str:
    """Return the error of the last failed call on a communicator; a call that its rank recovered from does not count."""
    failed = [call for call in dump.calls if call.state == "failed" and call.uid == uid]
    errors = [call.error for call in failed if not job.gone_on(dump.rank, call)]
    return errors[-1] if errors else ""


def call_name(job: Job, uid: str, number: int, operation: str) -> str:
    """Return a call in words: ``all_reduce #7 of communicator 'world'``."""
    return f"{numbered(operation, number)} of communicator {job.histories[uid].group.name!r}"


def host_of(job: Job, rank: int) -> str:
    """Return the host of a rank; empty if it is not known."""
    if rank in job.dumps:
        return job.dumps[rank].host
    answers = (job.seen(rank, uid) for uid in job.histories)
    return next((each.facts["host"] for each in answers if each is not None), "")


def at_place(site: str) -> str:
    """Return a place of the program in brackets; empty if it is not known."""
    return f" ({site})" if site else ""
