"""The decision for a call, as `Communicator.explain` returns it.

The dispatches make it; records, hooks and messages show it.
"""

from dataclasses import dataclass, field
from typing import Any

RAISES, ENDS_JOB, WAITS_ON = "raises", "ends the job", "waits on"


@dataclass(frozen=True, slots=True)
class Choice:
    """How a call is carried out. It prints as a sentence.

    Attributes
    ----------
    collective : str
        The call.
    path : str
        ``"host"``; for device arrays ``"cuda"``, or ``"staged"`` through host memory.
    backend : str
        Name of the backend that moves the data.
    algorithm : str
        ``"native"``, or the name of one of hpccomm's own, of another package's, or of the function that
        the call gives.
    segment : int or None
        Bytes that are moved at a time, where the algorithm cuts the array.
    registered : bool
        Whether this rank's arrays lie in memory of ``comm.empty``, which the peers, or the library, know. In a
        plan, whether the arrays of all ranks are registered.
    reason : str
        Why.
    schedule : str
        What tells the schedule of an algorithm that is not hpccomm's own from others: 8 hexadecimal
        digits, equal on all ranks; else empty.
    channels : int
        Pieces under way at the same time, where a table says so; else 0.
    other : object
        What carries the call out, where the name of the algorithm does not say it: an `Algorithm` of another package,
        or a function of hpccomm's; else None.
    at_deadline : str
        What the call does when its deadline passes: ``"raises"`` `CollectiveTimeout`; ``"ends the
        job"``, since it is blocked in a library and cannot be left, or by
        ``CommOptions.on_timeout``; or ``"waits on"``.
    """

    collective: str
    path: str
    backend: str
    algorithm: str
    segment: int | None
    registered: bool
    reason: str
    schedule: str = ""
    at_deadline: str = RAISES
    channels: int = 0
    other: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        cut = f" in segments of {self.segment} bytes" if self.segment is not None else ""
        known = ", in registered memory" if self.registered else ""
        return (
            f"{self.collective} takes the {self.path} path over {self.backend} "
            f"by algorithm {self.algorithm}{cut}{known}: {self.reason}"
        ) + (f"; at its deadline it {self.at_deadline}" if self.at_deadline != RAISES else "")
