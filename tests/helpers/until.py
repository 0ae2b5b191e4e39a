"""Waits for a condition, without a guess of the time."""

import time
from collections.abc import Callable

HANGS_AFTER = 60.0
"""Seconds after which no load of the machine explains it."""


def until(comes: Callable[[], object]) -> None:
    """Wait until ``comes()`` is true; fail the test if it never is."""
    begin = time.perf_counter()
    while not comes():
        assert time.perf_counter() - begin < HANGS_AFTER, "it never came"
        time.sleep(0.001)
