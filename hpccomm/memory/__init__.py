"""The memory of arrays: views, folding, device memory, and a node's shared memory.

- `views` makes a view of any array, and `foreign` a view of memory that is not NumPy's.
- `folding` reduces arrays; `binned` sums floats to the same bits in any order.
- `cuda` has device memory, `shared` the memory that ranks of a node share.

`hpccomm.calls`, `hpccomm.communicator`, the backends, `hpccomm.gradients` and the frameworks use it.
"""
