"""Windows: memory that other ranks read and write without a call of its owner. `Communicator` and `turns` make them.

- `window`: the class `Window`.
- `access`: the ways to each rank's memory.
"""

from hpccomm.communicator.windows.window import Window, make

__all__ = ["Window", "make"]
