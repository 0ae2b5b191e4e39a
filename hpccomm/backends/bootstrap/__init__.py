"""The start and the end of a process in its job: launcher, MPI, devices, exits.

- `launch` reads the launcher's variables. `mpi` starts MPI through `libmpi`. `cuda_aware` asks whether MPI takes device
  memory.
- `node_sockets` lets the processes of a node ask each other.
- `shutdown` ends the process, and the job if needed; `presence` asks the other ranks about it.

The MPI backend, `hpccomm.communicator.creation`, `hpccomm.calls.cuda_aware` and the tools use it.
"""
