"""Calls on a window: the common part of all calls, and the atomic calls. `window` derives from it.

Atomic calls on one rank's memory happen one after the other: each holds the lock of the target. MPI's lock-free
operations are not used, since they are not atomic with a reduction that a rank folds itself.
"""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.calls.arguments import NUMBERS, SCALARS, plain
from hpccomm.calls.core import Core
from hpccomm.communicator.windows.access import Access, Array, bounds
from hpccomm.contracts.signature import End, with_peers
from hpccomm.contracts.transport import Steps
from hpccomm.dtypes import DType
from hpccomm.errors import BufferMismatch, UnsupportedDtype, UsageError
from hpccomm.memory.folding import try_out
from hpccomm.memory.views import (
    address,
    check_dtype,
    check_layout,
    empty_like_kind,
    flat,
    host_view,
    overlap,
)
from hpccomm.reductions import Op, ReduceOp, WindowOp, check, recognised
from hpccomm.runtime.callpath import PreparedCall, in_turn
from hpccomm.runtime.progress import Operation
from hpccomm.settings import check_int
from hpccomm.spelling import Hinting
from hpccomm.topology import check_rank


class WindowCalls(Hinting):
    """The state of a window, the checks and the issue of its calls, and the atomic calls."""

    _mpi4py = "Win."

    def __init__(self, core: Core, array: Array, sizes: tuple[int, ...], access: Access) -> None:
        self.sizes = sizes
        self.dtype = array.dtype
        self._core = core
        self._array = array
        self._access = access
        self._closed = False
        self._counters: dict[tuple[int, int, int], Any] = {}  # by rank, element and reduction
        self._least, self._most = bounds(self.dtype)

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
            op = self._reduction(op)
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
            given, op = op, self._reduction(op)
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

    def _reduction(self, op: Op | WindowOp) -> Op | WindowOp:
        """Return the reduction; raise if it has no meaning for the window's dtype."""
        op = recognised(op, self.dtype)
        if isinstance(op, WindowOp):
            return op
        if op is ReduceOp.AVG:
            raise UnsupportedDtype(
                "op is ReduceOp.AVG, which has no meaning here: how many ranks will accumulate "
                "is not known; use ReduceOp.SUM or premul_sum, and divide after a fence"
            )
        check(op, self.dtype)
        try_out(op, self.dtype)
        return op

    def _elements(self, x: Any, name: str) -> Array:
        """Return the elements of an array; or an array of one element for a number."""
        x = plain(x)
        if x.__class__ in NUMBERS:
            return _element(x, name, self.dtype)
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


_ORDER = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}
"""Rank of a dtype's kind. A number fits a dtype whose kind has at least the rank of its own; ml_dtypes has kind V."""


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


def _element(number: Any, name: str, dtype: DType) -> Array:
    """Return an array of one element that holds a number.

    Raises
    ------
    UsageError
        If the dtype cannot hold the number. Rounding to a float is allowed.
    """
    kind = np.dtype(number.__class__).kind
    fits = dtypes.is_reducible(dtype) and _ORDER[kind] <= _ORDER[dtype.kind]
    if fits and dtypes.is_integer(dtype):
        bounds = np.iinfo(dtype)
        fits = bounds.min <= int(number) <= bounds.max
    if fits:
        try:
            with np.errstate(over="ignore"):
                return np.array([number]).astype(dtype)
        except OverflowError:  # an integer too large for any float
            pass
    raise UsageError(
        f"{name} is {number!r}, which dtype {dtype} does not hold; give a number that it holds, "
        f"or an array of dtype {dtype}"
    )
