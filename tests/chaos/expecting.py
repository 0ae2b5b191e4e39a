"""hpccomm's promises for each case: the table by which the judge decides."""

from dataclasses import dataclass

from .cases import ROOTED, Case
from .victim import CAUGHT

TIMEOUT = frozenset({"CollectiveTimeout"})
LOST = frozenset({"PeerLost"})
MISMATCH = frozenset({"RankMismatch"})
GONE = TIMEOUT | LOST
ROOTED_CALLS = (*ROOTED, "broadcast_object", "gather_object")
UNMATCHED = TIMEOUT | LOST | MISMATCH
"""Of calls of which one rank makes fewer or more: it depends on what its next call is."""
MESSAGE = frozenset({"BufferMismatch", "RankMismatch"})

MPI_START = 3.0
"""Seconds that MPI has to start, beside the deadline of creation."""

RAISED = 1
"""Exit status where an exception was not caught."""
ENDED = 3
"""Exit status where hpccomm ended the job, since a call cannot be left."""


@dataclass(frozen=True)
class Expected:
    """How the job of a case is to end.

    Attributes
    ----------
    success : bool or None
        Whether all ranks get all results, with status 0; None if either is right.
    errors : frozenset of str
        Classes of which the healthy ranks' errors may be; where `told_by` is not empty, theirs.
    elsewhere : frozenset of str
        Classes of which the errors of the ranks may be that are not in `told_by`.
    statuses : frozenset of int, or None
        Exit statuses of a failure; None is any but 0.
    shifted : bool
        Whether results may be those of another iteration until the failure is found: ranks that make
        one call fewer or more pair other calls, which are right as such.
    launcher : bool
        Whether the launcher may end the job by itself, since a process is gone. Where it says that it
        has, nothing need be told.
    told_by : frozenset of int
        Ranks one of which, at least, must tell an error; where the set is empty, all healthy ones must.
    within : float
        Seconds after the fault in which the job must have ended.
    """

    success: bool | None
    errors: frozenset[str] = frozenset()
    statuses: frozenset[int] | None = None
    shifted: bool = False
    launcher: bool = False
    told_by: frozenset[int] = frozenset()
    within: float = 0.0
    elsewhere: frozenset[str] = UNMATCHED


def expected(case: Case) -> Expected:
    """Return what is promised for a case."""
    statuses = frozenset({CAUGHT if case.caught else RAISED, ENDED})
    at_the_end, in_messages = case.operation == "finalisation", case.operation == "message"
    soon = case.deadline + 5.0
    if at_the_end and case.amid > 0:
        soon = case.creation_deadline + 5.0
    at_start = case.operation == "creation" and case.moment == 0
    if at_start:
        soon += MPI_START
    # Who comes late to the end, or leaves instead, holds up no result.
    late = None if at_the_end else False
    left = None if at_the_end or _is_not_waited_for(case) else False
    # Of what waits for several ranks the others may still come, of which one has left: a deadline tells.
    without = GONE if at_start or case.operation in ("message", "window") else LOST
    match case.kind:
        case "late":
            return Expected(True, within=soon)
        case "slow_link":
            return Expected(True, within=case.deadline + 30.0)
        case "synchrony" if in_messages:
            return Expected(True, within=soon)
        case "exception":
            return Expected(False, GONE, frozenset({RAISED}), launcher=True, within=soon)
        case "kill" | "cut_link":
            # The MPI library itself may give up on a connection that breaks, and says so.
            return Expected(False, GONE, launcher=True, within=soon)
        case "lost":
            # The launcher's status: it may be 0 although a rank ended the job with another.
            return Expected(late, LOST, within=soon)
        case "sys_exit":
            return Expected(left, without, statuses, within=soon)
        case "os_exit":
            # Nothing of Python's is run: where the launcher ends the others for it, it alone tells of it.
            return Expected(left, without, launcher=True, within=soon)
        case "absent":
            return Expected(False, GONE, statuses, within=soon)
        case "stop" | "overdue":
            ended = frozenset({ENDED}) if case.returns else statuses
            return Expected(False, TIMEOUT, ended, within=soon)
        case "disk":
            return Expected(False, statuses=frozenset({2}), within=40.0)
        case "shape" | "dtype" if in_messages:
            right, others = frozenset({(case.faulty + 1) % case.ranks}), MESSAGE | GONE
            return Expected(False, MESSAGE, statuses, told_by=right, within=soon, elsewhere=others)
        case "skipped" | "extra":
            success = None if at_the_end and case.kind == "skipped" else False
            # Neighbors that are never blocked come to their end.
            told_by = frozenset(range(case.ranks) if at_the_end or in_messages else ())
            return Expected(success, UNMATCHED, statuses, True, told_by=told_by, within=soon)
        case "order":
            errors = UNMATCHED if at_the_end else MISMATCH
            return Expected(False, errors, statuses, True, within=soon)
    return Expected(False, MISMATCH, statuses, within=soon)


def _is_not_waited_for(case: Case) -> bool:
    """Return whether a rank may leave without harm to any result: a root that only receives, or a rank
    that only receives from the root.
    """
    if case.companion or case.operation == "batch":
        return False
    if case.collective in ("gather", "reduce", "gather_object"):
        return case.faulty == case.root
    return case.collective in ROOTED_CALLS and case.faulty != case.root


def can_be_left(case: Case) -> bool:
    """Return whether every wait of a case can end by an exception, so that the job need not end."""
    other = case.companion or case.kind == "algorithm"  # may be blocked in the MPI library
    return not other and case.operation in ("schedule", "shm", "object", "message", "async")
