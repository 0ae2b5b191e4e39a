"""NCCL between the devices of one communicator's ranks: joins the parts of this package.

`hpccomm.dispatch.nccl` calls it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hpccomm.backends.nccl import collectives, libnccl, variables
from hpccomm.backends.nccl.agreed_setup import SetupRanks
from hpccomm.backends.nccl.communicators import (
    ABORT_SECONDS,
    NATIVE,
    PINNED,
    REGISTERED,
    Communicators,
)
from hpccomm.backends.nccl.facts import Facts
from hpccomm.backends.nccl.libnccl import NcclGroup
from hpccomm.backends.nccl.memory import NEEDED, NcclMemory, Registry
from hpccomm.backends.nccl.own_binding import RawCommunicator, SelectingCalls, shrunk
from hpccomm.backends.nccl.reductions import INT8, Ability
from hpccomm.contracts.device import DeviceNative, Piece, Preparation
from hpccomm.contracts.signature import Signature
from hpccomm.errors import HpccommError
from hpccomm.memory.cuda import users


class NcclBackend:
    """NCCL between the devices of one communicator's ranks. Made by `open_nccl`.

    Parameters
    ----------
    ranks : SetupRanks
        Its ranks; their devices are claimed for NCCL.
    facts : tuple of Facts
        Of each rank.
    native : NcclCommunicator or RawCommunicator
        NCCL's communicator of these ranks.

    Attributes
    ----------
    name : str
        ``"nccl"``.
    rank, size : int
        Of the communicator.
    device : int
        CUDA device of this rank.
    facts : tuple of Facts
        Each rank's device and software.
    version : int
        NCCL's, as its code.
    shrinkable : bool
        Whether NCCL can shrink its communicator.
    """

    name = "nccl"

    def __init__(self, ranks: SetupRanks, facts: tuple[Facts, ...], native: Any) -> None:
        self.rank = ranks.rank
        self.size = ranks.size
        self.device = ranks.device
        self.facts = facts
        self.version = facts[0].nccl
        self.ability = Ability(
            ranks.rank,
            ranks.size,
            self.version,
            min(each.capability for each in facts),
            frozenset.intersection(*(frozenset(each.functions) for each in facts)),
        )
        # A communicator shrunk from the program's own might share its memory, by the program's
        # settings.
        own = not getattr(native, "borrowed", False)
        self.shrinkable = own and "ncclCommShrink" in self.ability.functions
        self._ranks = ranks
        self._communicators = Communicators(ranks, native)
        self._registry = Registry(ranks.device)
        self._group = NcclGroup()
        self._send, self._recv = native.send, native.recv
        self._claimed = True

    # Calls.

    def algorithms(self, call: Signature) -> tuple[str, ...]:
        """Return the names of NCCL's algorithms that give this call its meaning. Local.

        NCCL's all_to_all works out of place only, even if `call` is in place on this rank: the caller
        must pass two arrays.
        """
        return collectives.algorithms(call, self.ability)

    def native(self, call: Signature, algorithm: str) -> DeviceNative:
        """Return NCCL's own call by one of `algorithms`. Local."""
        if self.size == 1:
            return DeviceNative(collectives.copying(call, self.device))
        bind = collectives.bind(call, self.ability)
        communicators, owned = self._communicators, self._communicators.made
        if algorithm == NATIVE:
            registered = cache(lambda: bind(owned[REGISTERED]))
            return DeviceNative(bind(communicators.native), registered=registered)
        # NCCL_ALGO limits the algorithms of a communicator, except of one with a pinned algorithm.
        if collectives.selectable(call, self.ability) and not self.reason():
            selecting = bind(SelectingCalls(communicators.native, PINNED[algorithm]))
            return DeviceNative(selecting, how="each call names it to NCCL")
        needs = Preparation(lambda: algorithm in owned, lambda: communicators.make(algorithm))
        # Its communicator need not exist before the first launch.
        bound = cache(lambda: bind(owned[algorithm]))
        return DeviceNative(
            lambda send, recv, stream: bound()(send, recv, stream),
            needs,
            how="on a communicator of its own",
        )

    def exchange(self, receives: Sequence[Piece], sends: Sequence[Piece], stream: int) -> None:
        """Put messages on the stream that run at the same time. Never blocks the host."""
        send, recv = self._send, self._recv
        with self._group:
            for peer, data in receives:
                if data.elements:
                    recv(data.pointer, data.nbytes, INT8, peer, stream)
            for peer, data in sends:
                if data.elements:
                    send(data.pointer, data.nbytes, INT8, peer, stream)

    def group(self) -> NcclGroup:
        """Issue the calls and exchanges of the block together at its end, also if it raises."""
        return self._group

    def reason(self) -> str:
        """Return the user's ``NCCL_ALGO``, which influences NCCL's own choice; else ''."""
        algo = self.facts[self.rank].variables.get(variables.ALGO)
        return f"{variables.ALGO}={algo} is set" if algo else ""

    # Memory.

    def empty(self, nbytes: int) -> NcclMemory | None:
        """Return device memory that can be registered, or None if NCCL lacks it. Local.

        Raises
        ------
        MemoryError
            If the device's memory is full.
        """
        return self._registry.empty(nbytes) if self.ability.functions >= NEEDED else None

    def place(self, pointer: int, nbytes: int) -> tuple[int, int, int] | None:
        """Return where in such memory an array lies; None if it does not. Local.

        The number of the registration (0 without one), the offset and the bytes of the whole. Ranks
        may register arrays together if these are equal.
        """
        return self._registry.place(pointer, nbytes)

    def register(self, pointers: Sequence[int]) -> bool:
        """Register the memory at these addresses on all ranks, or on none. Collective; blocks.

        Returns
        -------
        bool
            Whether it is registered. The same on all ranks.

        Raises
        ------
        CommunicationError, CollectiveTimeout, CommunicatorAborted
            If the communicator for that cannot be made.
        """
        self._communicators.make(REGISTERED)
        done = self._registry.register(pointers, self._communicators.made[REGISTERED])
        everywhere = all(map(bool, map(int, self._ranks.control.all_gather(b"%d" % done))))
        self._registry.settle(pointers, everywhere=everywhere)
        return everywhere

    # Failure and end.

    def check(self) -> None:
        """Raise NCCL's error if it has noticed a failure. Local, from any thread."""
        try:
            self._communicators.check()
        except Exception as error:  # raised again, as it is or as hpccomm's
            translated = libnccl.translate(error)
            if translated is None:
                raise
            raise translated from error

    def translate(self, error: Exception) -> HpccommError | None:
        """Return an error of NCCL or CUDA as one of hpccomm's; None for other errors."""
        return libnccl.translate(error)

    def abort(
        self, seconds: float = ABORT_SECONDS, inside: Callable[[], bool] = lambda: False
    ) -> None:
        """Abort all of its communicators. Local, from any thread; idempotent.

        Waits at most the given seconds for NCCL, which continues in a thread after that. `inside`
        returns whether a thread is in a call.
        """
        self._registry.forget()
        self._communicators.abort(seconds, inside)
        self._give_up_device()

    def release(self, seconds: float, *, leaving: bool = False) -> bool:
        """Free its communicators after all calls under way have ended, within a limit of seconds.

        NCCL does not free a communicator while a captured graph with one of its calls exists. It then
        continues in a thread. Local; idempotent.

        Parameters
        ----------
        seconds : float
            How long to wait for NCCL.
        leaving : bool
            Whether the process ends, and its memory with it. The program's own work on the device is
            not waited for then. Otherwise `close` follows.

        Returns
        -------
        bool
            Whether they are free.
        """
        if self._claimed and not leaving:
            self._registry.sweep()
        self._registry.forget()
        return self._communicators.release(seconds)

    def close(self) -> None:
        """Free what it owns after all calls under way have ended. Local; blocks; idempotent.

        Raises
        ------
        CollectiveTimeout
            If NCCL does not finish before the deadline.
        """
        if self._claimed:
            self._registry.sweep()
        self._registry.forget()
        self._communicators.destroy()
        self._give_up_device()

    def _give_up_device(self) -> None:
        if self._claimed:
            self._claimed = False
            users.release(self.device, users.NCCL)

    @property
    def sound(self) -> bool:
        """Whether it is open: not closed, not aborted. Local."""
        return self._claimed

    def shrunk(self, exclude: Sequence[int]) -> RawCommunicator:
        """Return NCCL's communicator of the ranks that are not in `exclude`.

        Only these ranks call it, with no call under way. It blocks in NCCL until all of them have
        called, and raises NCCL's errors.
        """
        return shrunk(self._communicators.native, exclude)
