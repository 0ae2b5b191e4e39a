"""Whether `auto` by a new table is as fast as the best fixed choice, measured anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpccomm.bench.tune import timing
from hpccomm.bench.tune.calls import Call, arguments, how
from hpccomm.bench.tune.measuring import Bench, Finding
from hpccomm.communicator import Communicator
from hpccomm.dispatch.policy import AUTO, NATIVE, Pick

SLOWER = 1.1
"""How many times slower than the best fixed choice `auto` may be."""

RIVALS = 3
"""Fixed choices that it is measured against: those that were the fastest."""

TURNS = 3
"""Measurements at most: what is slower in one may be so by chance."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`auto` at one size.

    Attributes
    ----------
    collective : str
        The call.
    deterministic : bool
        Whether contributions are folded in rank order.
    nbytes : int
        The size.
    seconds : float
        Of a call by `auto`.
    fixed : dict of Pick to float
        Of a call by fixed choices: the fastest, and the backend's own.
    """

    collective: str
    deterministic: bool
    nbytes: int
    seconds: float
    fixed: dict[Pick, float]

    @property
    def best(self) -> Pick:
        """The fastest fixed choice."""
        return min(self.fixed, key=lambda pick: self.fixed[pick])

    @property
    def ratio(self) -> float:
        """How many times slower `auto` is."""
        return self.seconds / self.fixed[self.best]


def verify(
    bench: Bench,
    tuned: Communicator,
    collective: str,
    findings: Sequence[Finding],
    *,
    deterministic: bool,
) -> list[Verdict]:
    """Measure `auto` and its rivals, in turns, at the sizes that were measured. Collective; blocks.

    Parameters
    ----------
    bench : Bench
        Of the fixed choices.
    tuned : Communicator
        Goes by the new table.
    collective : str
        The call.
    findings : sequence of Finding
        What was measured before.
    deterministic : bool
        Whether contributions are folded in rank order.
    """
    verdicts = []
    for finding in findings:
        ways = bench.ways(collective, finding.nbytes, deterministic)
        ideas = {pick: seconds for pick, seconds in finding.seconds.items() if pick in ways}
        fastest = sorted(ideas, key=lambda pick: ideas[pick])[:RIVALS]
        rivals = dict.fromkeys([*fastest, *(pick for pick in ideas if pick.algorithm == NATIVE)])
        args, keywords = arguments(tuned, collective, finding.nbytes, bench.memory)
        asked = keywords | how(collective, AUTO, deterministic=deterministic)
        automatic = Pick(AUTO)
        calls: dict[Pick, Call] = {pick: ways[pick] for pick in rivals}
        calls[automatic] = partial(getattr(tuned, collective), *args, **asked)
        ideas[automatic] = ideas[fastest[0]]
        timing.first(bench.comm, calls)
        collected: dict[Pick, list[timing.Seconds]] = {pick: [] for pick in calls}
        for _ in range(TURNS):
            more = bench.repeated(calls, ideas)
            for pick, samples in more.items():
                collected[pick].append(samples)
            took = {pick: timing.typical(np.concatenate(all_)) for pick, all_ in collected.items()}
            seconds = took.pop(automatic)
            verdict = Verdict(collective, deterministic, finding.nbytes, seconds, took)
            if verdict.ratio <= SLOWER:
                break
        verdicts.append(verdict)
    return verdicts
