"""One call in several forms: which one runs depends on what the ranks of a node reach of each other.

That is found out in the call. The ranks of the node exchange what they publish of their arrays, by
messages; so they have met, which stands for the barrier with which such schedules begin, and all of
them know the same.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from hpccomm.contracts.transport import RECORD, Exposure, Reach
from hpccomm.dispatch.execution.program import LocalRound, Message, Program, Slice
from hpccomm.dispatch.execution.reached import Peers
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch


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


class Variants:
    """The programs of one rank for calls of one signature.

    Parameters
    ----------
    rank : int
        This rank.
    members : tuple of int
        The ranks of its node, this one among them, in an order that is the same on all.
    fingerprint : int
        Of the call: different where calls differ.
    programs : mapping of Reach to callable
        What makes the program of each form; called once, when it is first needed.
    scratch : int
        Bytes of scratch that peers reach, as the staged form needs; 0 for none.
    plain : bool
        Whether plain arrays may be reached, where they can be.
    room : int
        Bytes of such scratch that this process may have in use for all its calls.

    Attributes
    ----------
    members : tuple of int
        As given, but beginning with this rank.
    table : ndarray of int64, shape (ranks of the node, RECORD)
        What the members published, in that order.
    found : Found or None
        What came of the last table.
    meeting : tuple of Turn
        Fills it, but for the first row.
    """

    def __init__(
        self,
        rank: int,
        members: tuple[int, ...],
        fingerprint: int,
        programs: Mapping[Reach, Callable[[], Program]],
        *,
        scratch: int,
        plain: bool,
        room: int,
    ) -> None:
        at = members.index(rank)
        self.members = (*members[at:], *members[:at])
        self.table = np.zeros((len(members), RECORD), np.int64)
        self.meeting = tuple(_meeting(self.members))
        self.fingerprint = fingerprint
        self.scratch = scratch
        self.plain = plain
        self.room = room
        self.found: Found | None = None
        self._make = programs
        self._made: dict[Reach, Program] = {}

    def learned(self, exposure: Exposure, dtype: DType) -> Found:
        """Return what follows from the table.

        Raises
        ------
        BufferMismatch
            On all members alike, if they do not make the same call.
        """
        published = self.table.tobytes()
        found = self.found
        if found is None or found.table != published:
            self._check()
            reach = exposure.learn(dict(zip(self.members, self.table, strict=True)))
            program = self._made.get(reach)
            if program is None:
                program = self._made[reach] = self._make[reach]()
            found = Found(published, reach, program, Peers(exposure, dtype))
            self.found = found if exposure.lasting else None
        return found

    def _check(self) -> None:
        """Raise unless all members make the same call."""
        theirs = self.table[:, 0]
        if (theirs == self.fingerprint).all():
            return
        # Named against one of them that all take for the reference.
        of = {
            rank: int(each)
            for rank, each in sorted(zip(self.members, theirs.tolist(), strict=True))
        }
        first = min(of)
        others = [rank for rank, each in of.items() if each != of[first]]
        who = "rank" if len(others) == 1 else "ranks"
        make = "makes" if len(others) == 1 else "make"
        raise BufferMismatch(
            f"{who} {', '.join(map(str, others))} {make} another call than rank {first}; "
            "give arrays of the same size and dtype, and the same op, root and algorithm, on all ranks"
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
