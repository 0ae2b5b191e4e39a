"""Access of the processes of a node to each other's memory.

There are two kinds of memory. Registered memory lies in segments of this library, which peers map.
Plain memory is any other memory; the kernel copies from and to it. Neither has a name in a file
system. So nothing is left behind after any end of a process, and a small ``/dev/shm`` does not
matter.

- `heap`: this process's segments and the arrays in them, memory leased for staging, and peers' segments, mapped here.
- `pages`: the system calls, and peers' plain arrays.
- `node`: the arrays that the ranks of a node expose in a call, and the test whether ranks can reach them.

The MPI backend offers it to schedules and windows through `hpccomm.contracts.transport`; the doctor tests it.
"""

from hpccomm.memory.shared.node import NodeMemory, Offer, ProbeResult, agreed, offer, tried

__all__ = ["NodeMemory", "Offer", "ProbeResult", "agreed", "offer", "tried"]
