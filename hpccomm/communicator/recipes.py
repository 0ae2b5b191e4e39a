"""Decisions: a call's arguments are checked and its way is chosen once for all that are alike."""

from typing import Any

from hpccomm.communicator.in_place import in_place as out_is_x_or_block
from hpccomm.communicator.lanes import Lane, Lanes, Recipe
from hpccomm.communicator.resolving import NO_LISTS, CallArguments, Lists, resolve
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, check_dtype, overlap

RECIPES = 1024
"""Decisions that are kept; a program that makes more different calls decides again."""


class Recipes:
    """The decisions of one communicator.

    Parameters
    ----------
    rank, size : int
        This rank, and the number of ranks.
    lanes : Lanes
        What decides, by kind of memory.
    """

    def __init__(self, rank: int, size: int, lanes: Lanes) -> None:
        self._rank = rank
        self._size = size
        self._lanes = lanes
        self._kept: dict[object, Recipe[Any]] = {}

    def find(
        self,
        name: str,
        x: Any,
        out: Any,
        op: Any = None,
        root: Any = None,
        lists: Lists = NO_LISTS,
        exclusive: bool = False,
        algorithm: str | None = None,
        deterministic: bool = False,
    ) -> tuple[Recipe[Any], View | None, View | None]:
        """Return how a call is carried out, and its arrays as communication sees them.

        Raises
        ------
        UsageError
            If an argument does not fit.
        """
        lane, a, b = self._lanes.views(x, out)
        in_place = (
            b is not None
            and a is not None
            and overlap(a, b)
            and out_is_x_or_block(CALLS[name], name, a, b, self._rank, root, lists.counts)
        )
        call = (
            name,
            None if a is None else (a.dtype, a.shape),
            None if b is None else (b.dtype, b.shape),
            op,
            root,
            lists,
            exclusive,
            in_place,
        )
        # The class of the root, since True is equal to 1.
        key: object = (call, lane, root.__class__, algorithm, deterministic)
        try:
            recipe = self._kept.get(key)
        except TypeError:  # an argument that cannot be hashed, such as a callable object
            recipe = None
            key = None  # nothing is kept
        if recipe is None:
            arguments = CallArguments(self._rank, self._size, *call)
            recipe = _decided(lane, arguments, algorithm, deterministic)
            if key is not None:
                if len(self._kept) >= RECIPES:
                    self._kept.clear()
                self._kept[key] = recipe
        return recipe, a, b


def _decided(
    lane: Lane, arguments: CallArguments, algorithm: str | None, deterministic: bool
) -> Recipe[Any]:
    """Check what a call is asked for, and decide how it is carried out."""
    for which, array in (("x", arguments.x), ("out", arguments.out)):
        if array is not None:
            check_dtype(which, array[0])
    resolved = resolve(CALLS[arguments.name], arguments)
    if not isinstance(deterministic, bool):
        raise UsageError(f"deterministic is {deterministic!r}; give True or False")
    if algorithm is not None and not isinstance(algorithm, str):
        raise UsageError(f"algorithm is {algorithm!r}; give a name, such as 'auto'")
    return lane.decide(arguments.name, resolved, algorithm, deterministic)
