"""One call in several forms; the memory that the ranks of a node reach decides which one runs.

The call itself finds that out. The ranks of the node exchange records of their arrays, by messages.
So they have met, which replaces the barrier at the beginning of such schedules, and all have the
same facts.

The result is kept for later calls in which all publish the same records. It depends on nothing
else, and holds no array: a peer's registered memory stays mapped, and the array at that place is
the one that the peer publishes in that call. `runner` asks for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ref

import numpy as np

from hpccomm.calls.execution.program import Action, MemoryProgram, Peers, Program, Reached
from hpccomm.contracts.backend import Buffer
from hpccomm.contracts.pairing import odd_ones
from hpccomm.contracts.transport import Exposure, Reach, Record, SharedMemory
from hpccomm.dtypes import DType
from hpccomm.errors import RankMismatch
from hpccomm.memory.folding import Folder
from hpccomm.memory.views import ScratchBuffer, address
from hpccomm.units import ranks_named

KEPT = 64
"""Number of different sets of arrays whose results are kept."""

BOUND_STEPS = 1024
"""Programs of more steps are bound anew in each call, since bound steps take memory."""

_NOTHING = np.empty(0, np.uint8)

_Places = tuple[int, int, int, int]
"""Address and bytes of the sent array, and of the received one."""

Turns = Iterable[tuple[Iterable[Action], tuple[tuple[int, int], ...]]]
"""The rounds of a program on memory: the steps, and the steps of the barrier that follows."""


class ReachedForm(NamedTuple):
    """The facts of ranks that have met, and have published these records.

    Attributes
    ----------
    reach : Reach
        The reach of each other's memory.
    program : Program or MemoryProgram
        Of the matching form.
    peers : Peers
        The buffers of the peers.
    turns : Turns or None
        The program, bound to all published memory; None if it is bound in each call.
    """

    reach: Reach
    program: Program | MemoryProgram
    peers: Peers
    turns: Turns | None


class _Recent(NamedTuple):
    """References to the arrays of the last call, and how they are exposed in every call."""

    send: Callable[[], object]
    recv: Callable[[], object]
    exposure: Exposure


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
    dtype : dtype
        Of the elements.
    fold : Folder or None
        The reduction, if there is one.
    scratch : int
        Bytes of scratch that peers reach, as the staged form needs; 0 for none.
    plain : bool
        Whether plain arrays may be reached, where they can be.
    room : int
        Bytes of such scratch that this process may have in use for all its calls.
    """

    members: tuple[int, ...]
    fingerprint: int
    programs: Mapping[Reach, Callable[[], Program | MemoryProgram]]
    dtype: DType
    fold: Folder | None
    scratch: int
    plain: bool
    room: int
    _found: dict[bytes, ReachedForm] = field(init=False, default_factory=dict)
    _recent: _Recent | None = field(init=False, default=None)
    _registered: dict[_Places, Exposure] = field(init=False, default_factory=dict)

    def exposed(self, shared: SharedMemory, send: Buffer, recv: Buffer) -> Exposure:
        """Let the peers reach this rank's arrays."""
        recent = self._recent
        if recent is not None and recent.send() is send and recent.recv() is recv:
            shared.housekeep()
            return recent.exposure
        exposure = None
        if self._registered:
            # Other views of the same registered memory come again, and other arrays in turn.
            exposure = self._registered.get(_places(send, recv))
        if exposure is not None:
            shared.housekeep()
        else:
            arrays = [_NOTHING if send is None else send, _NOTHING if recv is None else recv]
            once = shared.expose(
                arrays, self.fingerprint, self.scratch, plain=self.plain, room=self.room
            )
            exposure = once.detached()
            if exposure is None:
                return once
            if len(self._registered) >= KEPT:
                self._registered.clear()
            self._registered[_places(send, recv)] = exposure
        references = [(lambda: None) if each is None else ref(each) for each in (send, recv)]
        self._recent = _Recent(references[0], references[1], exposure)
        return exposure

    def learned(self, table: Record, exposure: Exposure, results: ScratchBuffer) -> ReachedForm:
        """Return the result for a table of the members' published records, in order.

        Parameters
        ----------
        table : ndarray of int64, shape (ranks of the node, RECORD)
            Their records.
        exposure : Exposure
            Of this call.
        results : ScratchBuffer
            As in `Reached`.

        Raises
        ------
        RankMismatch
            On all members alike, if they do not make the same call.
        """
        published = table.tobytes()
        form = self._found.get(published)
        if form is None:
            self._check(table)
            # What later calls have as well may learn other records.
            exposure = exposure.detached() or exposure
            reach = exposure.take_records(dict(zip(self.members, table, strict=True)))
            program, peers = self.programs[reach](), Peers(exposure, self.dtype)
            turns = self._bound(program, reach, exposure, peers, results)
            form = ReachedForm(reach, program, peers, turns)
            if not exposure.lasting:
                return form
            if len(self._found) >= KEPT:
                self._found.clear()
            self._found[published] = form
        return form

    def _bound(
        self,
        program: Program | MemoryProgram,
        reach: Reach,
        exposure: Exposure,
        peers: Peers,
        results: ScratchBuffer,
    ) -> Turns | None:
        """Return a program bound to memory that is the same where all publish the same; else None."""
        registered = exposure.registered
        if reach is not Reach.DIRECT or registered is None or not exposure.lasting:
            return None
        # Scratch is the next call's as well, which may need more of it.
        if not isinstance(program, MemoryProgram) or program.scratch:
            return None
        if sum(len(each.local) for each in program.rounds) > BOUND_STEPS:
            return None
        own = [each.view(self.dtype) for each in registered]
        memory = Reached([*own, np.empty(0, self.dtype)], peers, results)
        return tuple(
            (tuple(memory.actions(each.local, self.fold)), each.barrier) for each in program.rounds
        )

    def _check(self, table: Record) -> None:
        """Raise unless all members make the same call."""
        theirs = table[:, 0]
        if (theirs == self.fingerprint).all():
            return
        odd = odd_ones(dict(zip(self.members, theirs.tolist(), strict=True)))
        everyone = len(odd) == len(self.members)
        fault = "all make different calls" if everyone else "made another call than the others"
        raise RankMismatch(
            f"{ranks_named(odd)} {fault}; "
            "give arrays of the same size, dtype and memory (of comm.empty, or not), and the same op, root and "
            "algorithm, on all ranks",
            ranks=odd,
        )


def _places(send: Buffer, recv: Buffer) -> _Places:
    sent = (0, 0) if send is None else (address(send), send.nbytes)
    received = (0, 0) if recv is None else sent if recv is send else (address(recv), recv.nbytes)
    return *sent, *received
