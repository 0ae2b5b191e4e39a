"""The order of receives where one has no message yet and takes any: of any sender, of any tag or of any size.

The host lane begins others behind it, and `Communicator.recv` the next of its kind.
"""

from collections.abc import Callable

from hpccomm.contracts.arrivals import Wanted
from hpccomm.contracts.transport import DTYPES, Steps

Rests = dict[tuple[int, int], list[Steps]]
"""Objects whose packets are awaited or there, in their order, by sender and tag."""

OpenReceives = dict[object, Wanted]
"""In the order in which they were begun. Each stays here until no later one can take its message."""

_SAMPLES = 0, DTYPES  # an array's and an object's tag


def ahead_of(wanted: Wanted, receives: OpenReceives) -> list[object]:
    """Return the open receives to which a message that is wanted now may belong."""
    return [one for one, other in list(receives.items()) if other.meets(wanted, _SAMPLES)]


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


def in_order(rests: Rests, src: int, tag: int, steps: Steps) -> Steps:
    """Receive an object after the earlier ones of its sender and tag: what follows their packets has the same tag."""
    queue = rests.setdefault((src, tag), [])
    queue.append(steps)
    try:
        while queue[0] is not steps:
            yield False
        yield from steps
    finally:
        queue.remove(steps)
