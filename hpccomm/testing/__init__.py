"""Tests and notebooks without MPI, proofs of schedules, and the suite that every backend must pass."""

from hpccomm.testing.proof import Unproven, prove
from hpccomm.testing.threads import run_ranks

__all__ = ["Unproven", "prove", "run_ranks"]
