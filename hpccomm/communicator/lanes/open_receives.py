"""The order of receives where one has no message yet and takes any: of any sender, of any tag or of any size.

The host lane begins others behind it, and `Communicator.recv` the next of its kind.
"""

from collections.abc import Callable

from hpccomm.contracts.arrivals import Wanted
from hpccomm.contracts.transport import DTYPES, Steps

OpenReceives = dict[object, Wanted]
"""In the order in which they were begun. Each stays here until no later one can take its message."""

_SAMPLES = 0, DTYPES  # an array's and an object's tag


def ahead_of(wanted: Wanted, receives: OpenReceives) -> list[object]:
    """Return the open receives to which a message that is wanted now may belong."""
    each = list(receives.items()) if receives else ()
    return [one for one, other in each if other.meets(wanted, _SAMPLES)]


def behind(receives: OpenReceives, src: int, tag: int, begin: Callable[[], Steps]) -> Steps:
    """Begin a receive of known messages, behind the open ones that may take them."""
    channel = tag // DTYPES
    wanted = Wanted(src, lambda wire: wire // DTYPES == channel, (tag,))
    ahead, place = ahead_of(wanted, receives), object()
    if not ahead:
        return begin()
    receives[place] = wanted

    def steps() -> Steps:
        try:
            while not receives.keys().isdisjoint(ahead):
                yield False
            begun = begin()
        finally:
            del receives[place]
        yield from begun

    return steps()
