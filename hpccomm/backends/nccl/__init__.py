"""The backend on NCCL: moves device arrays. `hpccomm.communicator.creation` opens it.

- `opening` compares the `facts` of all ranks, and creates the backend or borrows the program's communicator.
- `backend` joins the parts: NCCL's `communicators` and its `collectives`.
- `libnccl` calls the library. `variables` reads NCCL's variables.

CuPy is not imported before a communicator that may use device arrays is made.
"""

from hpccomm.backends.nccl.backend import NcclBackend
from hpccomm.backends.nccl.opening import open_nccl

__all__ = ["NcclBackend", "open_nccl"]
