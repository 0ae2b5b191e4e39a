"""Decides how a call is carried out, once for all calls with the same arguments: by which algorithm, over what.

Arrays in host memory take the host path: the backend's own collective, if it has one that gives the right
result, else one of hpccomm's algorithms, over the backend's point-to-point messages or over memory that the
ranks of a node share.

- `route`: a decision, as something that runs.
- `host`: decides; `policy` chooses the algorithm.
- `algorithms`: runs hpccomm's algorithms, by `execution`.
- `sharing`: how the ranks of a node reach each other's memory.

Arrays on a device take one of three ways: NCCL, a CUDA-aware MPI that gets their addresses, or pinned host
memory and the host path. In the last two the host takes part.

- `nccl`, `aware`, `staged`: decide; `cuda_aware_probe` finds out whether MPI takes device memory.
- `device_schedules`: makes hpccomm's algorithms ready for device memory.
- `parts`: cuts large arrays; `send_order` keeps messages in order.
"""
