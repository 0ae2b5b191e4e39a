"""What ranks would have answered about a call, from their dumps and from what others heard of them.

`hpccomm.runtime.verdict.judge` draws the conclusions, as it does while a job runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpccomm.contracts.side import ANSWERED, Answer
from hpccomm.diagnosis.dumps import RecordedCall
from hpccomm.diagnosis.history import Job
from hpccomm.runtime.verdict import Verdict, judge
from hpccomm.units import ranks_named

SIGNALS = ("was sent SIGTERM", "was interrupted")
"""What the last words of ranks say that were ended from outside, or for another rank."""


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """What is judged of a call.

    Attributes
    ----------
    verdict : Verdict
        Why it waits.
    answers : mapping of int to Answer
        By what.
    unheard : tuple of int
        Ranks of which nothing is known.
    """

    verdict: Verdict
    answers: Mapping[int, Answer]
    unheard: tuple[int, ...]

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks that are known not to take part."""
        return tuple(sorted({*self.verdict.absent, *self.verdict.held_up}))


def judged(job: Job, call: RecordedCall, rank: int, others: Iterable[int]) -> JudgedCall:
    """Return why a call waits that a rank has made.

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
    now = {
        "operation": call.operation,
        "collective": number,
        "since": call.waited(job.dumps[rank].time),
    }
    mine = {"rank": rank, "now": now, "record": call.record if number else None, "site": call.site}
    known = {each: answer for each, answer in answers.items() if answer is not None}
    return JudgedCall(
        judge(mine, known), known, tuple(each for each in answers if each not in known)
    )


def heard(job: Job, rank: int, uid: str, number: int = 0) -> Answer | None:
    """Return what a rank would have answered about the collective of that number, or about a message (0).

    None where nothing is known: it left no dump, and gave no answer.
    """
    seen, history = job.seen(rank, uid), job.histories[uid]
    host, begun = host_of(job, rank), history.begun.get(rank, 0)
    facts: dict[str, object] = {"host": host} if host else {}
    if 0 < number <= begun:
        call = history.calls.get(rank, {}).get(number)
        facts |= {"collective": begun, "done": 0 if seen is None else seen.done or 0}
        facts["leaving"] = seen is not None and seen.left
        if call is not None:
            facts |= {"record": call.record, "site": call.site}
            facts["done"] = facts["done"] if call.open else number
        return Answer(ANSWERED if rank in job.dumps or seen is None else seen.state, facts)
    if rank not in job.dumps:
        if seen is None:
            return None
        facts |= {"doing": seen.doing, "failed": seen.failed, "collective": begun}
        if seen.operation:
            facts["now"] = {"operation": seen.operation, "collective": 0, "site": seen.site}
        return Answer(seen.state, facts)
    call, waiting = _under_way(job, rank)
    if call is not None:
        name = call_name(job, call.uid, call.number, call.operation)
        site = call.site + (f" ({waiting})" if waiting else "")
        facts["now"] = {"operation": name, "collective": 0, "site": site}
        return Answer(ANSWERED, facts)
    if seen is not None and seen.left:
        return Answer(ANSWERED, {**facts, "leaving": True})
    raised = job.raised.get(rank)
    if raised is not None:
        facts["failed"] = f"raised {raised.text.partition(':')[0]}{at_place(raised.site)}"
        return Answer(ANSWERED, facts)
    failed = [
        each
        for each in job.dumps[rank].calls
        if each.state == "failed" and each.uid == uid and not job.gone_on(rank, each)
    ]
    ended = job.dumps[rank].ended.removeprefix(f"rank {rank} ")
    if any(each in ended for each in SIGNALS) and seen is not None and seen.doing:
        ended = ""  # that is how the job ended, and where the rank was says more
    ended = ended or _ending(job.dumps[rank].reason)
    facts["failed"] = ended or (failed[-1].error if failed else "") or (seen and seen.failed)
    facts["doing"] = "" if seen is None else seen.doing
    return Answer(ANSWERED, facts)


def _under_way(job: Job, rank: int) -> tuple[RecordedCall | None, str]:
    """Return the call that a rank is in, and for whom it waits there, in words."""
    waits = list(job.waiting(rank))
    if waits:
        last = waits[-1]
        return last.call, f"waiting for {ranks_named(last.awaited)} for {last.seconds:.1f} s"
    under_way = [call for call in job.dumps[rank].calls if call.state == "started"]
    return (under_way[-1], "") if under_way else (None, "")


def call_name(job: Job, uid: str, number: int, operation: str) -> str:
    """Return a call in words: ``all_reduce #7 of communicator 'world'``."""
    which = f"{operation} #{number}" if number else operation
    return f"{which} of communicator {job.histories[uid].group.name!r}"


def host_of(job: Job, rank: int) -> str:
    """Return the host of a rank; empty if it is not known."""
    if rank in job.dumps:
        return job.dumps[rank].host
    seen = (job.seen(rank, uid) for uid in job.histories)
    return next((each.host for each in seen if each is not None), "")


def at_place(site: str) -> str:
    """Return a place of the program in brackets; empty if it is not known."""
    return f" ({site})" if site else ""


def _ending(reason: str) -> str:
    """Return why a rank ended, if that is why it has written its dump."""
    ended = any(word in reason.lower() for word in ("exception", "exit", "sigterm"))
    return _first_line(reason) if ended else ""


def _first_line(text: str) -> str:
    return text.strip().split("\n", maxsplit=1)[0].rstrip(".")
