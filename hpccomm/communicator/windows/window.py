"""`Window`: the methods that users call on memory that other ranks reach. `make` makes one for `Communicator.window`."""

import struct
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from hpccomm.calls.algorithms import sharing
from hpccomm.calls.core import Core
from hpccomm.calls.policy import AUTO
from hpccomm.communicator.windows.access import Access, Array
from hpccomm.communicator.windows.calls import WindowCalls
from hpccomm.contracts.backend import OneSided
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Exposure, Pages, Reach, Steps
from hpccomm.errors import UsageError
from hpccomm.memory.views import as_bytes
from hpccomm.runtime.service import keep, let_go
from hpccomm.runtime.traffic import TURNS
from hpccomm.settings import check_int
from hpccomm.topology import check_rank

_NOTHING = np.empty(0, np.uint8)
_BARRIER = Signature("barrier", np.dtype(np.bool_), (0,))


class Window(WindowCalls):
    """Memory of every rank that the others read and write by themselves.

    Made by `Communicator.window`. `put`, `get`, `accumulate`, `fetch_and_op`, `compare_and_swap`
    and `signal` need no call on the other rank; `put` and `signal` block this one until its own
    arrays may be used again, the others until they are done. `fence` and `close` are collective.

    **What is seen when.** What a rank put is in the target's memory, for the target and for every
    `get`, once one of these has happened, in this order: the rank sends a `signal` to the target
    and the target returns from `wait_signal`; or every rank returns from `fence`. After `flush` it
    is there too, but a reader must still learn of it (by a signal, or by any other call of the
    communicator that comes after it). Writing memory that another rank reads or writes at the same
    time gives any mixture of bytes; only the atomic calls may meet. The own memory (``x`` itself)
    is read and written as any array, under the same rules.

    **Atomicity.** `accumulate`, `fetch_and_op` and `compare_and_swap` of any rank on one rank's memory
    happen one after the other, whatever their reductions: none is lost, and none sees a part of another.
    That does not hold between one of them and a `put` or `get`, or what the rank itself does with x; use
    `WindowOp.REPLACE` and `WindowOp.NO_OP` instead.

    **Progress.** On memory that is reached directly (`way` says so) the target does nothing, and may
    compute. By the backend's one-sided communication it may have to be in a call: MPI libraries move
    data on there only.

    Use ``with comm.window(x) as window``: leaving the block closes it. An exception leaves it open, as
    closing is collective; the communicator's `finalize` closes it then.

    Each rank writes its number to its right neighbor and signals it.

    >>> import hpccomm
    >>> import numpy as np
    >>> with hpccomm.new_comm("loopback") as comm:
    ...     mine = np.full(1, -1)
    ...     right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    ...     with comm.window(mine) as window:
    ...         window.put(np.array([comm.rank]), right)
    ...         window.signal(right)
    ...         window.wait_signal(left)
    ...         print(mine)
    [0]

    Attributes
    ----------
    sizes : tuple of int
        Elements of each rank's memory.
    dtype : dtype
        Of the elements, on all ranks.
    """

    def __init__(
        self,
        core: Core,
        array: Array,
        sizes: tuple[int, ...],
        access: Access,
        onesided: OneSided,
        exposure: Exposure | None,
    ) -> None:
        super().__init__(core, array, sizes, access)
        self._rank = core.backend.rank
        self._onesided = onesided
        self._exposure = exposure
        self._barrier = core.lanes.host.dispatch.decide(_BARRIER, AUTO)[1].start
        # Signals of this rank to itself, by index. As messages they would wait for the receive where
        # an MPI library delivers no message of a rank to itself before (MPICH on one rank).
        self._own_signals: Counter[int] = Counter()
        # Until it is closed a peer may reach its memory, even without references here.
        keep(self)

    def way(self, rank: int) -> str:
        """Return how the memory of `rank` is reached. Local.

        Parameters
        ----------
        rank : int
            Any.

        Returns
        -------
        str
            ``"memory"`` (read and written as it lies), ``"pages"`` (by the kernel), or
            ``"one-sided"`` (by the backend's one-sided communication).
        """
        return self._access.way(check_rank("rank", rank, len(self.sizes)))

    def put(self, x: Any, dst: int, offset: int = 0, *, timeout: float | None = None) -> None:
        """Write x to rank `dst`'s memory. Blocks until x may be changed.

        Parameters
        ----------
        x : array
            Of any shape, and the window's dtype.
        dst : int
            Whose memory; the own rank too.
        offset : int
            The first element written, in elements.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `dst`. Before anything is written.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("put"):
            data = self._checked(x, "x", written=False)
            peer, start = self._place("dst", dst, offset, data.size)
            steps = self._access.put(data, peer, start)
            self._issue("put", data.nbytes, steps, (x,), timeout, peer)

    def get(self, out: Any, src: int, offset: int = 0, *, timeout: float | None = None) -> Any:
        """Read rank `src`'s memory into `out`. Blocks until it is there.

        Parameters
        ----------
        out : array
            Of any shape, and the window's dtype: its size is the number of elements to read.
        src : int
            Whose memory; the own rank too.
        offset : int
            The first element read, in elements.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `src`. Before anything is read.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("get"):
            into = self._checked(out, "out", written=True)
            peer, start = self._place("src", src, offset, into.size)
            steps = self._access.get(into, peer, start)
            self._issue("get", into.nbytes, steps, (out,), timeout, peer)
        return out

    def flush(self, rank: int | None = None, *, timeout: float | None = None) -> None:
        """Wait until all that this rank put to `rank` is there. Blocks.

        `signal` and `fence` do so too.

        Parameters
        ----------
        rank : int or None
            Whose memory; None is all ranks'.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Raises
        ------
        CommunicationError
            If the call fails. If the deadline passes while the MPI library itself blocks, the job
            ends, with a report: nothing else can release it.
        """
        with self._call("flush"):
            peers = range(len(self.sizes))
            if rank is not None:
                peer = check_rank("rank", rank, len(self.sizes))
                peers = range(peer, peer + 1)
            self._issue("flush", 0, self._access.flush(*peers), (), timeout, *peers)

    def signal(self, dst: int, index: int = 0, *, timeout: float | None = None) -> None:
        """Tell rank `dst` that what this rank has put to it, or to others, is there.

        Blocks until it is, and does not wait for `dst`. Signals are counted: `wait_signal` takes one
        for each that was sent.

        Parameters
        ----------
        dst : int
            Who receives it; this rank itself is allowed.
        index : int
            Distinguishes signals.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Raises
        ------
        UsageError
            If an argument does not fit.
        CommunicationError
            If the call fails or its deadline passes; see `flush`.
        """
        with self._call("signal"):
            peer, tag = self._signalled("dst", dst, index)
            cell = self._core.calls.traffic.cell

            def steps() -> Steps:
                yield from self._access.flush(*range(len(self.sizes)))
                self._onesided.order()
                cell(peer, TURNS - 1 - tag)[0] += 1
                if peer == self._rank:
                    self._own_signals[tag] += 1
                    return
                yield from iter(self._onesided.signals.isend(_NOTHING, peer, tag), True)

            self._issue("signal", 0, steps(), (), timeout, peer)

    def wait_signal(self, src: int, index: int = 0, *, timeout: float | None = None) -> None:
        """Wait for a signal of rank `src`. Blocks; its earlier puts are visible then.

        Parameters
        ----------
        src : int
            Who signals; the own rank too.
        index : int
            The signal's.
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Raises
        ------
        UsageError
            If an argument does not fit.
        CollectiveTimeout
            If it did not come. The communicator has failed then.
        CommunicationError
            If the call fails otherwise.
        """
        with self._call("wait_signal"):
            peer, tag = self._signalled("src", src, index)
            channel = TURNS - 1 - tag

            def steps() -> Steps:
                self._core.calls.traffic.cell(peer, channel)[1] += 1
                if peer == self._rank:
                    while not self._own_signals[tag]:
                        yield False
                    self._own_signals[tag] -= 1
                else:
                    yield from iter(self._onesided.signals.irecv(_NOTHING, peer, tag), True)
                self._onesided.order()

            ends = (("src", peer, channel),)
            self._issue("wait_signal", 0, steps(), (), timeout, peer, ends=ends)

    def fence(self, *, timeout: float | None = None) -> None:
        """Wait until what any rank put before is there, for all. Collective; blocks.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None is the communicator's, ``math.inf`` none.

        Raises
        ------
        CommunicationError
            If the call fails or its deadline passes; see `flush`.
        """
        with self._call("fence"):
            self._issue("fence", 0, self._fenced(), (), timeout, ordered=True)

    def close(self) -> None:
        """Fence, and end the window; x is an ordinary array again. Collective; blocks; idempotent.

        If the communicator has failed this is local: memory that a peer may still reach is kept.

        Raises
        ------
        CommunicationError
            If the fence fails or its deadline passes.
        """
        if self._closed:
            return
        if self._core.calls.gate.error is None:
            with self._call("close"):
                self._issue("close", 0, self._fenced(), (), None, ordered=True)
                self._access.free()
                if self._exposure is not None:
                    self._exposure.release()
                let_go(self)
        self._closed = True
        self._counters.clear()
        self._core.windows.remove(self)

    @property
    def closed(self) -> bool:
        """Whether the window was closed."""
        return self._closed

    def _fenced(self) -> Steps:
        yield from self._access.flush(*range(len(self.sizes)))
        self._onesided.order()
        yield from self._barrier(None, None)
        self._onesided.order()

    def _signalled(self, name: str, rank: object, index: object) -> tuple[int, int]:
        peer = check_rank(name, rank, len(self.sizes))
        number, largest = check_int("index", index), self._onesided.signals.largest_tag
        if not 0 <= number <= largest:
            raise UsageError(f"index is {index!r}; give an integer from 0 to {largest}")
        return peer, number

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.close()

    def __repr__(self) -> str:
        ways = ", ".join(self._access.way(rank) for rank in range(len(self.sizes)))
        state = "closed" if self._closed else f"reached by {ways}"
        return (
            f"<hpccomm.Window: {self.dtype}, elements by rank {self.sizes}, "
            f"rank {self._rank}, {state}>"
        )


def make(core: Core, array: Array) -> Window:
    """Return the window over every rank's `array`; only the dtype is agreed. Collective.

    Raises
    ------
    UsageError
        If the backend has no one-sided communication.
    """
    backend, watched = core.backend, partial(core.calls.beside_watchdog, ordered=True)
    with watched("making a window"):
        onesided = backend.window()
    if onesided is None:
        raise UsageError(
            f"backend {backend.name!r} has no one-sided communication, which a window needs; "
            "use send and recv, or a communicator of backend 'mpi' or 'loopback'"
        )
    exposure = _exposed(core, array, onesided)
    mine = struct.pack("<q", array.size)
    messages = core.control.all_gather(
        mine if exposure is None else mine + exposure.record.tobytes()
    )
    sizes = tuple(struct.unpack_from("<q", each)[0] for each in messages)
    direct = backend.size == 1
    reached: dict[int, Array | Pages] = {backend.rank: array}
    if exposure is not None:
        neighbors = backend.topology.neighbors(backend.rank)
        records = {rank: np.frombuffer(messages[rank][8:], np.int64) for rank in neighbors}
        direct = exposure.take_records(records) is Reach.DIRECT
        if direct:
            for rank in neighbors:
                if rank != backend.rank and sizes[rank]:
                    reached[rank] = exposure.peer_buffer(rank, 0, array.dtype)
    # The same on all ranks, since the ranks of a node have the same records.
    attached = backend.topology.num_nodes > 1 or not direct
    with watched("making a window"):
        onesided.attach(as_bytes(array) if attached else None)
    access = Access(reached, onesided, array.dtype, core.calls.beside_watchdog)
    window = Window(core, array, sizes, access, onesided, exposure)
    core.control.all_gather(b"")  # all have it
    return window


def _exposed(core: Core, array: Array, onesided: OneSided) -> Exposure | None:
    """Return the node's record of `array`; None if ranks share no memory."""
    way, shared = sharing(core.backend, core.settings), onesided.signals.shared
    if way is None or shared is None:
        return None
    return shared.expose([array], 0, 0, plain=way.plain, room=way.room)
