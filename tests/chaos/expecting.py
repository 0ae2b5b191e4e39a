"""What hpccomm promises for each case: the table that the judge goes by."""

from dataclasses import dataclass

from .cases import ROOTED, Case

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
CAUGHT = 7
"""Exit status of a victim that caught the error."""


@dataclass(frozen=True)
class Expected:
    """How the job of a case is to end.

    Attributes
    ----------
    success : bool or None
        Whether all ranks get all results, with status 0; None if either is right.
    errors : frozenset of str
        Classes of which the healthy ranks' errors may be.
    statuses : frozenset of int, or None
        Exit statuses of a failure; None is any but 0.
    launcher : bool
        Whether the launcher may end the job by itself, since a process is gone. Then nothing need be
        told.
    shifted : bool
        Whether results may be those of another iteration until the failure is found: ranks that make
        one call fewer or more pair other calls, which are right as such.
    told_by : frozenset of int
        Ranks one of which, at least, must tell an error; where the set is empty, all healthy ones must.
    within : float
        Seconds after the fault in which the job must have ended.
    """

    success: bool | None
    errors: frozenset[str] = frozenset()
    statuses: frozenset[int] | None = None
    launcher: bool = False
    shifted: bool = False
    told_by: frozenset[int] = frozenset()
    within: float = 0.0


def expected(case: Case) -> Expected:
    """Return what is promised for a case."""
    statuses = frozenset({CAUGHT if case.caught else RAISED, ENDED})
    soon = case.deadline + 5.0
    if case.operation == "finalisation" and case.amid > 0:
        soon = case.creation_deadline + 5.0
    if case.operation == "creation":
        soon += MPI_START
    right = frozenset({(case.faulty + 1) % case.ranks})
    anyone = frozenset(range(case.ranks))
    # Who comes late to the end, or leaves instead, holds up no result.
    at_the_end = case.operation == "finalisation"
    late = None if at_the_end else False
    # A root need not wait for a rank that has left, nor one that sends to another root.
    left = None if at_the_end or case.collective in ROOTED_CALLS else False
    match case.kind:
        case "late" | "slow_link":
            return Expected(True, within=case.deadline + 30.0)
        case "synchrony" if case.operation == "message":
            return Expected(True, within=soon)
        case "exception":
            return Expected(False, GONE, frozenset({RAISED}), launcher=True, within=soon)
        case "kill":
            return Expected(False, GONE, launcher=True, within=soon)
        case "lost":
            # The launcher's status: it may be 0 although a rank ended the job with another.
            return Expected(late, LOST, within=soon)
        case "sys_exit":
            return Expected(left, GONE, statuses, within=soon)
        case "os_exit":
            return Expected(left, GONE, launcher=True, within=soon)
        case "absent":
            return Expected(False, GONE, statuses, within=soon)
        case "stop":
            return Expected(False, TIMEOUT, statuses, within=soon)
        case "overdue":
            return Expected(late, TIMEOUT, statuses, within=soon)
        case "cut_link":
            # The MPI library itself may give up on a connection that breaks.
            return Expected(False, GONE, launcher=True, within=soon + 10.0)
        case "disk":
            return Expected(False, statuses=frozenset({2}), within=40.0)
        case "shape" | "dtype" if case.operation == "message":
            return Expected(False, MESSAGE | GONE, statuses, told_by=right, within=soon)
        case "skipped" | "extra":
            at_the_end = case.operation == "finalisation" and case.kind == "skipped"
            success = None if at_the_end else False
            return Expected(success, UNMATCHED, statuses, shifted=True, told_by=anyone, within=soon)
        case "order":
            errors = UNMATCHED if case.operation == "finalisation" else MISMATCH
            return Expected(False, errors, statuses, shifted=True, within=soon)
    return Expected(False, MISMATCH, statuses, within=soon)
