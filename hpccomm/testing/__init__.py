"""Tests and notebooks without MPI, proofs of schedules, and the suite that every backend must pass.

Users' tests call `run_ranks` and `prove`; authors of backends run ``hpccomm.testing.conformance``.
"""

from hpccomm.schedules.proof import Unproven, prove
from hpccomm.testing.threads import run_ranks

__all__ = ["Unproven", "prove", "run_ranks"]
