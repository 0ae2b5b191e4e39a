"""NCCL between the devices of one communicator's ranks: joins the parts of this package.

`hpccomm.calls.on_device` calls it.
"""

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from hpccomm.backends.nccl import collectives, libnccl, variables
from hpccomm.backends.nccl.collectives import INT8, Ability
from hpccomm.backends.nccl.communicators import (
    ABORT_SECONDS,
    NATIVE,
    PINNED,
    REGISTERED,
    Communicators,
    CommunicatorThread,
    SetupRanks,
)
from hpccomm.backends.nccl.facts import Facts
from hpccomm.backends.nccl.libnccl import NcclGroup, RawCommunicator, shrunk
from hpccomm.contracts.device import DeviceImplementation, Piece, Preparation
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.memory.cuda import memory, streams
from hpccomm.memory.cuda.library import cupy

NEEDED = frozenset(("ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"))
"""Functions that registered memory needs (NCCL 2.19 and later)."""


@dataclass(slots=True)
class _Allocation:
    pointer: int
    nbytes: int
    device: int
    number: int = 0  # of its registration, the same on all ranks; 0 where it is not registered
    handle: tuple[Any, int] | None = None  # the communicator that it is registered with, and NCCL's

    def register(self, communicator: Any) -> bool:
        """Return whether NCCL has it registered. It gives no handle where that is switched off."""
        handle = ctypes.c_void_p()
        status = libnccl.functions().ncclCommRegister(
            communicator.comm, self.pointer, self.nbytes, ctypes.byref(handle)
        )
        if status == 0 and handle.value:
            self.handle = communicator, handle.value
        return self.handle is not None

    def deregister(self) -> None:
        if self.handle is not None and self.handle[0].comm:  # else it has ended with it
            libnccl.functions().ncclCommDeregister(self.handle[0].comm, self.handle[1])
        self.number, self.handle = 0, None


_orphans: deque[_Allocation] = deque()
"""Released after their communicator was closed; the next `sweep` of any registry frees them."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class NcclMemory:
    """Device memory that can be registered.

    Attributes
    ----------
    pointer : int
        Its address.
    nbytes : int
        Its size.
    """

    pointer: int
    nbytes: int


class Registry:
    """The memory of one communicator that can be registered.

    Parameters
    ----------
    device : int
        CUDA device.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._blocks: dict[int, _Allocation] = {}
        self._released: deque[_Allocation] = deque()
        self._closed = False
        self._registered = 0  # blocks so far

    def empty(self, nbytes: int) -> NcclMemory:
        """Return new memory. Local.

        It may wait for work on the device, if it frees released memory.

        Raises
        ------
        UsageError
            During the capture of a graph.
        MemoryError
            If the device's memory is full.
        """
        size = max(nbytes, 1)
        pointer = ctypes.c_void_p()
        with streams.on_device(self._device):
            if not streams.undisturbed(cupy().cuda.get_current_stream().ptr):
                raise UsageError(
                    "comm.empty with device= would end the capture of a CUDA graph that is under way; "
                    "make arrays before the capture"
                )
            self.sweep()
            status = libnccl.functions().ncclMemAlloc(ctypes.byref(pointer), size)
            if status or not pointer.value:
                raise MemoryError(
                    f"device {self._device} has no {nbytes} bytes for comm.empty "
                    f"(NCCL: {libnccl.last_error() or status}); free arrays, or the memory that CuPy's "
                    "pool keeps: cupy.get_default_memory_pool().free_all_blocks()"
                )
            block = _Allocation(pointer.value, size, self._device)
        self._blocks[block.pointer] = block
        memory = NcclMemory(block.pointer, nbytes)
        # At exit the system frees the process's memory, and NCCL may have ended before.
        weakref.finalize(memory, self._release, block).atexit = False
        return memory

    def _release(self, block: _Allocation) -> None:
        self._blocks.pop(block.pointer, None)
        (_orphans if self._closed else self._released).append(block)

    def _block(self, pointer: int, nbytes: int) -> _Allocation | None:
        if self._closed:
            return None
        # A copy, because the garbage collector may release others at the same time.
        for block in tuple(self._blocks.values()):
            if block.pointer <= pointer and pointer + nbytes <= block.pointer + block.nbytes:
                return block
        return None

    def place(self, pointer: int, nbytes: int) -> tuple[int, int, int] | None:
        """Return where an address range lies: the number of the registration, the offset and the block's size.

        None if it does not lie within this memory. Local.
        """
        block = self._block(pointer, nbytes)
        return None if block is None else (block.number, pointer - block.pointer, block.nbytes)

    def register(
        self, pointers: Iterable[int], communicator: Any, everywhere: Callable[[bool], bool]
    ) -> bool:
        """Register the blocks of addresses, if all ranks do; return whether they have.

        `everywhere` returns that, given whether this rank has. Collective; blocks.
        """
        blocks = [self._block(pointer, 1) for pointer in pointers]
        found = [each for each in blocks if each is not None]
        done = len(found) == len(blocks) and all(
            each.handle or each.register(communicator) for each in found
        )
        done = everywhere(done)
        for block in found:
            if done and not block.number:
                self._registered += 1
                block.number = self._registered
            elif not block.number:
                block.deregister()
        return done

    def sweep(self) -> None:
        """Free released memory after all work on the device is done. Blocks."""
        left = []
        for queue in (self._released, _orphans):
            while queue:
                left.append(queue.popleft())
        for device in {block.device for block in left}:
            with streams.on_device(device):
                cupy().cuda.runtime.deviceSynchronize()
                for block in left:
                    if block.device == device:
                        block.deregister()
                        libnccl.functions().ncclMemFree(block.pointer)

    def forget(self) -> None:
        """Drop all registrations, because the communicators are about to end. Memory in use lives on."""
        self._closed = True
        _orphans.extend(self._released)
        for block in (*self._blocks.values(), *self._released):
            block.handle = None
        self._released.clear()


class NcclBackend:
    """NCCL between the devices of one communicator's ranks. Made by `open_nccl`.

    Parameters
    ----------
    ranks : SetupRanks
        Its ranks; their devices are claimed for NCCL.
    facts : tuple of Facts
        Of each rank.
    native : CommunicatorThread
        Has NCCL's communicator of these ranks.

    Attributes
    ----------
    name : str
        ``"nccl"``.
    rank, size : int
        Of the communicator.
    device : int
        CUDA device of this rank.
    ability : Ability
        What NCCL can do between these ranks.
    shrinkable : bool
        Whether NCCL can shrink its communicator.
    """

    name = "nccl"

    def __init__(
        self, ranks: SetupRanks, facts: tuple[Facts, ...], native: CommunicatorThread
    ) -> None:
        self.rank = ranks.rank
        self.size = ranks.size
        self.device = ranks.device
        self._algo = facts[ranks.rank].variables.get(variables.ALGO)
        self.ability = Ability(
            ranks.rank,
            ranks.size,
            facts[0].nccl,
            min(each.capability for each in facts),
            frozenset.intersection(*(frozenset(each.functions) for each in facts)),
        )
        self._ranks = ranks
        self._communicators = Communicators(ranks, native)
        # A communicator shrunk from the program's own might share its memory, by the program's
        # settings.
        own = not self._communicators.native.borrowed
        self.shrinkable = own and "ncclCommShrink" in self.ability.functions
        self._registry = Registry(ranks.device)
        self._group = NcclGroup()
        self._claimed = True

    # Calls.

    def algorithms(self, call: Signature) -> tuple[str, ...]:
        """Return the names of NCCL's algorithms that give this call its meaning. Local.

        NCCL's all_to_all works out of place only, even if `call` is in place on this rank: the caller
        must pass two arrays.
        """
        return collectives.algorithms(call, self.ability)

    def native(self, call: Signature, algorithm: str) -> DeviceImplementation:
        """Return NCCL's own call by one of `algorithms`. Local."""
        if self.size == 1:
            return DeviceImplementation(collectives.copying(call, self.device))
        bind = partial(collectives.bind, call, self.ability)
        communicators, owned = self._communicators, self._communicators.made
        if algorithm == NATIVE:
            registered = cache(lambda: bind(owned[REGISTERED]))
            return DeviceImplementation(bind(communicators.native), registered=registered)
        # NCCL_ALGO limits the algorithms of a communicator, except of one with a pinned algorithm.
        if collectives.selectable(call, self.ability) and not self.reason():
            selecting = bind(communicators.native, PINNED[algorithm])
            return DeviceImplementation(selecting, how="each call names it to NCCL")
        needs = Preparation(lambda: algorithm in owned, lambda: communicators.make(algorithm))
        # Its communicator need not exist before the first launch.
        bound = cache(lambda: bind(owned[algorithm]))
        return DeviceImplementation(
            lambda send, recv, stream: bound()(send, recv, stream),
            needs=needs,
            how="on a communicator of its own",
        )

    def exchange(self, receives: Sequence[Piece], sends: Sequence[Piece], stream: int) -> None:
        """Put messages on the stream that run at the same time. Each has elements. Never blocks the host."""
        library, communicator = libnccl.functions(), self._communicators.native.comm
        with self._group:
            for function, pieces in ((library.ncclRecv, receives), (library.ncclSend, sends)):
                for peer, data in pieces:
                    given = data.pointer, data.nbytes, INT8, peer, communicator, stream
                    libnccl.check(function(*given))

    def group(self) -> NcclGroup:
        """Issue the calls and exchanges of the block together at its end, also if it raises."""
        return self._group

    def reason(self) -> str:
        """Return the user's ``NCCL_ALGO``, which influences NCCL's own choice; else ''."""
        return f"{variables.ALGO}={self._algo} is set" if self._algo else ""

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

        def everywhere(done: bool) -> bool:
            return all(self._ranks.control.all_gather(b"+" if done else b""))

        communicator = self._communicators.made[REGISTERED]
        return self._registry.register(pointers, communicator, everywhere)

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
            memory.release(self.device, memory.NCCL)

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
