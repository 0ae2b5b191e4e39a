"""An algorithm, as data.

A schedule says what one rank does: rounds of transfers with peers, each followed by steps on its
own memory. It speaks of slices of named buffers, counted in elements.
"""

from dataclasses import dataclass
from typing import NamedTuple

SEND = "send"
RECV = "recv"
SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` elements of the named buffer, from `start`."""

    buffer: str
    start: int
    count: int


class Transfer(NamedTuple):
    """A message to or from `peer`."""

    peer: int
    data: Slice


class Copy(NamedTuple):
    """Copy `source` to `target`, of the same count."""

    source: Slice
    target: Slice


class Fold(NamedTuple):
    """Fold `sources` in their order into `target`, all of the same count."""

    sources: tuple[Slice, ...]
    target: Slice


class Round(NamedTuple):
    """What happens at once: receives and sends, and when they are complete, the local steps."""

    receives: tuple[Transfer, ...] = ()
    sends: tuple[Transfer, ...] = ()
    local: tuple[Copy | Fold, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one rank does in a collective.

    Attributes
    ----------
    rounds : tuple of Round
        In their order.
    scratch : int
        Elements of the buffer ``"scratch"``.
    """

    rounds: tuple[Round, ...]
    scratch: int = 0
