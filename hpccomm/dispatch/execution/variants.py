"""One call in several forms: which one runs depends on what the ranks of a node reach of each other.

That is found out in the call. The ranks of the node exchange what they publish of their arrays, by
messages; so they have met, which stands for the barrier with which such schedules begin, and all of
them know the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hpccomm.contracts.majority import odd_ones
from hpccomm.contracts.transport import RECORD, Exposure, Reach, Record
from hpccomm.dispatch.execution.program import LocalRound, Message, Program, Slice
from hpccomm.dispatch.execution.reached import Peers
from hpccomm.dtypes import DType
from hpccomm.errors import RankMismatch
from hpccomm.runtime.verdict import ranks_named


class Found(NamedTuple):
    """What ranks know once they have met. In a loop they find the same.

    Attributes
    ----------
    table : bytes
        What they published.
    reach : Reach
        What they reach of each other.
    program : Program
        Of the form that fits.
    peers : Peers
        The buffers of the others.
    """

    table: bytes
    reach: Reach
    program: Program
    peers: Peers


@dataclass(slots=True, eq=False)
class Variants:
    """The programs of one rank for calls of one signature.

    Attributes
    ----------
    members : tuple of int
        The ranks of its node in an order that is the same on all, but beginning with this rank.
    fingerprint : int
        Of the call: different where calls differ.
    programs : mapping of Reach to callable
        Returns the program of each form, made when it is first needed.
    scratch : int
        Bytes of scratch that peers reach, as the staged form needs; 0 for none.
    plain : bool
        Whether plain arrays may be reached, where they can be.
    room : int
        Bytes of such scratch that this process may have in use for all its calls.
    table : ndarray of int64, shape (ranks of the node, RECORD)
        What the members published, in that order.
    meeting : tuple of LocalRound
        Fills it, but for the first row.
    found : Found or None
        What came of the last table.
    """

    members: tuple[int, ...]
    fingerprint: int
    programs: Mapping[Reach, Callable[[], Program]]
    scratch: int
    plain: bool
    room: int
    table: Record = field(init=False)
    meeting: tuple[LocalRound[Slice], ...] = field(init=False)
    found: Found | None = None

    def __post_init__(self) -> None:
        self.table = np.zeros((len(self.members), RECORD), np.int64)
        self.meeting = tuple(_meeting(self.members))

    def learned(self, exposure: Exposure, dtype: DType) -> Found:
        """Return what follows from the table.

        Raises
        ------
        RankMismatch
            On all members alike, if they do not make the same call.
        """
        published = self.table.tobytes()
        found = self.found
        if found is None or found.table != published:
            self._check()
            reach = exposure.learn(dict(zip(self.members, self.table, strict=True)))
            found = Found(published, reach, self.programs[reach](), Peers(exposure, dtype))
            self.found = found if exposure.lasting else None
        return found

    def _check(self) -> None:
        """Raise unless all members make the same call."""
        theirs = self.table[:, 0]
        if (theirs == self.fingerprint).all():
            return
        odd = odd_ones(dict(zip(self.members, theirs.tolist(), strict=True)))
        everyone = len(odd) == len(self.members)
        made = "all make different calls" if everyone else "made another call than the others"
        raise RankMismatch(
            f"{ranks_named(odd)} {made}; "
            "give arrays of the same size and dtype, and the same op, root and algorithm, on all ranks",
            ranks=odd,
        )


def _meeting(members: tuple[int, ...]) -> list[LocalRound[Slice]]:
    """Return the turns that fill a table, of which each rank has the first row, with all rows.

    J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all
    communications in multiport message-passing systems", 1997: ⌈log2 n⌉ messages, as a barrier's.
    """
    n = len(members)
    turns = []
    known = 1
    while known < n:
        count = min(known, n - known)
        new = Slice(0, slice(known * RECORD, (known + count) * RECORD))
        old = Slice(0, slice(0, count * RECORD))
        receive = Message(members[known], new)
        send = Message(members[-known], old)
        turns.append(LocalRound((receive,), (send,)))
        known += count
    return turns
