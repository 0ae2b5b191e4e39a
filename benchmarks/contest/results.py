"""What a run finds out, line by line: a collective at a size, and each contender's times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contest.contenders import AUTO, LIBRARY, OF_EMPTY, Contender
from contest.rounds import Times

OWN_COST = 3e-6
"""Seconds that a call of hpccomm may take over the library's own."""
SLOWER = 1.1
"""How many times as long as the best ``auto`` may take."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one contender did.

    Attributes
    ----------
    contender : Contender
        Who.
    times : Times
        Of its turns.
    wrong : int
        Elements that were wrong, over all ranks.
    took : str
        The algorithm that it chose, where it says.
    """

    contender: Contender
    times: Times
    wrong: int
    took: str


@dataclass(frozen=True, slots=True)
class Line:
    """All contenders on one collective at one size.

    Attributes
    ----------
    collective : str
        Its name.
    in_place : bool
        Whether input and output were one array.
    nbytes, count, root : int
        As ``hpccomm perf`` prints them.
    reduces : bool
        Whether it sums.
    factor : float
        Bus bandwidth over bytes and seconds.
    results : mapping of str to Result
        By the contender's name; those without such a call are missing.
    limit : float
        Seconds that it takes at least.
    """

    collective: str
    in_place: bool
    nbytes: int
    count: int
    root: int
    reduces: bool
    factor: float
    results: dict[str, Result]
    limit: float

    def faster(self, result: Result) -> float:
        """Return how many times as fast as the library's own call it was."""
        return self.results[LIBRARY].times.over(result.times)

    @property
    def best(self) -> Result:
        """The fastest of hpccomm's on plain arrays."""
        plain = [r for n, r in self.results.items() if r.contender.ours and n not in OF_EMPTY]
        return min(plain, key=lambda result: result.times.seconds)

    @property
    def slower(self) -> bool:
        """Whether ``auto`` is slower than the best, by more than the clock's noise."""
        if AUTO not in self.results:
            return False
        auto, best = self.results[AUTO].times, self.best.times
        return auto.over(best) > SLOWER and auto.seconds - best.seconds > 1e-6

    def share(self, result: Result) -> float:
        """Return its speed as a share of the limit's."""
        return self.limit / result.times.seconds


def findings(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence on each wrong result, and where ``auto`` could have been faster."""
    for line in lines:
        where = f"{line.collective} of {line.nbytes} B"
        for name, result in line.results.items():
            if result.wrong:
                yield f"WRONG: {where}: {result.wrong} elements by {name}"
        auto = line.results.get(AUTO)
        if auto is None:
            continue
        seconds = auto.times.seconds
        library = line.results[LIBRARY].times.seconds
        if seconds - OWN_COST > library / 0.9:
            yield f"{where}: auto ({auto.took}) is at {line.faster(auto):.2f} of {LIBRARY}'s speed"
        best = line.best
        if line.slower:
            longer = auto.times.over(best.times)
            yield (
                f"{where}: auto ({auto.took}) takes {longer:.2f} times as long as "
                f"{best.contender.name}"
            )
    slower = sum(line.slower for line in lines)
    yield f"auto is within {SLOWER - 1:.0%} of the best at {len(lines) - slower} of {len(lines)} sizes"
