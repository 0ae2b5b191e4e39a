"""Prepared calls: the arguments are checked and the execution is decided once for all equal calls.

A call that differs from earlier ones only in its sizes takes over the decision for the class of its size. `core`
looks up each call that is not among its `known` calls; `hpccomm.communicator.packing` does so too.
"""

from typing import Any

from hpccomm.calls.arguments import NO_LISTS, Lists, Shape, kind_of_call
from hpccomm.calls.lanes import Lanes
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, address, check_dtype, check_layout, overlap
from hpccomm.reductions import Deterministic, recognised
from hpccomm.runtime.callpath import Kept, PreparedCall
from hpccomm.schedules.algorithms import Algorithm, AnyAlgorithm, registered
from hpccomm.schedules.algorithms.partition import offsets

NEW = "new"
"""The value of `out` that asks for a new array, for calls whose result would overwrite x."""

Arrays = tuple[Any, Any, View | None, View | None]
"""The user's `x` and `out`, and the views of both."""


class PreparedCalls:
    """The prepared calls of one communicator.

    Parameters
    ----------
    rank, size : int
        This rank, and the number of ranks.
    lanes : Lanes
        Decide how calls are carried out, by kind of memory.
    """

    def __init__(self, rank: int, size: int, lanes: Lanes) -> None:
        self._rank = rank
        self._size = size
        self._lanes = lanes
        self._kept, self._kinds = Kept(), Kept()

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
        """Return the prepared call for the arguments of a call, and the call's arrays.

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
        given, shape = (None, None) if a is None else (a.dtype, a.shape)
        wanted, into = (None, None) if b is None else (b.dtype, b.shape)
        if op.__hash__ is None and given is not None:  # of mpi4py
            op = recognised(op, given)
        memory = lane.registered_names(a, b)
        asked = name, given, wanted, op, root, lists
        how = exclusive, in_place, algorithm, deterministic, fresh, memory
        # The class of the root, and of flags, since True is equal to 1.
        like: object = (
            lane, *asked[:5], lists.sizeless, *how, root.__class__, exclusive.__class__,
            deterministic.__class__,
        )  # fmt: skip
        try:
            kind = self._kinds.get(like)
        except TypeError:  # an argument that cannot be hashed, such as a callable object
            kind = like = None  # nothing is kept
        if kind is None:
            _check(algorithm, x=given, out=wanted)
            kind = kind_of_call(self._rank, self._size, *asked, *how)
            if like is not None:
                self._kinds.keep(like, kind)
        key = kind, shape, into, lists
        prepared = self._kept.get(key)
        if prepared is None:
            prepared = lane.prepared(kind, *kind.with_sizes(shape, into, lists))
            if like is not None:
                self._kept.keep(key, prepared)
        return prepared, (x, out, a, b)


def _check(algorithm: object, **given: Any) -> None:
    """Raise unless arrays of these dtypes can be communicated, and `algorithm` can be one."""
    for which, dtype in given.items():
        if dtype is not None:
            check_dtype(which, dtype)
    named = algorithm is None or isinstance(algorithm, str | Algorithm)
    if not named and not callable(algorithm):
        raise UsageError(
            f"algorithm is {algorithm!r}; give a name, such as 'auto', or a function "
            "build(group, call, tuning) that makes the schedule"
        )
    if named and algorithm is not None:
        registered()  # warns of other packages' algorithms with a name of hpccomm's


def is_in_place(name: str, x: Any, out: Any, rank: int, root: object, counts: Shape = ()) -> bool:
    """Return whether `out` is `x`, or one of them is this rank's block of the other.

    Parameters
    ----------
    name : str
        Name of the call.
    x, out : View
        Arrays that overlap.
    rank : int
        This rank.
    root : object
        The argument `root`, not checked yet.
    counts : tuple of int
        Rows of each rank's block if the call lists them, else empty.

    Raises
    ------
    UsageError
        If the arrays overlap in another way.
    """
    collective = CALLS[name]
    check_layout(out, "out", written=True)  # first: x may be the same array
    check_layout(x, "x", written=False)
    if collective.rooted and root != rank:
        return False  # only one of the arrays is used
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
