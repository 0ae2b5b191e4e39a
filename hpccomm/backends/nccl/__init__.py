"""NCCL, through CuPy: what moves device arrays.

Nothing of CuPy is imported before a communicator that may serve device arrays is made.
"""

from hpccomm.backends.nccl.backend import NcclBackend
from hpccomm.backends.nccl.opening import open_nccl

__all__ = ["NcclBackend", "open_nccl"]
