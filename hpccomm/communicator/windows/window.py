"""`Window`: memory that other ranks reach, with its methods. `make` makes one, for `Communicator` and `turns`.

Atomic calls on one rank's memory happen one after the other: each holds the lock of the target. MPI's lock-free
operations are not used, since they are not atomic with a reduction that a rank folds itself.
"""

import struct
from collections import Counter
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from hpccomm.calls.algorithms import sharing
from hpccomm.calls.arguments import NUMBERS, SCALARS, plain
from hpccomm.calls.core import Core
from hpccomm.calls.policy import AUTO
from hpccomm.communicator.windows.access import Access, Array, bounds, element, reduction
from hpccomm.contracts.backend import OneSided
from hpccomm.contracts.signature import End, Signature, with_peers
from hpccomm.contracts.transport import Exposure, Pages, Reach, Steps
from hpccomm.errors import BufferMismatch, HpccommError, UsageError
from hpccomm.memory.views import (
    address,
    as_bytes,
    check_dtype,
    check_layout,
    empty_like_kind,
    flat,
    host_view,
    overlap,
)
from hpccomm.reductions import Op, ReduceOp, WindowOp
from hpccomm.runtime.callpath import PreparedCall, in_turn
from hpccomm.runtime.progress import Operation
from hpccomm.runtime.service import keep, let_go
from hpccomm.runtime.traffic import TURNS
from hpccomm.settings import check_int
from hpccomm.spelling import Hinting
from hpccomm.topology import check_rank

_NOTHING = np.empty(0, np.uint8)
_BARRIER = Signature("barrier", np.dtype(np.bool_), (0,))


class Window(Hinting):
    """Memory of every rank that the other ranks read and write without a call of its owner.

    Made by `Communicator.window`. `put`, `get`, `accumulate`, `fetch_and_op`, `compare_and_swap`
    and `signal` need no call on the target. `put` blocks until its array may be used again, `signal` until
    earlier puts are complete, and the others until they are done. `fence` and `close` are collective.

    **Visibility.** Data that a rank has put are in the target's memory, for the target and for every
    `get`, when one of two things has happened: the rank has then sent a `signal` to the target,
    and the target has returned from `wait_signal`; or every rank has returned from `fence`. After
    `flush` the data are there too, but a reader must still learn of it, by a signal or by any later
    call of the communicator. If ranks write memory that another rank reads or writes at the same time,
    any mixture of bytes may result; only atomic calls may meet. A rank reads and writes its own memory,
    ``x``, as any array, under the same rules.

    **Atomicity.** `accumulate`, `fetch_and_op` and `compare_and_swap` of any ranks on one rank's memory
    happen one after the other, whatever their reductions: none is lost, and none sees a part of another.
    That does not hold between one of them and a `put` or `get`, or the rank's own use of x; for these, use
    `WindowOp.REPLACE` and `WindowOp.NO_OP`.

    **Progress.** If memory is reached directly, which `way` tells, the target does nothing, and may
    compute. With the backend's one-sided communication, the target may have to be in a call, since some
    MPI libraries move data only there.

    Use ``with comm.window(x) as window``: leaving the block closes the window. An exception leaves it open, since
    closing is collective; then the communicator's `finalize` closes it.

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
        Number of elements of each rank's memory.
    dtype : dtype
        Dtype of the elements, the same on all ranks.
    """

    _mpi4py = "Win."

    def __init__(
        self,
        core: Core,
        array: Array,
        sizes: tuple[int, ...],
        access: Access,
        onesided: OneSided,
        exposure: Exposure | None,
    ) -> None:
        self.sizes = sizes
        self.dtype = array.dtype
        self._core = core
        self._array = array
        self._access = access
        self._closed = False
        self._counters: dict[tuple[int, int, int], Any] = {}  # by rank, element and reduction
        self._least, self._most = bounds(self.dtype)
        self._rank = core.backend.rank
        self._onesided = onesided
        self._exposure = exposure
        self._barrier = core.lanes.host.dispatch.decide(_BARRIER, AUTO)[1].start
        # Signals of this rank to itself, by index. If they were messages, `signal` would wait for the
        # receive with an MPI library that delivers a rank's message to itself only then (MPICH on one rank).
        self._own_signals: Counter[int] = Counter()
        # Until it is closed, a peer may reach its memory, even if nothing here refers to it.
        keep(self)

    def way(self, rank: int) -> str:
        """Return how the memory of `rank` is reached. Local.

        Parameters
        ----------
        rank : int
            Any rank.

        Returns
        -------
        str
            ``"memory"`` (mapped here, read and written directly), ``"pages"`` (copied by the kernel), or
            ``"one-sided"`` (the backend's one-sided communication).
        """
        return self._access.way(check_rank("rank", rank, len(self.sizes)))

    def put(self, x: Any, dst: int, offset: int = 0, *, timeout: float | None = None) -> None:
        """Write x to rank `dst`'s memory. Blocks until x may be changed.

        Parameters
        ----------
        x : array
            An array of any shape and the window's dtype.
        dst : int
            The rank whose memory is written; it may be this rank.
        offset : int
            The first element written, in elements.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `dst`. Raised before anything is written.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("put"):
            data = self._checked(x, "x", written=False)
            peer, start = self._place("dst", dst, offset, data.size)
            steps = self._access.put(data, peer, start)
            self._issue("put", data.nbytes, steps, (x,), timeout, peer)

    def get(self, out: Any, src: int, offset: int = 0, *, timeout: float | None = None) -> Any:
        """Read rank `src`'s memory into `out`. Blocks until the data have arrived.

        Parameters
        ----------
        out : array
            An array of any shape and the window's dtype. Its size is the number of elements to read.
        src : int
            The rank whose memory is read; it may be this rank.
        offset : int
            The first element read, in elements.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Returns
        -------
        array
            `out`.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `src`. Raised before anything is read.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("get"):
            into = self._checked(out, "out", written=True)
            peer, start = self._place("src", src, offset, into.size)
            steps = self._access.get(into, peer, start)
            self._issue("get", into.nbytes, steps, (out,), timeout, peer)
        return out

    def accumulate(
        self,
        x: Any,
        dst: int,
        offset: int = 0,
        op: Op | WindowOp = ReduceOp.SUM,
        *,
        timeout: float | None = None,
    ) -> None:
        """Fold x into rank `dst`'s memory, element by element. Blocks until it is done there.

        Parameters
        ----------
        x : array
            An array of any shape and the window's dtype.
        dst : int
            The rank whose memory is folded into; it may be this rank.
        offset : int
            The first element folded into, in elements.
        op : ReduceOp, premul_sum(factor), callable, or ``WindowOp.REPLACE``
            The reduction, as in collectives. AVG is refused, since the number of accumulating ranks
            is unknown. Narrow floats are rounded each time. `WindowOp.REPLACE` writes x, and takes
            every dtype.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `dst`, `UnsupportedDtype` if `op` means nothing on the dtype. Raised before anything is written.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("accumulate"):
            data = self._checked(x, "x", written=False)
            op = reduction(op, self.dtype)
            if op is WindowOp.NO_OP:
                raise UsageError(
                    "op is WindowOp.NO_OP, by which accumulate does nothing; use fetch_and_op, which "
                    "returns what is there"
                )
            peer, start = self._place("dst", dst, offset, data.size)
            steps = self._access.fold(data, peer, start, op)
            self._issue("accumulate", data.nbytes, steps, (x,), timeout, peer)

    def fetch_and_op(
        self,
        x: Any,
        dst: int,
        offset: int = 0,
        op: Op | WindowOp = ReduceOp.SUM,
        *,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Fold x into rank `dst`'s memory, and return the previous values. Blocks until it is done.

        No other atomic call comes between the reading and the folding: see *Atomicity* of `Window`. An array
        of several elements is folded as a whole, so that no other atomic call sees a part of it.

        Parameters
        ----------
        x : array or number
            An array of any shape and the window's dtype; or a number that this dtype holds, which is one
            element.
        dst : int
            The rank whose memory is folded into; it may be this rank.
        offset : int
            The first element folded into, in elements.
        op : ReduceOp, premul_sum(factor), callable, or WindowOp
            As in `accumulate`. `WindowOp.REPLACE` writes x, and `WindowOp.NO_OP` only reads; both take
            every dtype.
        out : array, optional
            The array for the previous values, of x's size and dtype. It may be x.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Returns
        -------
        array or NumPy scalar
            `out`, or a new array of the shape of x; a scalar of the window's dtype if x is a number.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if the elements do not lie in the memory of
            `dst`, `UnsupportedDtype` if `op` means nothing on the dtype. Raised before anything is written.
        CommunicationError
            If the call fails or its deadline passes.
        """
        counted = out is None and x.__class__ is dst.__class__ is offset.__class__ is int
        if counted:
            counter = self._counters.get((dst, offset, id(op)))  # to hash a reduction takes longer
            if counter is not None and self._least <= x <= self._most:
                return _count(self._core, counter, x, timeout)
        with self._call("fetch_and_op"):
            data = self._elements(x, "x")
            given, op = op, reduction(op, self.dtype)
            peer, start = self._place("dst", dst, offset, data.size)
            old, result = self._old(x, data, out)
            steps = self._access.fold(data, peer, start, op, old)
            self._issue("fetch_and_op", data.nbytes, steps, (x, out), timeout, peer)
            counting = self._access.counting(peer, start, op) if counted and given is op else None
            if counting is not None:
                label, calls = with_peers("fetch_and_op", data.nbytes, (peer,)), self._core.calls
                prepared = PreparedCall(calls, label, counting, ordered=False)
                self._counters[dst, offset, id(op)] = prepared, [0]
        return result[()] if out is None and isinstance(x, SCALARS) else result

    def compare_and_swap(
        self,
        x: Any,
        compare: Any,
        dst: int,
        offset: int = 0,
        *,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Write x to an element of rank `dst`'s memory if the element equals `compare`; return its previous value.

        No other atomic call comes between the comparison and the writing: see *Atomicity* of `Window`. The
        call blocks until it is done. x was written if and only if the result equals `compare`. Elements are
        compared by their bits: a NaN equals the same NaN, and 0.0 does not equal -0.0.

        Parameters
        ----------
        x : array or number
            The new value: one element of the window's dtype, or a number that this dtype holds.
        compare : array or number
            The expected previous value: one element or a number, like x.
        dst : int
            The rank whose memory is written; it may be this rank.
        offset : int
            Number of the element, from 0.
        out : array, optional
            The array for the previous value: one element of the same dtype. It may be x.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Returns
        -------
        array or NumPy scalar
            `out`, or a new array of the shape of x; a scalar of the window's dtype if x is a number.

        Raises
        ------
        UsageError
            If an argument does not fit; `BufferMismatch` if x or `compare` is not one element, or if the
            element does not lie in the memory of `dst`. Raised before anything is written.
        CommunicationError
            If the call fails or its deadline passes.
        """
        with self._call("compare_and_swap"):
            data, expected = self._elements(x, "x"), self._elements(compare, "compare")
            for name, array in (("x", data), ("compare", expected)):
                if array.size != 1:
                    raise BufferMismatch(
                        f"{name} has {array.size} elements, and compare_and_swap takes one; "
                        "call it for each element"
                    )
            peer, start = self._place("dst", dst, offset, 1)
            old, result = self._old(x, data, out)
            steps = self._access.compare_and_swap(data, expected, old, peer, start)
            keep = (x, compare, out)
            self._issue("compare_and_swap", data.nbytes, steps, keep, timeout, peer)
        return result[()] if out is None and isinstance(x, SCALARS) else result

    def flush(self, rank: int | None = None, *, timeout: float | None = None) -> None:
        """Wait until all data that this rank put to `rank` are in its memory. Blocks.

        `signal` and `fence` do so too.

        Parameters
        ----------
        rank : int or None
            The target of the puts; None is all ranks.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        CommunicationError
            If the call fails. If the deadline passes while the MPI library itself blocks, the job
            ends with a report, since nothing can end the library's wait.
        """
        with self._call("flush"):
            peers = range(len(self.sizes))
            if rank is not None:
                peer = check_rank("rank", rank, len(self.sizes))
                peers = range(peer, peer + 1)
            self._issue("flush", 0, self._access.flush(*peers), (), timeout, *peers)

    def signal(self, dst: int, index: int = 0, *, timeout: float | None = None) -> None:
        """Tell rank `dst` that all puts of this rank so far, to any rank, are complete.

        Blocks until they are complete, and does not wait for `dst`. Signals are counted: each `wait_signal`
        takes one.

        Parameters
        ----------
        dst : int
            The receiver; it may be this rank.
        index : int
            A number that distinguishes signals.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

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
        """Wait for a signal of rank `src`. Blocks. Afterwards the puts that `src` made before the signal are visible.

        Parameters
        ----------
        src : int
            The sender; it may be this rank.
        index : int
            The signal's index.
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        UsageError
            If an argument does not fit.
        CollectiveTimeout
            If the signal did not come. Then the communicator has failed.
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
        """Wait until the earlier puts of all ranks are complete and visible to all ranks. Collective; blocks.

        Parameters
        ----------
        timeout : float, optional
            Deadline in seconds; None is the communicator's, ``math.inf`` sets none.

        Raises
        ------
        CommunicationError
            If the call fails or its deadline passes; see `flush`.
        """
        with self._call("fence"):
            self._issue("fence", 0, self._fenced(), (), timeout, ordered=True)

    def close(self) -> None:
        """Fence, and end the window. Afterwards x is an ordinary array again. Collective; blocks; idempotent.

        If the communicator has failed, closing is local, and memory that a peer may still reach is kept.

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

    # What calls have in common.

    def _call(self, name: str) -> AbstractContextManager[None]:
        if self._closed:
            raise UsageError(f"{name}: the window is closed; make another one")
        return self._core.outside_batch(name)

    def _issue(
        self,
        name: str,
        nbytes: int,
        steps: Steps,
        keep: tuple[object, ...],
        timeout: float | None,
        *peers: int,
        ordered: bool = False,
        ends: tuple[End, ...] = (),
    ) -> None:
        """Run a call and wait for it. It may wait for `peers`, or for all ranks if it is `ordered`."""
        label = with_peers(name, nbytes, peers, ends)
        operation = Operation(label, lambda: steps, keep, ordered)
        self._core.calls.run_operation(operation, self._core.limit(timeout))

    def _checked(self, x: Any, name: str, *, written: bool) -> Array:
        array = host_view(x, name)
        check_dtype(name, array.dtype)
        check_layout(array, name, written=written)
        if array.dtype != self.dtype:
            raise BufferMismatch(
                f"{name} has dtype {array.dtype} and the window {self.dtype}; "
                f"give an array of dtype {self.dtype}"
            )
        return flat(array)

    def _place(self, name: str, rank: object, offset: object, count: int) -> tuple[int, int]:
        """Return rank and first element, after a check that `count` elements from there on lie in the rank's memory."""
        peer = check_rank(name, rank, len(self.sizes))
        start, size = check_int("offset", offset), self.sizes[peer]
        if start < 0 or start + count > size:
            raise BufferMismatch(
                f"offset is {offset!r} and the array has {count} elements; the window of rank {peer} "
                f"has {size}, so give at most {size} elements and an offset from 0 to "
                f"{max(size - count, 0)}"
            )
        return peer, start

    def _elements(self, x: Any, name: str) -> Array:
        """Return the elements of an array; or an array of one element for a number."""
        x = plain(x)
        if x.__class__ in NUMBERS:
            return element(x, name, self.dtype)
        return self._checked(x, name, written=False)

    def _old(self, x: Any, data: Array, out: Any) -> tuple[Array, Any]:
        """Return the memory for the previous values, and the array that the call returns, over the same memory."""
        if out is None:
            shape = () if isinstance(x, SCALARS) else host_view(x, "x").shape
            result = empty_like_kind(x, shape, self.dtype)
            return flat(host_view(result, "out")), result
        old = self._checked(out, "out", written=True)
        if old.size != data.size:
            raise BufferMismatch(
                f"out has {old.size} elements and x has {data.size}; give as many in out"
            )
        if overlap(data, old) and address(data) != address(old):
            raise UsageError("x and out overlap; give out=x, or arrays that share no memory")
        return old, out


@in_turn
def _count(
    core: Core, counter: tuple[PreparedCall, list[Any]], x: int, timeout: float | None
) -> Any:
    """Carry out `fetch_and_op` of an integer on an element and by a reduction that an earlier call has checked."""
    if core.sink.diverted:
        core.sink.refuse_batch("fetch_and_op", "; call it before or after")
    prepared, old = counter
    prepared.issue((x, old), None, core.calls.timeout if timeout is None else core.limit(timeout))
    return old[0]


def make(core: Core, x: Any) -> Window:
    """Return the window of all ranks' arrays; see `Communicator.window`. Collective; blocks."""
    array, mine, error = np.empty(0, np.uint8), dict[str, object](), None
    try:
        seen = host_view(x, "x")
        check_dtype("x", seen.dtype)
        check_layout(seen, "x", written=True)
        array = flat(seen)
        mine = {"dtype": str(array.dtype)}
    except HpccommError as refused:
        error = refused
    with core.outside_batch("window"):
        core.agree("window", mine, error)
        made = _made(core, array)
        core.windows.append(made)
    return made


def _made(core: Core, array: Array) -> Window:
    """Return the window over every rank's `array`. The ranks have compared their dtypes. Collective.

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
    core.control.all_gather(b"")  # then all ranks have it
    return window


def _exposed(core: Core, array: Array, onesided: OneSided) -> Exposure | None:
    """Return the exposure of `array` to the ranks of this node; None if ranks share no memory."""
    way, shared = sharing(core.backend, core.settings), onesided.signals.shared
    if way is None or shared is None:
        return None
    return shared.expose([array], 0, 0, plain=way.plain, room=way.room)
