"""The classes of c10d that a backend in Python has as its bases, and reductions."""

from enum import Enum


class ReduceOp:
    """A reduction."""

    class RedOpType(Enum):
        """Their numbers."""

        SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)

    SUM = RedOpType.SUM


class Work:
    """A call."""


class ProcessGroup:
    """A group."""

    def __init__(self, rank, size):
        pass


class Backend:
    """A group's part for a kind of device: none can be made in Python, as in PyTorch 2.13."""

    def __init__(self, *_):
        raise TypeError("No constructor defined!")
