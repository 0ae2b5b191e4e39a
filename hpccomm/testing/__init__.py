"""Tests and notebooks without MPI, and the suite that every backend must pass."""

from hpccomm.testing.threads import run_ranks

__all__ = ["run_ranks"]
