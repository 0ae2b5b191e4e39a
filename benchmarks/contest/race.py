"""All contenders on one case: what each call leaves is checked, then they take turns."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mpi4py.MPI import Intracomm

from contest.cases import Case
from contest.contenders import LIBRARY, Enter, Entry
from contest.rounds import Times, compete


@dataclass(frozen=True, slots=True)
class Result:
    """What one contender did.

    Attributes
    ----------
    times : Times
        Of its turns.
    wrong : int
        Elements that were wrong, over all ranks.
    took : str
        The algorithm that it chose, where it says.
    """

    times: Times
    wrong: int
    took: str


Results = dict[str, Result]
"""By the contender's name; those without such a call are missing."""
Limit = Callable[[Case, Results], float]
"""Gives the seconds that a case takes at least, knowing what was measured."""


@dataclass(frozen=True, slots=True)
class Line:
    """All contenders on one case, and the seconds that it takes at least."""

    case: Case
    results: Results
    limit: float

    def faster(self, name: str) -> float:
        """Return how many times as fast as the library's own call a contender was."""
        return self.results[LIBRARY].times.over(self.results[name].times)

    def share(self, name: str) -> float:
        """Return its speed as a share of the limit's."""
        return self.limit / self.results[name].times.seconds


def no_limit(_case: Case, _results: Results) -> float:
    """Return not a number: the case has no limit that is known."""
    return math.nan


def race(
    case: Case,
    contenders: Mapping[str, Enter],
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
    contenders : mapping of str to Enter
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
    entered = {name: enter(case) for name, enter in contenders.items()}
    entries = {name: entry for name, entry in entered.items() if entry is not None}
    wrong = [_checked(case, entry, bare) for entry in entries.values()]
    case.rest()
    times = compete([entry.call for entry in entries.values()], bare, rounds, calls)
    results = {
        name: Result(taken, missed, entry.took())
        for (name, entry), taken, missed in zip(entries.items(), times, wrong, strict=True)
    }
    return Line(case, results, limit(case, results))


def _checked(case: Case, entry: Entry, bare: Intracomm) -> int:
    """Make one call, and return the elements that it left wrong on all ranks."""
    case.prepare(entry.arrays)
    bare.Barrier()  # nobody's array may be reached before it is prepared
    entry.call()
    return int(bare.allreduce(case.wrong(entry.arrays)))
