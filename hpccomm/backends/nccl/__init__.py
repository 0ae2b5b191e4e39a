"""The backend on NCCL, through CuPy: moves device arrays.

`hpccomm.communicator.making` opens it. CuPy is not imported before a communicator that may use
device arrays is made.
"""

from hpccomm.backends.nccl.backend import NcclBackend
from hpccomm.backends.nccl.opening import open_nccl

__all__ = ["NcclBackend", "open_nccl"]
