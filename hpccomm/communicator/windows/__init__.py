"""Windows: memory that other ranks read and write without a call of its owner. `communicator.memory` makes them.

- `window`: the class `Window`.
- `calls`: the calls' common part, and the atomic calls.
- `access`: the ways to each rank's memory.
"""

from hpccomm.communicator.windows.window import Window, make

__all__ = ["Window", "make"]
