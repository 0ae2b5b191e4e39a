"""What the synchronised gradients are."""

from dataclasses import dataclass
from typing import Literal, get_args

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.gradients.compression.contract import Compressor
from hpccomm.gradients.loss_scale import LossScale
from hpccomm.settings import check_bool, check_int

Combine = Literal["average", "sum", "weighted"]
Unused = Literal["zero", "skip", "error"]
Nonfinite = Literal["keep", "skip", "raise"]
Initial = Literal["check", "broadcast", "ignore"]


def check_choice(name: str, value: object, kind: object) -> None:
    """Raise unless a setting is one of the texts that a Literal names.

    Raises
    ------
    UsageError
        With the texts, and the nearest one.
    """
    known = get_args(kind)
    if value not in known:
        advice = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
        raise UsageError(f"{name} is {value!r}; {advice}")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reduction does. Must be equal on all ranks.

    Attributes
    ----------
    op : {"average", "sum", "weighted"}
        The mean over the ranks, their sum, or the mean weighted by the samples of each rank.
    unused : {"zero", "skip", "error"}
        What becomes of gradients that ranks do not have.
    nonfinite : {"keep", "skip", "raise"}
        What becomes of a step whose results are NaN or infinite somewhere.
    initial : {"check", "broadcast", "ignore"}
        What becomes of the values that parameters begin with on the ranks.
    deterministic : bool
        Fold the ranks' gradients in rank order, so that the bits do not depend on buckets, order or run.
    accumulate : int
        How many micro-steps are added up before a reduction.
    check_every : int
        After so many reduced steps each, parameters and gradients are compared; 0 never does.
    loss_scale : LossScale or None
        How the factor of the loss changes.
    compressor : Compressor or None
        What gradients are compressed with.
    hierarchical : bool
        Whether only what goes between nodes is compressed.
    """

    op: Combine = "average"
    unused: Unused = "zero"
    nonfinite: Nonfinite = "keep"
    initial: Initial = "check"
    deterministic: bool = False
    accumulate: int = 1
    check_every: int = 0
    loss_scale: LossScale | None = None
    compressor: Compressor | None = None
    hierarchical: bool = False

    def __post_init__(self) -> None:
        for name, kind in (
            ("op", Combine),
            ("unused", Unused),
            ("nonfinite", Nonfinite),
            ("initial", Initial),
        ):
            check_choice(name, getattr(self, name), kind)
        object.__setattr__(self, "deterministic", check_bool("deterministic", self.deterministic))
        count = check_int("accumulate", self.accumulate)
        if count < 1:
            raise UsageError(f"accumulate is {count}; give a number of micro-steps of at least 1")
        object.__setattr__(self, "accumulate", count)
        every = check_int("check_every", self.check_every)
        if every < 0:
            raise UsageError(f"check_every is {every}; give a number of steps, or 0 for never")
        object.__setattr__(self, "check_every", every)
        self._check_compression()

    def _check_compression(self) -> None:
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            raise UsageError(f"loss_scale is {self.loss_scale!r}; give a LossScale")
        if self.loss_scale is not None and self.nonfinite == "raise":
            raise UsageError(
                "a loss scale is found by steps that are not finite; leave nonfinite='raise' out"
            )
        hierarchical = check_bool("hierarchical", self.hierarchical)
        object.__setattr__(self, "hierarchical", hierarchical)
        if self.compressor is None:
            if hierarchical:
                raise UsageError("hierarchical=True is about what compressor= sends; give one")
            return
        if isinstance(self.compressor, type) or not callable(
            getattr(self.compressor, "channel", None)
        ):
            raise UsageError(
                f"compressor is {self.compressor!r}; give an object with a method channel(), such as TopK()"
            )
        if self.deterministic:
            raise UsageError(
                "deterministic=True has the same bits for all buckets, and a compressor works bucket by bucket; "
                "leave one out"
            )

    @property
    def skips(self) -> bool:
        """Whether steps that are not finite are left out."""
        return self.nonfinite == "skip" or self.loss_scale is not None
