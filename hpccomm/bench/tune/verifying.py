"""Whether `auto` by a new table is as fast as the best fixed choice, measured anew."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpccomm.bench.progress import Progress
from hpccomm.bench.tune import timing
from hpccomm.bench.tune.calls import Call, TunedCall
from hpccomm.bench.tune.measuring import Bench, Finding
from hpccomm.communicator import Communicator
from hpccomm.dispatch.policy import AUTO, NATIVE, Pick

SLOWER = 1.1
"""How many times as long as the best fixed choice `auto` may take."""

RIVALS = 3
"""`auto` is measured against this many fixed choices: the fastest ones."""

TURNS = 3
"""The most measurements of a size: `auto` may be slower in a single one by chance."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """`auto` at one size.

    Attributes
    ----------
    call : TunedCall
        The call.
    nbytes : int
        The size.
    seconds : float
        Seconds of a call by `auto`.
    fixed : dict of Pick to float
        Seconds of a call by the fastest fixed choices and by the backend's own algorithm.
    chosen : Pick
        What `auto` takes at this size.
    """

    call: TunedCall
    nbytes: int
    seconds: float
    fixed: dict[Pick, float]
    chosen: Pick

    @property
    def best(self) -> Pick:
        """The fastest fixed choice."""
        return min(self.fixed, key=lambda pick: self.fixed[pick])

    @property
    def ratio(self) -> float:
        """The time of `auto` over that of the fastest fixed choice."""
        return self.seconds / self.fixed[self.best]

    @property
    def slower(self) -> bool:
        """Whether another choice would have been faster by more than `SLOWER`.

        Where the fastest is what `auto` takes, both times are of the same calls, and differ by noise.
        """
        return self.best != self.chosen and self.ratio > SLOWER


def verify(
    bench: Bench,
    tuned: Communicator,
    call: TunedCall,
    findings: Sequence[Finding],
    progress: Progress,
) -> list[Confirmation]:
    """Measure `auto` and its rivals, in turns, at the sizes that were measured. Collective; blocks.

    Parameters
    ----------
    bench : Bench
        Measures the fixed choices.
    tuned : Communicator
        Uses the new table.
    call : TunedCall
        The call.
    findings : sequence of Finding
        The earlier measurements.
    progress : Progress
        Says how far it is.
    """
    verdicts = []
    for finding in findings:
        progress.show(f"measuring {call.collective} by the table")
        ways = bench.ways(call, finding.nbytes)
        ideas = {pick: seconds for pick, seconds in finding.seconds.items() if pick in ways}
        fastest = sorted(ideas, key=lambda pick: ideas[pick])[:RIVALS]
        rivals = dict.fromkeys([*fastest, *(pick for pick in ideas if pick.algorithm == NATIVE)])
        args, keywords = call.arguments(tuned, finding.nbytes, bench.memory, AUTO)
        automatic, chosen = Pick(AUTO), _chosen(tuned, call, finding.nbytes, ways)
        runs: dict[Pick, Call] = {pick: ways[pick] for pick in rivals}
        if (
            call.registered
        ):  # as a plan takes it: a call takes what its first one did, on plain arrays maybe
            runs[automatic] = tuned.plan(call.collective, *args, **keywords)
        else:
            runs[automatic] = partial(getattr(tuned, call.collective), *args, **keywords)
        ideas[automatic] = ideas[fastest[0]]
        timing.first(bench.comm, runs)
        collected: dict[Pick, list[timing.Seconds]] = {pick: [] for pick in runs}
        for _ in range(TURNS):
            for pick, samples in bench.repeated(runs, ideas).items():
                collected[pick].append(samples)
            took = {pick: timing.typical(np.concatenate(all_)) for pick, all_ in collected.items()}
            seconds = took.pop(automatic)
            verdict = Confirmation(call, finding.nbytes, seconds, took, chosen)
            if not verdict.slower:
                break
        verdicts.append(verdict)
        progress.advance()
    return verdicts


def _chosen(tuned: Communicator, call: TunedCall, nbytes: int, ways: Mapping[Pick, Call]) -> Pick:
    """Return what `auto` takes by the table of a communicator; `AUTO` where it has no row for it."""
    native = any(pick.algorithm == NATIVE for pick in ways)
    row = tuned.policy.table.find(call.collective, call.case(native=native), nbytes)
    return Pick(AUTO) if row is None else row.pick
