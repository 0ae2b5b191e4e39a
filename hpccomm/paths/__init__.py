"""Which way an array goes, decided once for calls that ask for the same.

The host path takes the backend's own collective where it has one that means the same, else one of
hpccomm's algorithms, over the backend's point-to-point or the memory that ranks of a node share.

- `way`: what a decision comes to.
- `sharing`: how the ranks of a node reach each other's memory.
- `own`: runs hpccomm's algorithms.
- `host`: decides.
"""

from hpccomm.paths.host import HostPath
from hpccomm.paths.sharing import Sharing, memory_way, sharing
from hpccomm.paths.way import Run, Start, Way

__all__ = ["HostPath", "Run", "Sharing", "Start", "Way", "memory_way", "sharing"]
