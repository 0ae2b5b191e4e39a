"""What the steps of a training cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketStatistics:
    """Counts of one bucket since its layout was made.

    Attributes
    ----------
    index : int
        Of the bucket.
    calls : int
        How often it was reduced.
    nbytes : int
        Bytes of gradients that were reduced, with the padding between them.
    wire_nbytes : int
        Bytes that this rank gave to collectives for it: less than `nbytes` with a compressor.
    seconds : float
        Time in which its reductions were under way.
    hidden_seconds : float
        The part of it in which this rank did not wait.
    """

    index: int
    calls: int = 0
    nbytes: int = 0
    wire_nbytes: int = 0
    seconds: float = 0.0
    hidden_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """One reduced step of this rank, as it is logged.

    Attributes
    ----------
    step : int
        Its number, from 0.
    began : float
        Seconds since the `GradientSync` was made, at the end of the step.
    nbytes, wire_nbytes : int
        As in `BucketStatistics`, over all buckets.
    calls : int
        Collectives of buckets.
    seconds : float
        Time in which at least one reduction was under way.
    hidden_seconds : float
        The part of it in which this rank did not wait.
    blocked_seconds : float
        Time that this rank waited for reductions, and for ranks that were late.
    with_gradients : int
        Parameters that had a gradient on this rank.
    skipped : bool
        Whether the step was left out because of NaN or infinities.
    buckets : tuple of float
        Seconds of each bucket.
    """

    step: int
    began: float
    nbytes: int
    wire_nbytes: int
    calls: int
    seconds: float
    hidden_seconds: float
    blocked_seconds: float
    with_gradients: int
    skipped: bool
    buckets: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one rank since its `GradientSync` was made. Prints as a sentence.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Calls of ``sync`` and ``wait`` that ended, those that reduced nothing included.
    nbytes : int
        Bytes of gradients that were reduced, with the padding between them.
    blocked_seconds : float
        Time that this rank waited in ``sync``, ``wait`` and ``wait_for`` for reductions, and for ranks that were late.
    """

    steps: int = 0
    micro_steps: int = 0
    nbytes: int = 0
    blocked_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps reduced of {self.micro_steps} micro-steps, {self.nbytes} bytes, "
            f"{self.blocked_seconds:.3f} s blocked"
        )
