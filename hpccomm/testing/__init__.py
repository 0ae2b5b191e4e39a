"""Tests and notebooks without MPI, proofs of schedules, and the suite that every backend must pass.

Users' tests call `run_ranks`, `prove` and `on_device`; authors of backends run the conformance
suite.
"""

from hpccomm.schedules.proof import Unproven, prove
from hpccomm.testing.mirrored import on_device
from hpccomm.testing.threads import run_ranks

__all__ = ["Unproven", "on_device", "prove", "run_ranks"]
