"""Decides how a call is carried out, once for all calls with the same arguments.

A decision names the algorithm, and the path of the data. The communicator's lanes ask for it, and
keep the result in a prepared call. Arrays in host memory take the host path: the backend's own
collective, if it has one with the right result, else one of hpccomm's algorithms, over the
backend's messages or over memory that the ranks of a node share.

- `host`: has `policy` choose the algorithm, and makes the functions that run it.
- `algorithms`: runs hpccomm's algorithms, by `execution`, on memory that the ranks of a node share.

Arrays on a device take one of three paths: NCCL, a CUDA-aware MPI that gets their addresses, or
pinned host memory and the host path. In the last two the host takes part. What the first two lack
takes the third.

- `on_device`: decides, and makes hpccomm's algorithms ready for device memory; `nccl` and `aware` are the
  libraries. `aware` finds out whether MPI takes device memory.
- `staged`: goes through the host. `parts`: cuts large arrays.
- `send_order`: keeps messages in order.
"""
