"""Arrived messages, whose sender, tag or size the receiver does not know before.

Backends implement it; ``Communicator.probe`` and receives from any sender call it.
"""

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from hpccomm.contracts.transport import Steps


class Anything(Enum):
    """Takes the place of a rank or a tag."""

    ANY = "any"

    __hash__ = object.__hash__  # as it is a part of what calls are looked up by

    def __repr__(self) -> str:
        return "hpccomm.ANY"


ANY = Anything.ANY
"""Any rank as sender, or any tag."""


class Wanted(NamedTuple):
    """Which messages are wanted.

    Attributes
    ----------
    src : int or None
        Their sender; None is any.
    fits : callable
        Tells whether the transport's tag of a message is wanted.
    tags : sequence of int
        The transport's tags that fit, if these are few; else empty.
    exact : int or None
        The tag that is looked for before others, which any sender's message has that fits an array.
    """

    src: int | None
    fits: Callable[[int], bool]
    tags: Sequence[int]
    exact: int | None = None

    def meets(self, other: "Wanted", samples: Sequence[int]) -> bool:
        """Return whether a message may be wanted by both. `samples` stands for all tags."""
        if None not in (self.src, other.src) and self.src != other.src:
            return False
        return any(self.fits(tag) and other.fits(tag) for tag in self.tags or other.tags or samples)


class Arrival(NamedTuple):
    """A message that no other receive gets any more.

    Attributes
    ----------
    src : int
        Its sender.
    tag : int
        The transport's.
    nbytes : int
        Its size.
    receive : callable
        ``receive(data)`` returns the steps that receive it into a C-contiguous array of the same
        size. None as `data` drops it. To be called once; until then a large message keeps its
        sender waiting.
    """

    src: int
    tag: int
    nbytes: int
    receive: Callable[[NDArray[Any] | None], Steps]


class Arrivals(Protocol):
    """Looks for messages to this rank on the transport of users' messages.

    A backend has it as its attribute ``arrivals``. A backend without it cannot receive from any
    sender.
    """

    def take(self, wanted: Wanted) -> Generator[bool, None, Arrival | None]:
        """Take a wanted message that has arrived, polled; return None at once without one.

        A message for an earlier receive belongs to that receive. Of messages with one sender and
        tag, the first is taken. Without a list of tags in `wanted`, a message behind an unwanted
        one of the same sender may have to wait for that one's receive.
        """
