"""Arrays as hpccomm sees them: views, folding, device memory, and a node's shared memory.

- `views` makes a view of any array; `foreign` of memory that is not NumPy's. `folding` reduces
  arrays.
- `cuda` is device memory, `shared` the memory that ranks of a node share.

`hpccomm.calls`, the backends and the communicator use it.
"""
