"""How hpccomm's algorithms are built for one rank, whatever memory its arrays lie in."""

import numpy as np

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.algorithms import Algorithm
from hpccomm.schedules.schedule import Build


def by_messages(algorithm: Algorithm, deterministic: bool) -> Build:
    """Return what builds an algorithm's schedule that sends messages."""
    ordered = algorithm.ordered
    return ordered if deterministic and ordered is not None else algorithm.build


def segment_elements(call: Signature, nbytes: int, most: int) -> int:
    """Return the elements of a segment of `nbytes`, so that there are about `most` segments at most."""
    segment = max(1, nbytes // call.dtype.itemsize)
    if call.individual:  # ranks have their own elements, and all must come to the same
        return segment
    return max(segment, call.elements // most)


def lengths_of(call: Signature, rank: int) -> tuple[int, int]:
    """Return the elements of a rank's `send` and `recv`."""
    send, recv = call.lengths(np.array([rank]))
    return int(send[0]), int(recv[0])


def nbytes_of(segment: int | None, itemsize: int) -> int | None:
    """Return the bytes of a segment, where an algorithm cuts the array."""
    return None if segment is None else segment * itemsize
