"""`Communicator`: a documented face over one engine, which is composed of parts."""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
