"""Reduces one bucket: by one call, or by a compressor, among all ranks or on two levels.

`reducer` has one of these for each bucket.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpccomm.dtypes import BFLOAT16, FLOAT32
from hpccomm.gradients.compression.contract import Channel, Exchange
from hpccomm.gradients.flat import FlatMemory
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import BucketKind
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.reductions import ReduceOp


def operation(
    group: RankGroup, kind: BucketKind, settings: ReductionSettings
) -> tuple[ReduceOp, int]:
    """Return the operation that reduces gradients of a kind, and what its result has to be divided by.

    NCCL's averages of floats multiply each contribution first, which its algorithm over an NVSwitch, NVLS,
    cannot do (NCCL 2.30, include/device.h: ncclNvlsSupported). So a device sums them up. A sum of float16 or float8
    may overflow.
    """
    if settings.op != "average":
        return ReduceOp.SUM, 1
    summed = kind.on_device and kind.dtype in (FLOAT32, np.dtype(np.float64), BFLOAT16)
    if settings.compressor is not None or (summed and not settings.deterministic):
        return ReduceOp.SUM, group.size
    return ReduceOp.AVG, 1


class PlannedReducer:
    """One planned all-reduce of a bucket's gradients, with flags behind them. Making one is collective.

    The flags take no other message. They are elements of the bucket's dtype.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    flat : FlatMemory
        What is reduced.
    settings : ReductionSettings
        Equal on all ranks.
    flags : int
        Number of flags.

    Attributes
    ----------
    deferred : bool
        Whether `start` returns before the reduction is done, so that `finish` must wait for it.
    divisor : int
        What the sum has to be divided by.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    memory_bytes : int
        What a compressor keeps.
    """

    memory_bytes = 0

    def __init__(
        self, group: RankGroup, flat: FlatMemory, settings: ReductionSettings, flags: int
    ) -> None:
        kind = flat.bucket.kind
        op, self.divisor = operation(group, kind, settings)
        self._memory = flat.memory
        self._flags: Any = flat.memory[flat.bucket.length :][:flags]
        # An average of narrow floats over many ranks must not become 0.
        self._mark = float(min(group.size, 256))
        # A device works by itself. On the host, a thread makes the call that blocks, which needs no interpreter
        # while it is under way.
        self.deferred = kind.on_device
        how = {"deterministic": settings.deterministic, "async_op": self.deferred}
        self._call = group.plan("all_reduce", flat.memory, op, **how)
        self._work: Any = None
        self.wire_nbytes = 0

    def set_flags(self, flags: Sequence[bool]) -> None:
        """Write this rank's flags behind the gradients."""
        marks = [self._mark if flag else 0.0 for flag in flags]
        if self.deferred:
            self._flags.set(np.array(marks, self._flags.dtype))  # one copy
        else:
            self._flags[:] = marks
        self.wire_nbytes += self._memory.nbytes

    def flags(self) -> list[bool]:
        """Return which flags any rank has set, once reduced."""
        return list((self._flags != 0).tolist())

    def start(self, flags: Sequence[bool]) -> None:
        """Reduce gradients and flags. Collective; blocks, if it is not deferred."""
        self.set_flags(flags)
        self._work = self._call()

    def finish(self) -> list[bool]:
        """Return which flags any rank has set. Blocks, if it is deferred."""
        if self.deferred:
            self._work.wait()
        self._work = None
        return self.flags()


class CompressedReducer:
    """A compressor's channel among ranks; on two levels, between sums and copies in full precision on each node.

    Parameters
    ----------
    group : RankGroup
        The ranks.
    flat : FlatMemory
        What is reduced.
    settings : ReductionSettings
        Equal on all ranks.
    channel : Channel
        Of the compressor, for the bucket.
    ranks : Exchange or None
        That exchange what is compressed; None where another rank of the node does.
    node : RankGroup or None
        The ranks of this node, for a reduction on two levels.

    Attributes
    ----------
    deferred, divisor, wire_nbytes
        As in `PlannedReducer`.
    """

    deferred = False

    def __init__(
        self,
        group: RankGroup,
        flat: FlatMemory,
        settings: ReductionSettings,
        channel: Channel,
        ranks: Exchange | None,
        node: RankGroup | None,
    ) -> None:
        _, self.divisor = operation(group, flat.bucket.kind, settings)
        self._channel, self._gradients, self._ranks = channel, flat.elements, ranks
        self._node = None if node is None or node.size == 1 else node
        self._flags: list[bool] = []
        self.wire_nbytes = 0

    @property
    def memory_bytes(self) -> int:
        """The state of the channel, in bytes."""
        return 0 if self._ranks is None else self._channel.memory_bytes

    def start(self, flags: Sequence[bool]) -> None:
        """Sum gradients up, and flags."""
        node, marks = self._node, np.array(flags, np.uint8)
        if node is not None:
            node.comm.reduce(self._gradients, timeout=node.timeout)
            node.comm.reduce(marks, op=ReduceOp.MAX, timeout=node.timeout)
        if self._ranks is not None:
            before = self._ranks.wire_nbytes
            self._channel.reduce(self._gradients, self._ranks)
            self._ranks.max(marks)
            self.wire_nbytes += self._ranks.wire_nbytes - before
        if node is not None:
            node.broadcast([self._gradients, marks], 0)
            self.wire_nbytes += self._gradients.nbytes
        self._flags = list(map(bool, marks))

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        return self._flags
