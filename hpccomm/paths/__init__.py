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

from hpccomm.paths.aware import AwarePath
from hpccomm.paths.host import HostPath
from hpccomm.paths.nccl import NcclPath
from hpccomm.paths.sharing import Sharing, memory_way, sharing
from hpccomm.paths.staged import StagedPath
from hpccomm.paths.trial import open_aware
from hpccomm.paths.way import Run, Start, Way

__all__ = [
    "AwarePath",
    "HostPath",
    "NcclPath",
    "Run",
    "Sharing",
    "StagedPath",
    "Start",
    "Way",
    "memory_way",
    "open_aware",
    "sharing",
]
