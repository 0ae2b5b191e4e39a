"""How the processes of a node reach each other's memory.

There are two kinds of memory. Registered memory lies in segments of this library, which peers map.
Plain memory is any other memory; the kernel copies from and to it. Both have no name in a file
system, so nothing is left behind after any end of a process, and a small ``/dev/shm`` does not
matter.

- `heap`: this process's segments, and the arrays in them; leases of it for staging; peers' segments, mapped here.
- `pages`: the system calls, and peers' plain arrays.
- `node`: what the ranks of a node expose and reach in a call, and whether they can.

The MPI backend offers it to schedules and windows through `hpccomm.contracts.transport`.
"""

from hpccomm.memory.shared.node import NodeMemory, Offer, ProbeResult, agreed, offer, tried

__all__ = ["NodeMemory", "Offer", "ProbeResult", "agreed", "offer", "tried"]
