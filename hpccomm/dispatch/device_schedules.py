"""hpccomm's own algorithms on device arrays, over any device dispatch's messages.

`nccl` and `aware` run schedules by it.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import Begin, Begun
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Reach
from hpccomm.dispatch import policy
from hpccomm.dispatch.execution.enqueued import DeviceProgram
from hpccomm.dispatch.proving import proven
from hpccomm.dtypes import FLOAT32, DType
from hpccomm.memory.cuda.folding import DeviceElements, DeviceFolder
from hpccomm.memory.cuda.memory import Scratch, copy
from hpccomm.reductions import PremulSum, ReduceOp, identity
from hpccomm.schedules.cost.network_files import typical
from hpccomm.schedules.schedule import Tuning, segment_elements, world
from hpccomm.topology import Topology

DEFAULT_SEGMENT = 32 << 20
"""Bytes of a segment. Segments follow each other on one stream, without a pipeline: each is a launch of some ten microseconds, in which NVLink moves several MiB. They bound the scratch."""

MOST_SEGMENTS = 1 << 10
"""The most segments of an array: their number is the length of a program."""


class ReadySchedule(NamedTuple):
    """A schedule made ready for a call.

    Attributes
    ----------
    program : DeviceProgram
        The part between beginning and end.
    begin : callable
        Makes the sent data of the user's array, on CuPy's current stream.
    segment : int or None
        Bytes moved at a time, if the algorithm cuts the array.
    schedule : str
        As in `Choice`.
    """

    program: DeviceProgram
    begin: Begin
    segment: int | None
    schedule: str


class DeviceSchedules:
    """Makes programs of hpccomm's algorithms for the device arrays of one communicator.

    Parameters
    ----------
    rank : int
        Of this communicator.
    topology : Topology
        Which ranks share a node.
    device : int
        CUDA device of this rank.
    segment : int or None
        Bytes to move at a time, if that is asked for.

    Attributes
    ----------
    scratch : Scratch
        The source of intermediate memory.
    network : Network
        The links between the devices, on which algorithms are compared.
    """

    def __init__(self, rank: int, topology: Topology, device: int, segment: int | None) -> None:
        self.scratch = Scratch()
        links = typical("typical_gpus")
        per_node = max(Counter(topology.node_of).values())
        self.network = links.placed(topology.size, per_node, links)
        self._rank = rank
        self._topology = topology
        self._device = device
        self._segment = segment or DEFAULT_SEGMENT

    def planned(self, call: Signature, choice: Choice) -> ReadySchedule:
        """Return the ready schedule of calls like `call`. Local.

        Parameters
        ----------
        call : Signature
            The call. If contributions are folded in rank order, float32 and float64 have the same bits as on the
            host.
        choice : Choice
            The algorithm, which applies.

        Raises
        ------
        UsageError
            If the reduction is a user's function that does not take CuPy arrays.
        """
        inner, size, deterministic = call.summed, self._topology.size, bool(call.deterministic)
        # Scans pass partial results on: in float32 they are rounded once, and not at each hop.
        wide = deterministic and call.description.prefix and call.accumulator != call.dtype
        if wide:
            inner = inner._replace(dtype=call.accumulator, in_place=False)
        build = policy.algorithm_of(call, choice).by_messages(deterministic)
        # Channels would follow one another on a stream: they have nothing to gain.
        tuning = Tuning(segment_elements(inner, self._segment, MOST_SEGMENTS), 1, self._topology)
        code = ""
        if choice.other is not None:
            code = proven(choice.algorithm, {Reach.NONE: build}, inner, tuning, size)
        schedule = build(world(size, np.array([self._rank])), inner, tuning)
        fold = None
        if inner.op is not None:
            averaged = size if inner.op is ReduceOp.AVG else 0
            elements = self._elements(inner.dtype)
            fold = DeviceFolder(inner.op, elements, averaged, ordered=deterministic)
        program = DeviceProgram(schedule, inner.dtype, fold, self.scratch)
        segment = schedule.segment_nbytes(inner.dtype.itemsize)
        return ReadySchedule(program, self.beginning(call, wide), segment, code)

    def saved(self, call: Signature) -> Begin:
        """Return the function that copies the sent data to scratch."""
        nbytes = sum(call.counts) * call.dtype.itemsize

        def begin(send: int, recv: int, stream: int) -> Begun:
            scratch = self.scratch.empty(nbytes)
            copy(send, scratch.data.ptr, nbytes, stream)
            return Begun(scratch.data.ptr, recv, scratch)

        return begin

    def _elements(self, dtype: DType) -> DeviceElements:
        return DeviceElements(dtype, self._device, self.scratch)

    def beginning(self, call: Signature, wide: bool) -> Begin:
        """Return the function that multiplies and widens contributions, into scratch."""
        op, dtype, scratch = call.op, call.dtype, self.scratch
        elements = self._elements(dtype)
        sent, received = call.lengths_of(self._rank)
        neutral = None
        if call.exclusive and self._rank == 0:
            assert op is not None
            neutral = identity(op, dtype)
        if neutral is None and not wide and not isinstance(op, PremulSum):
            return lambda send, recv, _stream: Begun(send, recv)

        def begin(send: int, recv: int, _stream: int) -> Begun:
            alive: list[Any] = []
            if isinstance(op, PremulSum):
                # A copy: the user's array stays unchanged.
                alive.append(scratch.empty(sent * dtype.itemsize))
                product = alive[-1].data.ptr
                elements.premultiply(op, send, product, sent)
                send = product
            result = recv
            if wide:
                alive += [scratch.empty(count, FLOAT32) for count in (sent, received)]
                given, result = (each.data.ptr for each in alive[-2:])
                elements.to_float32(send, given, sent)
                send = given

            def end() -> None:
                if neutral is not None:
                    elements.fill(recv, received, neutral)
                elif wide:
                    elements.from_float32(result, recv, received)

            return Begun(send, result, alive, end)

        return begin
