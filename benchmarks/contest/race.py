"""All contenders on one case: what each call leaves is checked, then they take turns."""

import math
from collections.abc import Callable, Sequence

from mpi4py.MPI import Intracomm

from contest.cases import Case
from contest.contenders import Contender, Entry
from contest.results import Line, Result
from contest.rounds import compete

Limit = Callable[[Case, dict[str, Result]], float]
"""Gives the seconds that a case takes at least, knowing what was measured."""


def no_limit(_case: Case, _results: dict[str, Result]) -> float:
    """Return not a number: the case has no limit that is known."""
    return math.nan


def race(
    case: Case,
    contenders: Sequence[Contender],
    bare: Intracomm,
    rounds: int,
    *,
    calls: int | None = None,
    limit: Limit = no_limit,
) -> Line:
    """Check and measure every contender that has such a call. Collective.

    Parameters
    ----------
    case : Case
        The collective, its size and its data.
    contenders : sequence of Contender
        The same in the same order on all ranks.
    bare : MPI.Intracomm
        For what is not measured.
    rounds : int
        Turns of each contender.
    calls : int, optional
        Calls of a turn; as many as fill a few milliseconds unless it is given.
    limit : callable
        ``limit(case, results)``.
    """
    entries = [(one, entry) for one in contenders if (entry := one.enter(case)) is not None]
    wrong = [_checked(case, entry, bare) for _, entry in entries]
    case.rest()
    times = compete([entry.call for _, entry in entries], bare, rounds, calls)
    results = {
        one.name: Result(one, taken, missed, entry.took())
        for (one, entry), taken, missed in zip(entries, times, wrong, strict=True)
    }
    return Line(
        case.collective,
        case.in_place,
        case.nbytes,
        case.count,
        case.root,
        case.shape.reduces,
        case.shape.factor(case.ranks),
        results,
        limit(case, results),
    )


def _checked(case: Case, entry: Entry, bare: Intracomm) -> int:
    """Make one call, and return the elements that it left wrong on all ranks."""
    case.prepare(entry.arrays)
    bare.Barrier()  # nobody's array may be reached before it is prepared
    entry.call()
    return int(bare.allreduce(case.wrong(entry.arrays)))
