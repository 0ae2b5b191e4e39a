"""Sends of threads that leave later, as a library's may: `run_ranks` has them on request.

Until a send is complete, its array belongs to it: what is written there meanwhile is sent. A caller that does not
wait for its sends then sends wrong numbers, as it does over MPI.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from hpccomm.backends.loopback import LoopbackTransport
from hpccomm.contracts.transport import Request

T = TypeVar("T")

POLLS = 1, 2, 4, 16
"""After how many polls a send leaves. A wait spins longer, so that they cost microseconds."""


class LateTransport(LoopbackTransport):
    """Messages that leave later, in their order. Whatever the rank polls here moves them on.

    Parameters
    ----------
    seed : int
        Draws how many polls each takes. The same seed draws the same.
    *its
        Those of `LoopbackTransport`.
    """

    def __init__(self, seed: int, *its: Any) -> None:
        super().__init__(*its)
        self._random = Random(f"{seed} {self.context} {self.rank}")
        self._lock = threading.Lock()
        self._under_way: list[Callable[[], object]] = []
        self._polls = 0  # until the first of them leaves

    def leaving(self, leave: Callable[[], object]) -> Request:
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
