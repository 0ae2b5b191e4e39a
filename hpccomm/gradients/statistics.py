"""What the steps of a training cost so far."""

from dataclasses import dataclass


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
