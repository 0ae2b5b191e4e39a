"""The dispatch of device arrays: the library's collectives, hpccomm's algorithms over its messages, or the host.

A call stays on the device if the library has it, or if one of hpccomm's algorithms carries it out over the library's
messages: to move data, or because the user named it. All other calls go through the host (`hpccomm.calls.staged`).

The libraries are NCCL (`NcclDispatch`), which runs on streams without the host, and a CUDA-aware MPI
(`hpccomm.calls.cuda_aware`). `hpccomm.communicator.creation` chooses between them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpccomm.backends.nccl import NcclBackend
from hpccomm.calls import policy
from hpccomm.calls.policy import NATIVE
from hpccomm.calls.program import Program, Slice, Step, Transit, compiled
from hpccomm.calls.proofs import proven
from hpccomm.calls.staged import StagedDispatch
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.device import (
    Begin,
    Begun,
    DeviceImplementation,
    Piece,
    Pieces,
    Span,
    message_name,
)
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Reach
from hpccomm.dtypes import DType
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.arrays import DeviceFolder, folds
from hpccomm.memory.cuda.memory import Scratch, copy
from hpccomm.memory.cuda.streams import used
from hpccomm.reductions import ReduceOp, name_of
from hpccomm.schedules.algorithms import Asked
from hpccomm.schedules.cost.network import typical
from hpccomm.schedules.schedule import Tuning, segment_elements, world
from hpccomm.settings import Settings
from hpccomm.topology import Topology

DEFAULT_SEGMENT = 32 << 20
"""Bytes of a segment. Segments follow each other on one stream, without a pipeline: each is a launch of some ten
microseconds, in which NVLink moves several MiB. They bound the scratch."""

MOST_SEGMENTS = 1 << 10
"""Most segments of an array: their number is the length of a program."""

LINEAR = "linear"
"""The algorithm that has all its messages at the same time, which are one group of NCCL's."""

Addresses = tuple[int, int, int]
"""The addresses of this rank's buffers, by number."""


class OnDevice(ABC):
    """The dispatch of device arrays over one library.

    Parameters
    ----------
    rank : int
        This rank.
    topology : Topology
        The ranks of each node.
    device : int
        CUDA device of this rank.
    settings : Settings
        The settings of the communicator.
    staged : StagedDispatch
        The dispatch of calls that leave the device.
    library : NcclBackend or None
        The library, if it has collectives; None if it has only messages.

    Attributes
    ----------
    name : str
        The name in ``comm.backends["cuda"]``.
    over : str
        The transport of hpccomm's algorithms, in words.
    scratch : Scratch
        The source of intermediate memory.
    """

    name: str
    over: str

    def __init__(
        self,
        rank: int,
        topology: Topology,
        device: int,
        settings: Settings,
        staged: StagedDispatch,
        library: NcclBackend | None = None,
    ) -> None:
        links = typical("typical_gpus")
        per_node = max(Counter(topology.node_of).values())
        self.scratch = Scratch()
        self._network = links.placed(topology.size, per_node, links)
        self._rank = rank
        self._topology = topology
        self._device = device
        self._setting = settings.algorithm
        self._segment = settings.segment or DEFAULT_SEGMENT
        self._staged = staged
        self._library = library

    def decide(self, call: Signature, algorithm: Asked) -> tuple[Choice, DeviceImplementation]:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """
        own, scheduled = self._names(call)
        names = tuple(dict.fromkeys((*own, *scheduled)))
        if algorithm is not None:  # the communicator's setting sends nothing through the host
            names = tuple(dict.fromkeys((*names, *self._staged.applicable(call))))
        name, other = policy.asked_for(algorithm, self._setting, names, call, self.name)
        auto = name == policy.AUTO
        if own and (auto or name in own):
            why = "NCCL has its own" if auto else "as asked, NCCL's own"
            return self._natively(call, self._choice(call, own[0] if auto else name, why))
        if scheduled and auto and (self._library is None or call.op is None):
            name = LINEAR
            if self._library is None or LINEAR not in scheduled:
                name = policy.fastest(call, scheduled, self._network).algorithm
            return self._by_schedule(call, self._choice(call, name, "hpccomm's own"))
        if name in scheduled or (scheduled and other is not None):
            why = "as asked, hpccomm's own"
            return self._by_schedule(call, self._choice(call, name, why, other))
        return self._staged.decide(call, algorithm, self._lacking(call) if auto else "as asked")

    def _names(self, call: Signature) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the library's own algorithms for a call, and of hpccomm's that stay on the device."""
        if call.deterministic:
            return (), ()
        own = () if self._library is None else self._library.algorithms(_apart(call))
        stays = call.op is None or (folds(call.op, call.dtype) and not call.exclusive)
        return own, policy.applicable(call) if stays else ()

    def _lacking(self, call: Signature) -> str:
        """Return why a call leaves the device."""
        if call.deterministic:
            return "contributions are folded in one order by the host"
        what = call.dtype if call.op is None else f"{name_of(call.op)} on {call.dtype}"
        return f"{self.name} has no {call.name} of {what} of its own"

    def _choice(self, call: Signature, algorithm: str, reason: str, other: object = None) -> Choice:
        return Choice(call.name, "cuda", self.name, algorithm, None, False, reason, other=other)

    def _natively(self, call: Signature, choice: Choice) -> tuple[Choice, DeviceImplementation]:
        """Carry a call out by the library's own collective."""
        assert self._library is not None
        found = self._library.native(_apart(call), choice.algorithm)
        # NCCL_ALGO holds for NCCL's own choice alone.
        setting = self._library.reason() if choice.algorithm == policy.NATIVE else found.how
        if setting:
            choice = replace(choice, reason=f"{choice.reason}; {setting}")
        found = replace(found, groups=True)
        if not call.elements:
            return choice, replace(found, launch=_nothing)
        if call.in_place and not _apart(call).in_place:
            found = replace(found, begin=self._copying(call), registered=None)
        return choice, found

    def _copying(self, call: Signature) -> Begin:
        """Return the function that copies the sent array, which the received one would overwrite."""
        nbytes, device = sum(call.counts) * call.dtype.itemsize, self._device

        def begin(send: int, recv: int, stream: int) -> Begun:
            with used(stream, device):
                memory = self.scratch.empty(nbytes)
                copy(send, memory.data.ptr, nbytes, stream)
            return Begun(memory.data.ptr, recv, memory)

        return begin

    def _by_schedule(self, call: Signature, choice: Choice) -> tuple[Choice, DeviceImplementation]:
        """Carry a call out by one of hpccomm's algorithms, over messages."""
        size = self._topology.size
        build = policy.algorithm_of(call, choice).by_messages(False)
        # On a stream, channels would follow one another, so one is enough.
        tuning = Tuning(segment_elements(call, self._segment, MOST_SEGMENTS), 1, self._topology)
        code = ""
        if choice.other is not None:
            code = proven(choice.algorithm, {Reach.NONE: build}, call, tuning, size)
        schedule = build(world(size, np.array([self._rank])), call, tuning)
        lengths = call.lengths_of(self._rank)
        fold = None
        if isinstance(call.op, ReduceOp):
            averaged = size if call.op is ReduceOp.AVG else 0
            fold = DeviceFolder(call.op, call.dtype, self._device, averaged)
        choice = replace(
            choice,
            segment=schedule.segment_nbytes(call.dtype.itemsize),
            schedule=code,
            reason=f"{choice.reason}; {self.over}",
        )
        # If ranks have different counts, others may have elements, and all must count the same calls.
        if not call.elements and not DESCRIPTIONS[call.collective].individual:
            return choice, DeviceImplementation(_nothing)
        program = compiled(schedule, lengths)
        return choice, self.running(DeviceProgram(program, lengths, call.dtype, fold, self.scratch))

    @abstractmethod
    def running(self, program: "DeviceProgram") -> DeviceImplementation:
        """Return the implementation of a program over the library's messages."""

    @abstractmethod
    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the choice and the implementation of a user's message; its addresses are in the pieces."""

    def close(self) -> None:
        """Free its resources, after the end of all calls. Local; idempotent."""
        self._staged.close()
        self.scratch.free()


def _apart(call: Signature) -> Signature:
    """Return a call as the library is asked for it.

    If each rank decides itself whether it is in place, all must choose alike: the ranks in place copy first.
    """
    return call._replace(in_place=False) if call.description.individual else call


def _nothing(_send: int, _recv: int, _stream: int) -> None:
    pass


class DeviceProgram:
    """One rank's program, for arrays in device memory: messages, copies and folds.

    A stream runs them one after the other. Channels follow one another: they are independent, and may run in any
    order.

    Parameters
    ----------
    program : Program
        The actions of this rank. They use no memory of peers.
    lengths : tuple of int
        Elements of this rank's arrays, the sent one and the received one.
    dtype : dtype
        Type of the elements.
    fold : DeviceFolder or None
        The reduction, if there is one.
    scratch : Scratch
        The source of its scratch.

    Attributes
    ----------
    turns : tuple of LocalRound
        The rounds, one channel after another.
    """

    def __init__(
        self,
        program: Program,
        lengths: tuple[int, int],
        dtype: DType,
        fold: DeviceFolder | None,
        scratch: Scratch,
    ) -> None:
        self.turns = tuple(turn for channel in program.channels for turn in channel)
        self._sizes = (*lengths, program.scratch)
        self._dtype = dtype
        self._fold = fold
        self._scratch = scratch

    def buffers(self, send: int, recv: int) -> tuple[Addresses, Any]:
        """Return the addresses of this rank's buffers for work on CuPy's current stream, and the owner of the scratch.

        The owner may be dropped once that work is on the stream, and messages that read the scratch are done.

        Parameters
        ----------
        send, recv : int
            Addresses of the arrays; any number without an array.

        Raises
        ------
        UsageError
            If a graph is captured from the stream, and its memory is not allocated yet.
        """
        if not self._sizes[-1]:
            return (send, recv, 0), None
        scratch = self._scratch.empty(self._sizes[-1] * self._dtype.itemsize)
        return (send, recv, scratch.data.ptr), scratch

    def pieces(self, messages: Sequence[Transit], at: Addresses) -> list[Piece]:
        """Return messages of a turn that have elements, by the addresses that `buffers` gave."""
        pieces = [Piece(peer, self._span(where, at)) for peer, where in messages]
        return [each for each in pieces if each.data.elements]

    def carry_out(self, local: Sequence[Step], at: Addresses, stream: int) -> None:
        """Put a turn's local steps on a stream, which is CuPy's current one. Never blocks."""
        for sources, target, final in local:
            given = [self._span(source, at).pointer for source in sources]
            out = self._span(target, at)
            if final is None:
                copy(given[0], out.pointer, out.nbytes, stream)
            else:
                assert self._fold is not None
                self._fold(given, out.pointer, out.elements, final)

    def _span(self, part: Slice, at: Addresses) -> Span:
        buffer, where = part
        whole = Span(at[buffer], self._sizes[buffer], self._dtype)
        return whole if where is None else whole.part(where)


class NcclDispatch(OnDevice):
    """The dispatch of device arrays over NCCL.

    Parameters
    ----------
    devices : NcclBackend
        Moves the data.
    topology : Topology
        The ranks of each node.
    settings : Settings
        The settings of the communicator.
    staged : StagedDispatch
        The dispatch of calls that NCCL lacks.
    """

    name, over = "nccl", "over its messages"

    def __init__(
        self, devices: NcclBackend, topology: Topology, settings: Settings, staged: StagedDispatch
    ) -> None:
        super().__init__(devices.rank, topology, devices.device, settings, staged, devices)
        self._devices = devices

    def running(self, program: DeviceProgram) -> DeviceImplementation:
        """Return the implementation that puts a program on a stream: the host never waits, and graphs can be captured."""
        device, exchange = self._device, self._devices.exchange

        def launch(send: int, recv: int, stream: int) -> None:
            with used(stream, device):
                at, alive = program.buffers(send, recv)
                for receives, sends, local in program.turns:
                    coming, going = program.pieces(receives, at), program.pieces(sends, at)
                    if coming or going:
                        exchange(coming, going, stream)
                    program.carry_out(local, at, stream)
                del alive  # from here on, the pool may give it to later work on this stream

        return DeviceImplementation(launch)

    def message(
        self, receives: Pieces, sends: Pieces, tag: int
    ) -> tuple[Choice, DeviceImplementation]:
        """Return the choice and the implementation of a user's message; its addresses are in the pieces.

        Raises
        ------
        UsageError
            If the tag is not 0.
        """
        if tag:
            raise UsageError(
                f"tag is {tag}, and NCCL's messages have no tags; leave it at 0, or send host arrays"
            )
        reason, name = "NCCL has messages of its own", message_name(receives, sends)
        choice = Choice(name, "cuda", self.name, NATIVE, None, False, reason)
        # Both ends find the same size, so none waits for an empty message.
        coming = [each for each in receives if each.data.elements]
        going = [each for each in sends if each.data.elements]
        exchange, begin = self._devices.exchange, None
        if any(out.data.overlaps(come.data) for out in going for come in coming):
            sources, going = going, []

            def begin(_send: int, _recv: int, stream: int) -> Begun:
                """Copy the sent arrays that received messages would overwrite."""
                going[:], alive = [], []
                with used(stream, self._device):
                    for peer, data in sources:
                        memory = self.scratch.empty(data.nbytes)
                        alive.append(memory)
                        copy(data.pointer, memory.data.ptr, data.nbytes, stream)
                        going.append(Piece(peer, data._replace(pointer=memory.data.ptr)))
                return Begun(0, 0, alive)

        def launch(_send: int, _recv: int, stream: int) -> None:
            if coming or going:
                exchange(coming, going, stream)

        return choice, DeviceImplementation(launch, begin=begin, groups=True)

    def close(self) -> None:
        """Free NCCL's communicators, and the memory of captured graphs. Local; blocks; idempotent.

        After all that is under way has ended; graphs are not replayed any more.
        """
        self._devices.close()
        super().close()
