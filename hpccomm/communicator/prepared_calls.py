"""Prepared calls: arguments are checked and the route is chosen once for all equal calls.

`core` looks up each call here.
"""

from typing import Any

from hpccomm.communicator.lanes import Lane, Lanes, PreparedCall
from hpccomm.communicator.lanes.lane import Arrays
from hpccomm.communicator.resolving import NO_LISTS, CallRequest, Lists, Shape, resolve
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import UsageError
from hpccomm.memory.views import address, check_dtype, check_layout, overlap
from hpccomm.reductions import ANY_RANKS, Deterministic, recognised
from hpccomm.schedules.algorithms import Algorithm, AnyAlgorithm, registered
from hpccomm.schedules.algorithms.partition import offsets
from hpccomm.settings import check_bool

NEW = "new"
"""An `out` that asks for a new array where x would take the result."""

KEPT_CALLS = 1024
"""Decisions that are kept; a program that makes more different calls decides again."""


class PreparedCalls:
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
        self._kept: dict[object, PreparedCall] = {}

    def find(
        self,
        name: str,
        x: Any,
        out: Any,
        op: Any = None,
        root: Any = None,
        lists: Lists = NO_LISTS,
        exclusive: bool = False,
        algorithm: AnyAlgorithm | None = None,
        deterministic: Deterministic = False,
    ) -> tuple[PreparedCall, Arrays]:
        """Return how a call is carried out, and its arrays.

        Raises
        ------
        UsageError
            If an argument does not fit.
        """
        fresh = out.__class__ is str and out == NEW
        lane, a, b = self._lanes.views(x, None if fresh else out)
        in_place = b is not None and a is not None and overlap(a, b)
        if in_place:
            in_place = is_in_place(name, a, b, self._rank, root, lists.counts)
        given = None if a is None else (a.dtype, a.shape)
        wanted = None if b is None else (b.dtype, b.shape)
        if op.__hash__ is None and given is not None:  # of mpi4py
            op = recognised(op, given[0])
        registered = lane.of_empty(a, b)
        key: object = (
            name, lane, given, wanted, op, root, in_place, algorithm, deterministic, deterministic.__class__,
            registered,
        )  # fmt: skip
        if root is not None or lists is not NO_LISTS or exclusive is not False or fresh:
            # The class of the root, and of flags, since True is equal to 1.
            key = key, root.__class__, lists, exclusive, exclusive.__class__, fresh
        try:
            prepared = self._kept.get(key)
        except TypeError:  # an argument that cannot be hashed, such as a callable object
            prepared = key = None  # nothing is kept
        if prepared is None:
            asked = name, given, wanted, op, root, lists
            how = exclusive, in_place, algorithm, deterministic, fresh, registered
            prepared = _decided(lane, CallRequest(self._rank, self._size, *asked, *how))
            if len(self._kept) >= KEPT_CALLS:
                self._kept.clear()
            if key is not None:
                self._kept[key] = prepared
        return prepared, (x, out, a, b)


def _decided(lane: Lane, request: CallRequest) -> PreparedCall:
    """Check what a call is asked for, and decide how it is carried out."""
    for which, array in (("x", request.x), ("out", request.out)):
        if array is not None:
            check_dtype(which, array[0])
    resolved, algorithm = resolve(request), request.algorithm
    if request.deterministic != ANY_RANKS:
        check_bool("deterministic", request.deterministic, f", or {ANY_RANKS!r}")
    named = algorithm is None or isinstance(algorithm, str | Algorithm)
    if not named and not callable(algorithm):
        raise UsageError(
            f"algorithm is {algorithm!r}; give a name, such as 'auto', or a function "
            "build(group, call, tuning) that makes the schedule"
        )
    if named and algorithm is not None:
        registered()  # which warns of other packages' algorithms that have the name of one of hpccomm's
    return lane.decide(request, resolved)


def is_in_place(name: str, x: Any, out: Any, rank: int, root: object, counts: Shape = ()) -> bool:
    """Return whether `out` is `x`, or one of them is the own block of the other.

    Parameters
    ----------
    name : str
        Name of the call.
    x, out : View
        Arrays that overlap.
    rank : int
        This rank.
    root : object
        The argument, not checked yet.
    counts : tuple of int
        Rows of each rank's block where the call lists them, else empty.

    Raises
    ------
    UsageError
        If they overlap in another way.
    """
    collective = CALLS[name]
    check_layout(out, "out", written=True)  # first: x may be the same array
    check_layout(x, "x", written=False)
    if collective.rooted and root != rank:
        return False  # only one of them is used
    if collective.in_place == "own block":
        whole, block = (x, out) if collective.sends == "blocks" else (out, x)
        before = block.nbytes * rank
        if counts:
            before = offsets(counts)[rank] * (whole.nbytes // max(sum(counts), 1))
        if address(block) == address(whole) + before:
            return True
        fits = "give this rank's own block of the other, or an array that shares no memory"
    else:
        if address(x) == address(out) and x.nbytes == out.nbytes:
            return True
        fits = "give out=x, or an array that shares no memory with x"
    raise UsageError(f"x and out of {name} overlap; {fits}")
