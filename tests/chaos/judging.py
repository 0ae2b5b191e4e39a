"""Whether what was seen of a job is what hpccomm promises: pure functions, tested by made-up jobs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .cases import Case
from .expecting import ENDED, Expected, expected
from .running import Seen

HANG = "hang"
CRASH = "crash"
WRONG = "wrong number"
"""A wrong result, and nobody was told: the job ended with status 0."""
UNTOLD = "not told"
"""The job ended as if nothing had happened, though no number was seen to be wrong."""
EARLIER = "wrong number before the error"
CLASS = "wrong class"
STATUS = "wrong status"
SLOW = "too late"
UNNAMED = "not named"
LEFT = "left behind"
INTERNAL = "failure of hpccomm's own"
BROKEN = "failed without the fault"
LAUNCHER = "crash of the launcher"
"""Not of the library's making: the shell tells of its child, and the launcher of no rank."""
SHORTFALLS = (
    *(
        HANG,
        CRASH,
        WRONG,
        UNTOLD,
        EARLIER,
        CLASS,
        STATUS,
        SLOW,
        UNNAMED,
        LEFT,
        INTERNAL,
        BROKEN,
        LAUNCHER,
    ),
)
"""From the worst on."""

_SIGNALS = (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
_CRASHES = re.compile(
    r"signal (?:4|6|7|8|11)\b|EXIT CODE: (?:4|6|7|8|11|132|134|135|136|139)\b"
    r"|Segmentation fault \(|Bus error|double free|free\(\): invalid|malloc\(\): |corrupted "
    r"|Fatal Python error|stack smashing|Signal: (?:Aborted|Segmentation|Bus)"
)
_LAUNCHER_CRASHED = re.compile(r"^ ?(?:Segmentation fault|Aborted)$", re.MULTILINE)
_INTERNAL = re.compile(
    r"the watchdog failed|could not be ended cleanly|an abort hook of|a step of the exit failed"
    r"|Exception in thread|Exception ignored|Timeout \(\d+:\d\d:\d\d\)!"
    r"|AssertionError|AttributeError|UnboundLocalError|KeyError|ImportError"
)


@dataclass(frozen=True)
class Verdict:
    """What a case showed.

    Attributes
    ----------
    shortfalls : tuple of (str, str)
        Each one's class, of `SHORTFALLS`, and what was expected and seen.
    named : bool or None
        Whether the ranks that are missing or differ were named, rightly; None where nobody had to.
    """

    shortfalls: tuple[tuple[str, str], ...]
    named: bool | None

    @property
    def worst(self) -> str | None:
        """The class of the worst shortfall."""
        found = {name for name, _ in self.shortfalls}
        return next((name for name in SHORTFALLS if name in found), None)


def judge(case: Case, seen: Seen) -> Verdict:
    """Return what a case showed."""
    wanted = expected(case)
    found = list(_anywhere(case, seen, wanted))
    if seen.status is None:
        return Verdict((*found, (HANG, "the job had to be killed")), _named(case, seen, wanted))
    if seen.fault_at is None and case.kind != "disk":
        told = "; ".join(_words(seen)) or "nobody told an error"
        found.append((BROKEN, f"status {seen.status} before the fault came: {told}"))
        return Verdict(tuple(found), None)
    if seen.seconds > wanted.within:
        found.append(
            (SLOW, f"it ended {seen.seconds:.1f} s after the fault, not {wanted.within:g}")
        )
    if wanted.success or (wanted.success is None and seen.status == 0):
        return Verdict((*found, *_unlike_success(case, seen, wanted)), None)
    if seen.status == 0 and not (case.ulfm and _outcomes(seen)):
        what = WRONG if _has_wrong(seen) else UNTOLD
        found.append((what, "status 0; an error was expected on the ranks"))
        return Verdict(tuple(found), False)
    statuses = wanted.statuses
    if statuses is not None and seen.vendor == "mpich":
        statuses |= {9}  # its launcher may tell of the ranks that it kills then
    if statuses is not None and seen.status not in statuses:
        allowed = ", ".join(map(str, sorted(statuses)))
        found.append((STATUS, f"status {seen.status}, not {allowed}"))
    found += _classes(case, seen, wanted)
    named = _named(case, seen, wanted)
    if named is False:
        found.append((UNNAMED, f"{_culprits(case)} expected; told: {_namings(case, seen)}"))
    return Verdict(tuple(found), named)


def _anywhere(case: Case, seen: Seen, wanted: Expected) -> Iterator[tuple[str, str]]:
    """Yield what must never be, however the job ends."""
    status = seen.status or 0
    killed = -status if status < 0 else status - 128
    crash = _CRASHES.search(seen.stderr)
    if not crash and _LAUNCHER_CRASHED.search(seen.stderr):
        yield LAUNCHER, f"status {status}: a crash that no rank is said to have had"
    elif killed in _SIGNALS or crash:
        yield CRASH, f"status {seen.status}, {crash[0] if crash else f'signal {killed}'!r}"
    own = _INTERNAL.search(seen.stderr)
    if own:
        line = next(line for line in seen.stderr.splitlines() if own[0] in line)
        yield INTERNAL, line.strip()[:160]
    if case.kind == "disk" and "Traceback" in seen.stderr:
        yield INTERNAL, "a traceback of perf"
    if not wanted.shifted and seen.status != 0 and _has_wrong(seen):
        yield EARLIER, f"ranks {_wrong_ranks(seen)} got a wrong number before anything was told"
    for each in (*seen.processes, *seen.files):
        yield LEFT, each


def _unlike_success(case: Case, seen: Seen, wanted: Expected) -> Iterator[tuple[str, str]]:
    if seen.status != 0:
        yield (
            STATUS,
            f"status {seen.status}, not 0: {'; '.join(_words(seen)) or 'no error was told'}",
        )
    elif _has_wrong(seen):
        yield WRONG, f"status 0, and ranks {_wrong_ranks(seen)} got wrong numbers"
    elif wanted.success and any(
        seen.events[rank][-1]["event"] != "done" for rank in range(case.ranks)
    ):
        yield UNTOLD, "status 0, and not all ranks came to their end"


def _classes(case: Case, seen: Seen, wanted: Expected) -> Iterator[tuple[str, str]]:
    """Yield ranks whose errors are not of the right class, or that told none."""
    if case.kind == "disk":
        return
    outcomes = _outcomes(seen)
    for rank, outcome in outcomes.items():
        if rank in _healthy(case) and not wanted.errors.intersection(_kinds(outcome)):
            told = f"{outcome['error']}: {outcome['text'][:200]}"
            yield CLASS, f"rank {rank}: {told}, not {' or '.join(sorted(wanted.errors))}"
    by_hpccomm = seen.status == ENDED or "The job ends" in seen.stderr
    ended = by_hpccomm or wanted.launcher or not case.caught
    silent = sorted((wanted.told_by or _healthy(case)) - set(outcomes))
    if silent and not ended and not wanted.told_by.intersection(outcomes):
        yield CLASS, f"ranks {silent} told no error, and hpccomm did not end the job"
    if seen.status == ENDED and not outcomes and "hpccomm" not in seen.stderr:
        yield CLASS, "status 3 without a word of hpccomm's"


def _kinds(outcome: dict[str, Any]) -> set[str]:
    """Return the classes of an error; of a call on a communicator that has failed, those of its failure."""
    failure = re.search(r"takes no more calls \((\w+): ", outcome["text"])
    return {*outcome["kinds"], *([failure[1]] if failure else [])}


def _named(case: Case, seen: Seen, wanted: Expected) -> bool | None:
    """Return whether the faulty ranks were named, by every healthy rank that told an error.

    Where none did, since the job was ended before: in what the job wrote.
    """
    if wanted.success is True or case.kind == "disk":
        return None
    told = _outcomes(seen)
    outcomes = [outcome for rank, outcome in told.items() if rank in _healthy(case)]
    if outcomes:
        return all(_names(case, outcome) for outcome in outcomes)
    if case.faulty in wanted.told_by and case.faulty in told:
        return bool(told[case.faulty]["ranks"])  # itself, or those whose call is another one
    if case.kind == "exception" or not wanted.launcher or seen.status == ENDED:
        told = _accusing(seen.stderr, own=case.kind == "exception")
        return any(_mentions(told, rank) for rank in case.faulty_ranks)
    return None


def _names(case: Case, outcome: dict[str, Any]) -> bool:
    """Return whether one rank's error names whom it should."""
    if "BufferMismatch" in outcome["kinds"]:  # of one message: the communicator is as it was
        return any(_mentions(outcome["text"], rank) for rank in case.faulty_ranks)
    ranks = frozenset(outcome["ranks"])
    if not ranks - {outcome["rank"]}:
        return False
    culprits = case.faulty_ranks
    if case.on_hosts and outcome["rank"] in culprits:  # it is cut off from all others
        culprits = frozenset(range(case.ranks)) - culprits
    if case.ranks == 2 and case.kind not in ("stop", "overdue", "lost"):
        return True  # of two that differ, either does
    if ranks & culprits:
        return ranks == culprits or _may_wait_behind(case, ranks)
    # A message may be missing since the sender waits for the faulty rank itself.
    return case.operation == "message" and ranks == {(outcome["rank"] - 1) % case.ranks}


def _may_wait_behind(case: Case, ranks: frozenset[int]) -> bool:
    """Return whether ranks besides the faulty ones may be named: those that it holds up.

    So it is where ranks leave a collective at different times: some are calls ahead of others.
    """
    ahead = (
        case.collective not in ("all_reduce", "all_gather", "all_to_all", "all_gather_object")
        or case.operation == "message"
    )
    return ranks <= case.faulty_ranks or (ahead and len(ranks) < case.ranks)


_SPEAKERS = re.compile(r"\brank \d+ (?:of \d+|ends the job|raised)|\b(?:process|on) rank \d+")

_WAITING = re.compile(r"\branks? \d[\d, and-]* waits? in it")


def _accusing(text: str, own: bool) -> str:
    """Return what a job wrote without the ranks that speak; with them if `own`, and the launcher's words."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("File ", "Proc")))
    return "\n".join(line if own else _SPEAKERS.sub("", line) for line in lines)


def _mentions(text: str, rank: int) -> bool:
    """Return whether a text accuses a rank, which may stand in a list such as ``ranks 0-2 and 5``."""
    for found in re.finditer(r"\branks? (\d[\d, and-]*)", _WAITING.sub("", text), re.IGNORECASE):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", found[1]):
            if int(first) <= rank <= int(last or first):
                return True
    return False


def _outcomes(seen: Seen) -> dict[int, dict[str, Any]]:
    """Return the error of each rank that told one."""
    return {
        rank: event | {"rank": rank}
        for rank, events in seen.events.items()
        for event in events
        if event["event"] == "outcome"
    }


def _words(seen: Seen) -> list[str]:
    return [f"rank {r}: {o['error']}: {o['text'][:200]}" for r, o in _outcomes(seen).items()]


def _healthy(case: Case) -> frozenset[int]:
    alone = {case.faulty} if not case.on_hosts else set()
    return frozenset(range(case.ranks)) - alone


def _has_wrong(seen: Seen) -> bool:
    return bool(_wrong_ranks(seen))


def _wrong_ranks(seen: Seen) -> list[int]:
    return [
        rank
        for rank, events in sorted(seen.events.items())
        if any(event["event"] == "wrong" for event in events)
    ]


def _culprits(case: Case) -> str:
    return f"ranks {sorted(case.faulty_ranks)}"


def _namings(case: Case, seen: Seen) -> str:
    told = {r: o["ranks"] for r, o in _outcomes(seen).items() if r in _healthy(case)}
    if told:
        return ", ".join(f"rank {rank} names {list(ranks or ())}" for rank, ranks in told.items())
    lines = [line for line in seen.stderr.splitlines() if "hpccomm" in line]
    return " | ".join(line[:160] for line in lines[:3]) or "nothing"
