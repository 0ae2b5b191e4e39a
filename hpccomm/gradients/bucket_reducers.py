"""How a bucket is reduced: by one call, or by a compressor, among all ranks or on two levels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpccomm.dtypes import BFLOAT16, FLOAT32
from hpccomm.gradients.compression.contract import Channel
from hpccomm.gradients.compression.exchange import Ranks
from hpccomm.gradients.flat import FlatMemory
from hpccomm.gradients.parameters import Kind
from hpccomm.gradients.settings import ReductionSettings
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class BucketReducer(Protocol):
    """How one bucket is reduced.

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

    deferred: bool
    divisor: int
    wire_nbytes: int

    @property
    def memory_bytes(self) -> int:
        """What a compressor keeps."""

    def start(self, flags: Sequence[bool]) -> None:
        """Reduce the gradients, and the flags with them. Collective; blocks, if it is not deferred."""

    def finish(self) -> list[bool]:
        """Return which flags any rank has set. Blocks, if it is deferred."""


class PlannedReducer:
    """One planned all-reduce of gradients, with flags behind them. Making one is collective.

    The flags take no other message. They are elements of the bucket's dtype.

    Parameters
    ----------
    flat : FlatMemory
        What is reduced.
    comm : Communicator
        Over the ranks.
    op : ReduceOp
        SUM or AVG.
    flags : int
        Number of flags.
    divisor : int
        As in `BucketReducer`.
    deterministic, timeout
        As in `Communicator.all_reduce`.
    """

    memory_bytes = 0

    def __init__(
        self,
        flat: FlatMemory,
        comm: "Communicator",
        op: ReduceOp,
        *,
        flags: int,
        divisor: int,
        deterministic: bool,
        timeout: float | None,
    ) -> None:
        self._memory, self.divisor = flat.memory, divisor
        self._flags: Any = flat.memory[flat.bucket.length :][:flags]
        # An average of narrow floats over many ranks must not become 0.
        self._mark = float(min(comm.size, 256))
        # A device works by itself. On the host, a thread makes the call that blocks, which needs no interpreter
        # while it is under way.
        self.deferred = flat.bucket.kind.on_device
        self._call: Callable[[], Any] = comm.plan(
            "all_reduce",
            flat.memory,
            op,
            deterministic=deterministic,
            timeout=timeout,
            async_op=self.deferred,
        )
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
        """Reduce gradients and flags."""
        self.set_flags(flags)
        self._work = self._call()

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        if self.deferred:
            self._work.wait()
        self._work = None
        return self.flags()


@dataclass(frozen=True, slots=True)
class Levels:
    """The communicators of a reduction on two levels.

    Attributes
    ----------
    node : Communicator
        Over the ranks of this node.
    leaders : Communicator or None
        Over the ranks 0 of the nodes; None on the others.
    """

    node: "Communicator"
    leaders: "Communicator | None"


class CompressedReducer:
    """A compressor's channel among ranks; on two levels, between sums and copies in full precision on each node.

    Making one is collective on each node.

    Parameters
    ----------
    flat : FlatMemory
        What is reduced.
    channel : Channel
        For its bucket.
    ranks : Ranks or None
        That exchange what is compressed; None where another rank of the node does.
    node : Communicator or None
        Over the ranks of this node, for a reduction on two levels.
    divisor : int
        As in `BucketReducer`.
    timeout : float or None
        Deadline of each call in seconds.
    """

    deferred = False

    def __init__(
        self,
        flat: FlatMemory,
        channel: Channel,
        ranks: Ranks | None,
        node: "Communicator | None",
        *,
        divisor: int,
        timeout: float | None,
    ) -> None:
        self._gradients, self._channel, self._ranks = flat.elements, channel, ranks
        self._node = None if node is None or node.size == 1 else node
        self._timeout, self.divisor = timeout, divisor
        self._flags: list[bool] = []
        self.wire_nbytes = 0
        if self._node is not None:
            self._gather = self._node.plan("reduce", flat.elements, timeout=timeout)
            self._spread = self._node.plan("broadcast", flat.elements, timeout=timeout)

    @property
    def memory_bytes(self) -> int:
        """What the channel keeps."""
        return 0 if self._ranks is None else self._channel.memory_bytes

    def start(self, flags: Sequence[bool]) -> None:
        """Sum gradients up, and flags."""
        node, marks = self._node, np.array(flags, np.uint8)
        if node is not None:
            self._gather()
            node.reduce(marks, op=ReduceOp.MAX, timeout=self._timeout)
        if self._ranks is not None:
            before = self._ranks.wire_nbytes
            self._channel.reduce(self._gradients, self._ranks)
            self._ranks.max(marks)
            self.wire_nbytes += self._ranks.wire_nbytes - before
        if node is not None:
            self._spread()
            node.broadcast(marks, timeout=self._timeout)
            self.wire_nbytes += self._gradients.nbytes
        self._flags = list(map(bool, marks))

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        return self._flags


def operations(
    comm: "Communicator", settings: ReductionSettings, kind: Kind
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
        return ReduceOp.SUM, comm.size
    return ReduceOp.AVG, 1


def planned(
    comm: "Communicator",
    flats: Sequence[FlatMemory],
    settings: ReductionSettings,
    flags: int,
    timeout: float | None,
) -> list[PlannedReducer]:
    """Return reducers that send gradients as they are. Collective; blocks."""
    every = []
    for flat in flats:
        op, divisor = operations(comm, settings, flat.bucket.kind)
        exact = settings.deterministic
        every.append(
            PlannedReducer(
                flat, comm, op, flags=flags, divisor=divisor, deterministic=exact, timeout=timeout
            )
        )
    return every


def compressed(
    comm: "Communicator",
    flats: Sequence[FlatMemory],
    settings: ReductionSettings,
    levels: Levels | None,
    timeout: float | None,
) -> tuple[list[CompressedReducer], Ranks | None]:
    """Return reducers over a compressor, and the ranks among which this rank exchanges. Collective; blocks."""
    assert settings.compressor is not None
    # All ranks make channels, so that all raise if a dtype does not fit.
    channels = [settings.compressor.channel(flat.bucket) for flat in flats]
    across = comm if levels is None else levels.leaders
    ranks = None if across is None else Ranks(across, timeout)
    node = None if levels is None else levels.node
    divisor = comm.size if settings.op == "average" else 1
    return [
        CompressedReducer(flat, channel, ranks, node, divisor=divisor, timeout=timeout)
        for flat, channel in zip(flats, channels, strict=True)
    ], ranks
