"""The communicator: thin methods over paths, control plane and calls."""

from hpccomm.communicator.communicator import Communicator

__all__ = ["Communicator"]
