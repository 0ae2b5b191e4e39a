"""Checks that `auto` with a new table is as fast as the best fixed choice, measured anew.

`hpccomm.bench.tune.table` ends with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpccomm.bench.progress import Progress
from hpccomm.bench.tune.calls import TunedCall, policy_of
from hpccomm.bench.tune.measuring import Bench, Seconds, SizeTimes, roughly, typical
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
    measured: Sequence[SizeTimes],
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
    measured : sequence of SizeTimes
        The earlier measurements.
    progress : Progress
        Says how far it is.
    """
    confirmations = []
    for times in measured:
        progress.show(f"measuring {call.collective} by the table")
        candidates = bench.candidates(call, times.nbytes)
        rough = {pick: took for pick, took in times.seconds.items() if pick in candidates}
        fastest = sorted(rough, key=lambda pick: rough[pick])[:RIVALS]
        runs = {
            pick: run
            for pick, run in candidates.items()
            if pick in fastest or (pick in rough and pick.algorithm == NATIVE)
        }
        # Where the backend has no algorithm of its own, tables have another case.
        native = any(pick.algorithm == NATIVE for pick in candidates)
        row = policy_of(tuned).table.find(call.collective, call.case(native=native), times.nbytes)
        automatic, chosen = Pick(AUTO), Pick(AUTO) if row is None else row.pick
        args, keywords = call.arguments(tuned, times.nbytes, bench.memory, AUTO)
        runs[automatic] = partial(getattr(tuned, call.collective), *args, **keywords)
        rough[automatic] = rough[fastest[0]]
        roughly(bench.comm, runs)
        samples: dict[Pick, list[Seconds]] = {pick: [] for pick in runs}
        for _ in range(TURNS):
            for pick, more in bench.repeated(runs, rough).items():
                samples[pick].append(more)
            seconds = {pick: typical(np.concatenate(each)) for pick, each in samples.items()}
            by_auto = seconds.pop(automatic)
            confirmation = Confirmation(call, times.nbytes, by_auto, seconds, chosen)
            if not confirmation.slower:
                break
        confirmations.append(confirmation)
        progress.advance()
    return confirmations
