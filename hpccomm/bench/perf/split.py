"""Groups of ranks that measure at the same time, as nccl-tests splits them (``--split``).

The flag is read by it, and `sweep` splits the ranks by it.
"""

import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_HOW: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {"AND": operator.and_, "OR": operator.or_, "MOD": operator.mod, "DIV": operator.floordiv}
)
_SIGNS = {"&": "AND", "|": "OR", "%": "MOD", "/": "DIV"}
_FITS = "AND, OR, MOD or DIV and a number, such as MOD 8, or AND 0x7"
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RankSplit:
    """The rule that makes a rank's number the color of its group.

    Attributes
    ----------
    how : str
        ``AND``, ``OR``, ``MOD`` or ``DIV``.
    value : int
        The other operand.
    """

    how: str
    value: int

    def color(self, rank: int) -> int:
        """Return the color of a rank."""
        return _HOW[self.how](rank, self.value)


def split(text: str) -> RankSplit:
    """Read a split, as nccl-tests reads ``NCCL_TESTS_SPLIT``: letters of any case, base 2, 8, 10 or 16."""
    match = re.fullmatch(r"\s*(AND|OR|MOD|DIV|[&|%/])\s*(\w+)\s*", text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a split; give {_FITS}")
    how, digits = match[1].upper(), match[2].lower()
    try:
        octal = re.fullmatch("0[0-7]+", digits)
        value = int(digits, 8 if octal else 0)
    except ValueError:
        value = -1
    how = _SIGNS.get(how, how)
    if not (how in ("MOD", "DIV")) <= value <= _LARGEST:
        raise ArgumentTypeError(f"{text!r}: {match[2]} does not fit; give {_FITS}")
    return RankSplit(how, value)


@contextmanager
def grouped(
    world: "Communicator", asked: RankSplit | None
) -> Iterator[tuple["Communicator", int, int]]:
    """Give this rank's group, its color, and the number of ranks of the smallest. Collective; blocks.

    Parameters
    ----------
    world : Communicator
        Of all ranks.
    asked : RankSplit or None
        That of rank 0 is taken, as not every launcher passes variables on; None leaves the ranks together.
    """
    how: RankSplit | None = world.broadcast_object(asked)
    if how is None:
        yield world, 0, world.size
        return
    color = how.color(world.rank)
    group = world.split(color, key=world.rank, name=f"{world.name}-{color}")
    assert group is not None  # as all ranks have a color
    with group:
        yield group, color, min(world.all_gather_object(group.size))
