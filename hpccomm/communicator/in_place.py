"""Whether a call is in place, seen from the memory of its arrays."""

from hpccomm.contracts.collectives import Collective
from hpccomm.errors import UsageError
from hpccomm.memory.views import View, address, check_layout
from hpccomm.schedules.algorithms.partition import offsets


def in_place(
    collective: Collective,
    name: str,
    x: View,
    out: View,
    rank: int,
    root: object,
    counts: tuple[int, ...],
) -> bool:
    """Return whether `out` is `x`, or one of them is the own block of the other.

    Parameters
    ----------
    collective : Collective
        The collective.
    name : str
        Name of the call, for messages.
    x, out : View
        Arrays that overlap.
    rank : int
        This rank.
    root : object
        The argument, which nobody has checked yet.
    counts : tuple of int
        Rows of each rank's block where the call lists them, else empty.

    Raises
    ------
    UsageError
        If they overlap in another way.
    """
    check_layout(x, "x", written=False)
    check_layout(out, "out", written=True)
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
