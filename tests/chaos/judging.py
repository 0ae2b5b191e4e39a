"""Compares the outcome of a job with hpccomm's promises: pure functions, tested by made-up jobs."""

import re
from collections.abc import Iterator
from typing import Any

from .cases import Case
from .expecting import ENDED, Expected, can_be_left, expected
from .naming import healthy, named, outcomes
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

_SIGNALS = (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
_OF_HYDRA = (4, 6, 8, 11)
"""Signals that MPICH's launcher exits with as they are; 7 is the status of victims as well."""
_CRASHES = re.compile(
    r"signal (?:4|6|7|8|11)\b|EXIT CODE: (?:4|6|8|11|132|134|135|136|139)\b"
    r"|Segmentation fault \(|Bus error|double free|free\(\): invalid|malloc\(\): |corrupted "
    r"|Fatal Python error|stack smashing|Signal: (?:Aborted|Segmentation|Bus)"
)
_LAUNCHER_CRASHED = re.compile(r"^ ?(?:Segmentation fault|Aborted)$", re.MULTILINE)
_LAUNCHER_ENDED = re.compile(
    r"exited on\s+signal|Killed \(signal 9\)|improper|lost\s+communication"
    r"|unexpectedly\s+disconnected"
    r"|planted: this rank fails"
)
"""Words of launchers that end a job, of Open MPI, and of the planted exception."""
_HYDRA_KILLED = "EXIT CODE: 9"
_MPICH_FINALIZE = "Fatal error in internal_Finalize"
_INTERNAL = re.compile(
    r"the watchdog failed|could not be ended cleanly|an abort hook of|a step of the exit failed"
    r"|Exception in thread|Exception ignored|Timeout \(\d+:\d\d:\d\d\)!"
    r"|AssertionError|AttributeError|UnboundLocalError|KeyError|ImportError"
)


def judge(case: Case, seen: Seen) -> list[tuple[str, str]]:
    """Return each shortfall of a case: its class, and what was expected and seen."""
    wanted = expected(case)
    found = list(_anywhere(case, seen, wanted))
    if seen.status is None:
        return [*found, (HANG, "the job had to be killed")]
    if seen.fault_at is None and case.kind != "disk":
        told = "; ".join(_words(seen)) or "nobody told an error"
        return [*found, (BROKEN, f"status {seen.status} before the fault came: {told}")]
    if seen.seconds > wanted.within:
        found.append(
            (SLOW, f"it ended {seen.seconds:.1f} s after the fault, not {wanted.within:g}")
        )
    if wanted.success or (wanted.success is None and seen.status == 0):
        return [*found, *_unlike_success(case, seen, wanted)]
    if seen.status == 0 and not (case.ulfm and outcomes(seen)):
        what = WRONG if _has_wrong(seen) else UNTOLD
        return [*found, (what, "status 0; an error was expected on the ranks")]
    statuses = wanted.statuses
    told_of = outcomes(seen) or "hpccomm: " in seen.stderr
    if statuses is not None and told_of and _HYDRA_KILLED in seen.stdout:
        statuses |= {9}  # MPICH's launcher tells of the ranks that it has killed then
    if statuses is not None and told_of and _MPICH_FINALIZE in seen.stderr:
        statuses |= {15}  # of a rank that stood in MPI_Finalize when the job ended: MPI_ERR_OTHER
    if statuses is not None and seen.status not in statuses:
        allowed = ", ".join(map(str, sorted(statuses)))
        found.append((STATUS, f"status {seen.status}, not {allowed}"))
    # A rank that has left the call may end the job for the launcher's sake.
    waits = "finalize" in seen.stderr.lower() or "the launcher would wait" in seen.stderr
    if seen.status == ENDED and can_be_left(case) and not waits:
        found.append((STATUS, "status 3, though the call can be left"))
    found += _classes(case, seen, wanted)
    if named(case, seen, wanted) is False:
        found.append((UNNAMED, f"{_culprits(case)} expected; told: {_namings(case, seen)}"))
    return found


def _anywhere(case: Case, seen: Seen, wanted: Expected) -> Iterator[tuple[str, str]]:
    """Yield what must never be, however the job ends."""
    status = seen.status or 0
    killed = -status if status < 0 else status - 128
    if not seen.open_mpi and status in _OF_HYDRA:
        killed = status
    crash = _CRASHES.search(seen.stdout + seen.stderr)
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
    for rank, events in sorted(seen.events.items()):
        for each in events:
            if each["event"] == "foreign":
                yield INTERNAL, f"rank {rank}: {each['error'][:200]}"
    # Where a lost rank's job goes on, its status may be 0 although ranks told errors.
    if not wanted.shifted and (seen.status != 0 or case.ulfm) and _has_wrong(seen):
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
        return
    ranks = range(case.ranks) if wanted.success else healthy(case)
    ends = {rank: [each["event"] for each in seen.events[rank]][-1:] for rank in ranks}
    if short := [rank for rank, last in ends.items() if last != ["done"]]:
        yield UNTOLD, f"status 0, and ranks {short} did not come to their end"


def _classes(case: Case, seen: Seen, wanted: Expected) -> Iterator[tuple[str, str]]:
    """Yield ranks whose errors are not of the right class, or that told none."""
    if case.kind == "disk":
        return
    told = outcomes(seen)
    for rank, outcome in told.items():
        errors = wanted.errors if rank in (wanted.told_by or told) else wanted.elsewhere
        if rank in healthy(case) and not errors.intersection(_kinds(outcome)):
            words = f"{outcome['error']}: {outcome['text'][:200]}"
            yield CLASS, f"rank {rank}: {words}, not {' or '.join(sorted(errors))}"
    ended = seen.status == ENDED or (wanted.launcher and launcher_ended(seen))
    # What an uncaught error writes on a host that is cut off has no way to the launcher.
    unheard = case.faulty_ranks if case.kind == "cut_link" and not case.caught else frozenset()
    silent = sorted((wanted.told_by or healthy(case)) - set(told) - unheard)
    if silent and not ended and not wanted.told_by.intersection(told):
        yield CLASS, f"ranks {silent} told no error, and hpccomm did not end the job"
    if seen.status == ENDED and not told and "hpccomm: " not in seen.stderr:
        yield CLASS, "status 3 without a word of hpccomm's"
    if wanted.shifted and case.operation != "message":
        for rank in sorted(healthy(case).intersection(_wrong_ranks(seen)) - set(told)):
            if seen.events[rank][-1]["event"] == "done":
                yield UNTOLD, f"rank {rank} got a wrong number and ended without an error"


def launcher_ended(seen: Seen) -> bool:
    """Return whether the job says that it ended since a process or a connection is gone."""
    return _LAUNCHER_ENDED.search(seen.stdout + seen.stderr) is not None


def _kinds(outcome: dict[str, Any]) -> set[str]:
    """Return the classes of an error; of a call on a communicator that has failed, those of its failure."""
    failure = re.search(r"takes no more calls \((\w+): ", outcome["text"])
    return {*outcome["kinds"], *([failure[1]] if failure else [])}


def _words(seen: Seen) -> list[str]:
    return [f"rank {r}: {o['error']}: {o['text'][:200]}" for r, o in outcomes(seen).items()]


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
    told = {r: o["ranks"] for r, o in outcomes(seen).items() if r in healthy(case)}
    if told:
        return ", ".join(f"rank {rank} names {list(ranks or ())}" for rank, ranks in told.items())
    lines = [line for line in seen.stderr.splitlines() if "hpccomm" in line]
    return " | ".join(line[:160] for line in lines[:3]) or "nothing"
