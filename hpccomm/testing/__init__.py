"""Tests and notebooks without MPI, proofs of schedules, and the suite that every backend must pass."""

from hpccomm.schedules.proof import Unproven, prove
from hpccomm.testing.mirrored import on_device
from hpccomm.testing.threads import run_ranks

__all__ = ["Unproven", "on_device", "prove", "run_ranks"]
