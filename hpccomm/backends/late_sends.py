"""Sends of a rank that leave later, as a library's may: `hpccomm.backends.loopback` has them on request.

Until a send is complete, its array belongs to it: what is written there meanwhile is sent. A caller that does not
wait for its sends then sends wrong numbers, as it does over MPI. Used by tests.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import TypeVar

from hpccomm.contracts.transport import Request

T = TypeVar("T")

POLLS = 1, 2, 4, 16
"""After how many polls a send leaves. A wait spins longer, so that they cost microseconds."""


class LateSends:
    """The sends of one rank over one transport, in their order. Whatever the rank polls there moves them on.

    Parameters
    ----------
    seed : str
        Draws how many polls each takes. The same seed draws the same.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._under_way: list[Callable[[], object]] = []
        self._polls = 0  # until the first of them leaves

    def begin(self, leave: Callable[[], object]) -> Request:
        """Begin a send: `leave` reads its array, and puts the message where its receiver finds it."""
        with self._lock:
            if not self._under_way:
                self._polls = self._random.choice(POLLS)
            self._under_way.append(leave)
        return self.moving(lambda: leave not in self._under_way)

    def moving(self, test: Callable[[], T]) -> Callable[[], T]:
        """Return a request, or a packet, that moves the sends on before it is tested."""

        def tested() -> T:
            with self._lock:
                self._polls -= 1
                if self._under_way and self._polls <= 0:
                    self._under_way[0]()
                    del self._under_way[0]
                    self._polls = self._random.choice(POLLS)
            return test()

        return tested
