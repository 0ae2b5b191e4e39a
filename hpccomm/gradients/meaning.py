"""What the synchronised gradients are."""

from dataclasses import dataclass
from typing import Literal, get_args

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.settings import check_bool, check_int

Combine = Literal["average", "sum", "weighted"]
Unused = Literal["zero", "skip", "error"]
Nonfinite = Literal["keep", "skip", "raise"]


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
    deterministic : bool
        Fold the ranks' gradients in rank order, so that the bits do not depend on buckets, order or run.
    accumulate : int
        How many micro-steps are added up before a reduction.
    """

    op: Combine = "average"
    unused: Unused = "zero"
    nonfinite: Nonfinite = "keep"
    deterministic: bool = False
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name, kind in (("op", Combine), ("unused", Unused), ("nonfinite", Nonfinite)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                advice = did_you_mean(str(value), known, f"give one of {', '.join(known)}")
                raise UsageError(f"{name} is {value!r}; {advice}")
        object.__setattr__(self, "deterministic", check_bool("deterministic", self.deterministic))
        count = check_int("accumulate", self.accumulate)
        if count < 1:
            raise UsageError(f"accumulate is {count}; give a number of micro-steps of at least 1")
        object.__setattr__(self, "accumulate", count)
