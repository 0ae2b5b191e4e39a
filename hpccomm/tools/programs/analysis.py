"""What rules for advice read of a recording: its steps, where their time goes, and the model of the program.

Used by `advice`, `mpi_advice`, `advise`, and by `hpccomm.tools.runs.report`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.results.recording import (
    DEVICE,
    CallSignature,
    Lateness,
    Recording,
    apart,
    lateness,
    waits,
)
from hpccomm.tools.programs.lines_to_try import name_of
from hpccomm.tools.programs.model import MOST_ACTS, ProgramModel, error, model, predict
from hpccomm.tools.programs.steps import Bools, FixedCost, Floats, shares, steps
from hpccomm.units import few, rounded_size


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of a program.

    Attributes
    ----------
    cause : str
        The rule: a name of `RULES`.
    what : str
        The change.
    seconds : float
        The predicted step.
    why : str
        What was recorded.
    attempt : str
        A command, or a line of code.
    uncertain : bool
        Whether the gain is less than the error of the prediction, or that is not known.
    """

    cause: str
    what: str
    seconds: float
    why: str
    attempt: str
    uncertain: bool


class Analysis:
    """The facts that the rules read of a recording: its steps, the parts of their time, and the model.

    Parameters
    ----------
    recording : Recording
        With one call at least.
    most : int
        The most acts of a model of several steps.

    Attributes
    ----------
    recording, waits, steps, shares, model
        The recording, and what the functions of these names return for it.
    predicted : Prediction
        The prediction of the program as it was recorded.
    error : float
        The error of predicting the recorded steps, as a part of a step. NaN if it is not known.
    """

    def __init__(self, recording: Recording, most: int = MOST_ACTS) -> None:
        self.recording = recording = apart(recording)
        self.waits = waits(recording)
        self.steps = steps(recording, self.waits.collectives)
        self.shares = shares(recording, self.steps, self.waits)
        self.model = model(recording, self.steps, most)
        self.predicted = predict(self.model)
        self.error = error(self.predicted.seconds, self.steps)

    @property
    def step(self) -> float:
        """Seconds of a typical step."""
        return float(self.shares.mean.sum()) * 1e-9

    def doubt(self, advice: Advice) -> str:
        """Return in words how sure a gain is."""
        error = "error unknown" if math.isnan(self.error) else f"± {self.error:.1%}"
        return f"{error}{', uncertain' * advice.uncertain}"

    @cached_property
    def lateness(self) -> Lateness:
        """How long each rank keeps others waiting."""
        return lateness(self.recording, self.waits)

    def nodes(self, signature: CallSignature) -> tuple[int, int]:
        """Return the number of ranks of a call's communicator that are known, and of their nodes."""
        if signature.group < 0:
            return 0, 0
        ranks = [rank for rank in self.recording.groups[signature.group].ranks if rank >= 0]
        return len(ranks), len({self.recording.facts.hosts[rank] for rank in ranks})

    def cost(self, signature: CallSignature) -> FixedCost:
        """Return the cost of an operation; NaN if it is not known."""
        return self.shares.costs.get((signature.operation, signature.group), _UNKNOWN)

    def each(self, of: Callable[[CallSignature], Any]) -> NDArray[Any]:
        """Return a value of the signature of each event of the model."""
        values = np.array([of(one) for one in self.model.signatures])
        chosen: NDArray[Any] = values[self.model.events["signature"]]
        return chosen

    @cached_property
    def half(self) -> Floats:
        """The bytes of each event of the model at which half of its time is fixed. Smaller ones are small."""
        return self.each(lambda one: self.cost(one).half_performance_bytes)

    @cached_property
    def far(self) -> Bools:
        """Whether each event of the model takes time for its bytes, which another processor than those of the ranks moves."""
        far = self.each(lambda one: one.mode == DEVICE or self.nodes(one)[1] > 1)
        return far & (self.model.events["nbytes"] > self.half)

    def named(self, events: Bools) -> str:
        """Return some events in words: how many calls a step, their operation, size and place."""
        chosen = self.model.events[events]
        # At the bounds of pieces, some ranks' calls of an event are missing.
        there = self.model.members()[events] / np.maximum(chosen["ranks"], 1)
        number = max(1, round(there.sum() / self.model.steps))
        signatures = [self.model.signatures[each] for each in np.unique(chosen["signature"])]
        operations = few(dict.fromkeys(map(name_of, signatures)), 2)
        bounds = {int(chosen["nbytes"].min()), int(chosen["nbytes"].max())}
        size = " to ".join(map(rounded_size, sorted(bounds)))
        sites = few(dict.fromkeys(each.site for each in signatures if each.site), 2)
        return f"{number} {operations} of {size} a step{f' ({sites})' if sites else ''}"

    def priced(self, seconds: Floats) -> ProgramModel:
        """Return the program with other seconds of its events."""
        events = self.model.events.copy()
        events["seconds"] = seconds
        return replace(self.model, events=events)


_UNKNOWN = FixedCost(math.nan, math.nan)

Change = tuple[ProgramModel, str, str, str]
"""A changed program; what was changed, why, and what to try."""
