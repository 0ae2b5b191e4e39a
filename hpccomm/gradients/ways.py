"""How a bucket is reduced: by one call, or by a compressor, among all ranks or on two levels."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm.gradients.compression.contract import Channel
from hpccomm.gradients.compression.exchange import Ranks
from hpccomm.gradients.flat import FlatBucket
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.runtime.work import Work

FLAG = np.dtype(np.uint8)


class Plain:
    """One planned all-reduce of gradients and flags. Making one is collective.

    Parameters
    ----------
    flat : FlatBucket
        What is reduced.
    comm : Communicator
        Over the ranks.
    op : ReduceOp
        SUM or AVG.
    deterministic, timeout
        As in `Communicator.all_reduce`.
    """

    def __init__(
        self,
        flat: FlatBucket,
        comm: "Communicator",
        op: ReduceOp,
        *,
        deterministic: bool,
        timeout: float | None,
    ) -> None:
        self._flat = flat
        # A device works by itself. On the host, a thread does: it makes the call that blocks, which needs no
        # interpreter while it is under way.
        self.deferred = flat.bucket.kind.on_device
        self._call: Callable[[], Any] = comm.plan(
            "all_reduce",
            flat.memory,
            op,
            deterministic=deterministic,
            timeout=timeout,
            async_op=self.deferred,
        )
        self._work: Work | None = None
        self.wire_nbytes = 0

    def start(self, flags: Sequence[bool]) -> None:
        """Reduce gradients and flags."""
        self._flat.tell(flags)
        found = self._call()
        self._work = found if self.deferred else None
        self.wire_nbytes += self._flat.memory.nbytes

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._flat.told()


class Compressed:
    """A compressor's channel among all ranks.

    Parameters
    ----------
    flat : FlatBucket
        What is reduced.
    channel : Channel
        For its bucket.
    ranks : Ranks
        That exchange what is compressed.
    """

    deferred = False

    def __init__(self, flat: FlatBucket, channel: Channel, ranks: Ranks) -> None:
        self._flat, self._channel, self._ranks = flat, channel, ranks
        self._told: list[bool] = []
        self.wire_nbytes = 0

    def start(self, flags: Sequence[bool]) -> None:
        """Sum gradients up, and flags."""
        ranks, before = self._ranks, self._ranks.wire_nbytes
        self._channel.reduce(self._flat.gradients, ranks)
        self._told = ranks.any(flags)
        self.wire_nbytes += ranks.wire_nbytes - before

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        return self._told


class TwoLevel:
    """Full precision within a node, and another way among one rank of each. Making one is collective in each node.

    Parameters
    ----------
    flat : FlatBucket
        What is reduced.
    node : Communicator
        Over the ranks of this node.
    across : Way or None
        Among the ranks 0 of the nodes; None on the others.
    timeout : float or None
        Deadline of each call in seconds.
    """

    deferred = False

    def __init__(
        self,
        flat: FlatBucket,
        node: "Communicator",
        across: Compressed | None,
        timeout: float | None,
    ) -> None:
        self._across, self._node, self._timeout = across, node, timeout
        self._flat = flat
        self._gather: Callable[[], Any] = node.plan("reduce", flat.gradients, timeout=timeout)
        self._spread: Callable[[], Any] = node.plan("broadcast", flat.gradients, timeout=timeout)
        self._told: list[bool] = []
        self._within = 0

    @property
    def wire_nbytes(self) -> int:
        """Bytes that this rank gave to collectives so far, within its node and across."""
        return self._within + (self._across.wire_nbytes if self._across else 0)

    def start(self, flags: Sequence[bool]) -> None:
        """Sum gradients up, and flags."""
        node, told = self._node, np.array(flags, FLAG)
        if node.size > 1:
            self._gather()
            node.reduce(told, op=ReduceOp.MAX, timeout=self._timeout)
        if self._across is not None:
            self._across.start(list(map(bool, told)))
            told[:] = self._across.finish()
        if node.size > 1:
            self._spread()
            node.broadcast(told, timeout=self._timeout)
            self._within += self._flat.gradients.nbytes
        self._told = list(map(bool, told))

    def finish(self) -> list[bool]:
        """Return which flags any rank has set."""
        return self._told
