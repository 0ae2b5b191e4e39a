"""Compares the outcome of a job with hpccomm's promises: pure functions, tested by made-up jobs.

A shortfall has one of these names. "wrong number": a wrong result, and nobody was told, as the job ended with
status 0; "not told": it ended as if nothing had happened, though no number was seen to be wrong; "wrong number
before the error"; "wrong class" of an error; "wrong status"; "too late"; "not named"; "left behind"; "hang";
"crash"; "crash of the launcher", which is not of the library's making, as the shell tells of its child and the
launcher of no rank; "failure of hpccomm's own"; "failed without the fault".
"""

import re
from collections.abc import Iterator
from typing import Any

from .cases import Case
from .expecting import ENDED, Expected, can_be_left, expected
from .naming import healthy, named, outcomes
from .running import Seen

Shortfall = tuple[str, str]

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
    r"|unexpectedly\s+disconnected|planted: this rank fails"
)
"""Words of launchers that end a job, of Open MPI, and of the planted exception."""
_HYDRA_KILLED = "EXIT CODE: 9"
_MPICH_FINALIZE = "Fatal error in internal_Finalize"
_INTERNAL = re.compile(
    r"the watchdog failed|could not be ended cleanly|an abort hook of|a step of the exit failed"
    r"|Exception in thread|Exception ignored|Timeout \(\d+:\d\d:\d\d\)!"
    r"|AssertionError|AttributeError|UnboundLocalError|KeyError|ImportError"
)


def judge(case: Case, seen: Seen) -> list[Shortfall]:
    """Return each shortfall of a case: its name, and what was expected and seen."""
    wanted, told = expected(case), outcomes(seen)
    found = list(_anywhere(case, seen, wanted))
    words = "; ".join(f"rank {r}: {o['error']}: {o['text'][:200]}" for r, o in told.items())
    words = f"status {seen.status}: {words or 'no error was told'}"
    if seen.status is None:
        return [*found, ("hang", "the job had to be killed")]
    if seen.fault_at is None and case.kind != "disk":
        return [*found, ("failed without the fault", words)]
    if seen.seconds > wanted.within:
        found.append(("too late", f"{seen.seconds:.1f} s after the fault, not {wanted.within:g}"))
    if wanted.success or (wanted.success is None and seen.status == 0):
        return [*found, *_unlike_success(case, seen, wanted, words)]
    if seen.status == 0 and not (case.kind == "lost" and told):
        what = "wrong number" if seen.wrong else "not told"
        return [*found, (what, "status 0; an error was expected on the ranks")]
    statuses = wanted.statuses
    if statuses is not None and (told or "hpccomm: " in seen.stderr):
        if _HYDRA_KILLED in seen.stdout:
            statuses |= {9}  # MPICH's launcher tells of the ranks that it has killed then
        if _MPICH_FINALIZE in seen.stderr:
            statuses |= {15}  # of a rank in MPI_Finalize when the job ended: MPI_ERR_OTHER
    if statuses is not None and seen.status not in statuses:
        found.append(("wrong status", f"{words}, not {sorted(statuses)}"))
    # A rank that has left the call may end the job for the launcher's sake.
    waits = "finalize" in seen.stderr.lower() or "the launcher would wait" in seen.stderr
    if seen.status == ENDED and can_be_left(case) and not waits:
        found.append(("wrong status", "status 3, though the call can be left"))
    if case.kind != "disk":
        found += _classes(case, seen, wanted, told)
    if named(case, seen, wanted) is False:
        names = {r: o["ranks"] for r, o in told.items() if r in healthy(case)}
        lines = [line[:160] for line in seen.stderr.splitlines() if "hpccomm" in line][:3]
        found.append(("not named", f"{sorted(case.faulty_ranks)} expected; {names or lines}"))
    return found


def _anywhere(case: Case, seen: Seen, wanted: Expected) -> Iterator[Shortfall]:
    """Yield what must never be, however the job ends."""
    status = seen.status or 0
    killed = -status if status < 0 else status - 128
    if not seen.open_mpi and status in _OF_HYDRA:
        killed = status
    crash = _CRASHES.search(seen.stdout + seen.stderr)
    if not crash and _LAUNCHER_CRASHED.search(seen.stderr):
        yield "crash of the launcher", f"status {status}: no rank is said to have crashed"
    elif killed in _SIGNALS or crash:
        yield "crash", f"status {seen.status}, {crash[0] if crash else f'signal {killed}'!r}"
    if own := _INTERNAL.search(seen.stderr):
        yield "failure of hpccomm's own", seen.stderr[own.start() :].partition("\n")[0][:160]
    if case.kind == "disk" and "Traceback" in seen.stderr:
        yield "failure of hpccomm's own", "a traceback of perf"
    for rank, each in seen.noted("foreign"):
        yield "failure of hpccomm's own", f"rank {rank}: {each['error'][:200]}"
    # Where a lost rank's job goes on, its status may be 0 although ranks told errors.
    if not wanted.shifted and (seen.status != 0 or case.kind == "lost") and seen.wrong:
        yield "wrong number before the error", f"ranks {seen.wrong}, before anything was told"
    for left in (*seen.processes, *seen.files):
        yield "left behind", left


def _unlike_success(case: Case, seen: Seen, wanted: Expected, words: str) -> Iterator[Shortfall]:
    if seen.status != 0:
        yield "wrong status", f"{words}, not 0"
    elif seen.wrong:
        yield "wrong number", f"status 0, and ranks {seen.wrong} got wrong numbers"
        return
    ranks = range(case.ranks) if wanted.success else healthy(case)
    if short := [rank for rank in ranks if not seen.done(rank)]:
        yield "not told", f"{words}, and ranks {short} did not come to their end"


def _classes(
    case: Case, seen: Seen, wanted: Expected, told: dict[int, dict[str, Any]]
) -> Iterator[Shortfall]:
    """Yield ranks whose errors are not of the right class, or that told none."""
    for rank, outcome in told.items():
        errors = wanted.errors if rank in (wanted.told_by or told) else wanted.elsewhere
        # Of a call on a communicator that has failed, the class of its failure is right too.
        failure = re.search(r"takes no more calls \((\w+): ", outcome["text"])
        kinds = {*outcome["kinds"], *([failure[1]] if failure else [])}
        if rank in healthy(case) and not errors & kinds:
            words = f"{outcome['error']}: {outcome['text'][:200]}"
            yield "wrong class", f"rank {rank}: {words}, not {' or '.join(sorted(errors))}"
    ended = seen.status == ENDED or (
        wanted.launcher and _LAUNCHER_ENDED.search(seen.stdout + seen.stderr) is not None
    )
    # What an uncaught error writes on a host that is cut off has no way to the launcher.
    unheard = case.faulty_ranks if case.kind == "cut_link" and not case.caught else frozenset()
    silent = sorted((wanted.told_by or healthy(case)) - set(told) - unheard)
    if silent and not ended and not wanted.told_by.intersection(told):
        yield "wrong class", f"ranks {silent} told no error, and hpccomm did not end the job"
    if seen.status == ENDED and not told and "hpccomm: " not in seen.stderr:
        yield "wrong class", "status 3 without a word of hpccomm's"
    if wanted.shifted and case.operation != "message":
        for rank in sorted(healthy(case).intersection(seen.wrong) - set(told)):
            if seen.done(rank):
                yield "not told", f"rank {rank} got a wrong number and ended without an error"
