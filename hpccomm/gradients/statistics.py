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
        Bytes that this rank gave to collectives for it: less than ``nbytes`` with a compressor.
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

    def __str__(self) -> str:
        return (
            f"bucket {self.index}: {self.calls} times, {self.nbytes} bytes, {self.wire_nbytes} sent, "
            f"{self.seconds:.3f} s, {self.hidden_seconds:.3f} s hidden"
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one rank since its `GradientSync` was made. Prints as some lines.

    Attributes
    ----------
    steps : int
        Reduced steps.
    micro_steps : int
        Calls of ``sync`` and ``wait`` that ended, those that reduced nothing included.
    skipped : int
        Reduced steps that were left out because of NaN or infinities.
    with_gradients : int
        Parameters that had a gradient on this rank in the last reduced step.
    nbytes, wire_nbytes, seconds, hidden_seconds
        As in `BucketStatistics`, over all buckets and all layouts. Seconds are those of host arrays: what goes on on a
        device is not measured.
    calls : int
        Reductions: one a bucket by ``ready`` and ``wait``, one for all buckets of a dtype by ``sync``.
    blocked_seconds : float
        Time that this rank waited in ``sync``, ``wait`` and ``wait_for`` for reductions, and for ranks that were late.
    memory_bytes : int
        What the compressor keeps from step to step on this rank.
    buckets : tuple of BucketStatistics
        Of the present layout. The seconds of ``sync``, which reduces buckets together, are divided by their bytes.
    """

    steps: int = 0
    micro_steps: int = 0
    skipped: int = 0
    with_gradients: int = 0
    nbytes: int = 0
    wire_nbytes: int = 0
    calls: int = 0
    seconds: float = 0.0
    hidden_seconds: float = 0.0
    blocked_seconds: float = 0.0
    memory_bytes: int = 0
    buckets: tuple[BucketStatistics, ...] = ()

    def __str__(self) -> str:
        share = f" ({self.hidden_seconds / self.seconds:.0%})" if self.seconds else ""
        lines = [
            f"{self.steps} steps reduced of {self.micro_steps} micro-steps, {self.skipped} skipped",
            f"{self.nbytes} bytes in {self.calls} calls, {self.wire_nbytes} bytes sent, "
            f"{self.memory_bytes} bytes kept by the compressor",
            f"{self.seconds:.3f} s in communication, {self.hidden_seconds:.3f} s{share} of it hidden; "
            f"{self.blocked_seconds:.3f} s blocked",
        ]
        return "\n".join([*lines, *map(str, self.buckets)])
