"""Counters that count since the system's start: what matters is what rises while one looks."""

import time
from collections.abc import Mapping

SECONDS = 0.5


def pause() -> None:
    """Wait between two readings."""
    time.sleep(SECONDS)


def rising(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return by how much counters rose, of those that did."""
    both = {name: value - first[name] for name, value in second.items() if name in first}
    return {name: rise for name, rise in both.items() if rise > 0}
