"""Windows: memory that other ranks read and write by themselves. See `window` and `access`."""

from hpccomm.communicator.windows.window import Window, make

__all__ = ["Window", "make"]
