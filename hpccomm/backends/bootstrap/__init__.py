"""How a process joins its job and leaves it: launcher, MPI, devices, exits.

- `launch` reads the launcher's variables. `mpi` starts MPI, over `libmpi`; `cuda_aware` asks whether it takes device memory.
- `node_sockets` lets the processes of a node ask each other.
- `shutdown` and `presence` end the process, and the job if needed.

The MPI backend and `hpccomm.communicator.creation` use it.
"""
