"""Which way an array goes, decided once for calls that ask for the same.

The host path takes the backend's own collective where it has one that means the same, else one of
hpccomm's algorithms, over the backend's point-to-point or the memory that ranks of a node share.

- `way`: what a decision comes to.
- `sharing`: how the ranks of a node reach each other's memory.
- `own`: runs hpccomm's algorithms.
- `host`: decides.

Device arrays go one of three ways: over NCCL, or, where the host takes part, over a CUDA-aware MPI that
is given their addresses or staged through pinned host memory over the host path.

- `schedules`: makes hpccomm's algorithms ready for device memory.
- `nccl`, `aware`, `staged`: decide; `trial` finds out whether MPI takes device memory.
- `parts`: cuts large arrays; `turns` keeps messages in order.
"""

from hpccomm.dispatch.aware import CudaAwareDispatch
from hpccomm.dispatch.cuda_aware_probe import open_aware
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dispatch.nccl import NcclDispatch
from hpccomm.dispatch.route import Route
from hpccomm.dispatch.sharing import Sharing, memory_way, sharing
from hpccomm.dispatch.staged import StagedDispatch

__all__ = [
    "CudaAwareDispatch",
    "HostDispatch",
    "NcclDispatch",
    "Route",
    "Sharing",
    "StagedDispatch",
    "memory_way",
    "open_aware",
    "sharing",
]
