"""A factor for the loss, so that small gradients survive narrow floats. `GradientSync` adapts it."""

from dataclasses import dataclass
from math import isfinite

from hpccomm.gradients.checks import check_least, check_number, set_checked

TINY = 2.0**-40


@dataclass(frozen=True, slots=True)
class LossScale:
    """How the factor of the loss changes. Must be equal on all ranks.

    The rule is that of Micikevicius et al. 2018, "Mixed Precision Training", ICLR: a step whose gradients are NaN or
    infinite is left out, and the factor falls; after many steps without any it grows.

    Attributes
    ----------
    initial : float
        The first factor. If this and ``growth`` are powers of 2, multiplying and dividing by it is exact.
    growth : float
        What multiplies it after ``interval`` finite steps, at least 1.
    backoff : float
        What multiplies it after a step that is not finite, above 0 and below 1. It does not fall below
        2^-40.
    interval : int
        Finite steps, one after the other, before it grows.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        set_checked(
            self,
            initial=check_number(
                "initial", self.initial, lambda x: x >= TINY, "of at least 2**-40"
            ),
            growth=check_number("growth", self.growth, lambda x: x >= 1, "of at least 1"),
            backoff=check_number(
                "backoff", self.backoff, lambda x: 0 < x < 1, "above 0 and below 1"
            ),
            interval=check_least("interval", self.interval, 1),
        )

    def after(self, scale: float, steps: int, finite: bool) -> tuple[float, int]:
        """Return the factor after a step, and how many finite steps there were since it changed.

        Parameters
        ----------
        scale : float
            The factor of the step.
        steps : int
            Finite steps before it since the factor changed.
        finite : bool
            Whether the step's gradients were finite.
        """
        if not finite:
            return max(TINY, scale * self.backoff), 0
        if steps + 1 < self.interval:
            return scale, steps + 1
        grown = scale * self.growth
        return (grown if isfinite(grown) else scale), 0


class CurrentScale:
    """The factor of the loss in a training.

    Parameters
    ----------
    rule : LossScale or None
        How it changes; None keeps it at 1.

    Attributes
    ----------
    rule : LossScale or None
        The same.
    value : float
        The factor.
    """

    def __init__(self, rule: LossScale | None = None) -> None:
        self.rule = rule
        self.value, self._finite_steps = 1.0 if rule is None else rule.initial, 0

    def step(self, *, finite: bool) -> None:
        """Take note of a step."""
        if self.rule is not None:
            self.value, self._finite_steps = self.rule.after(self.value, self._finite_steps, finite)
