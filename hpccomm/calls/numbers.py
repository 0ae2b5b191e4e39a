"""Collective calls on numbers: what comes is a number of the given class, or an array of all ranks' numbers.

`core` comes here where the x of a call is a number. Integers travel as int64 and floats as float64, whatever
their width, beside a one. Ranks easily differ here: one that has no data gives 0 where the others give 0.5.
What has come of the ones tells that in each call, at no cost.

Python's numbers keep Python's meaning: integers are exact or refused, SUM and PROD of bool count, and AVG
divides. NumPy's keep that of their arrays.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hpccomm.calls.resolving import NO_LISTS, check_out
from hpccomm.dtypes import REDUCIBLE, DType
from hpccomm.errors import RankMismatch, UsageError
from hpccomm.memory.views import check_layout, host_view
from hpccomm.reductions import PremulSum, ReduceOp, recognised
from hpccomm.runtime.work import Later

_PYTHON: tuple[Any, ...] = (bool, int, float, complex)
NUMBERS = frozenset((*_PYTHON, *(each.type for each in REDUCIBLE), np.longlong, np.ulonglong))
"""Classes of numbers. Two C types may have one dtype."""

SCALARS = (int, float, complex, np.generic)
"""Python's classes of numbers, and what all scalars of NumPy's derive from."""

OF_NUMBERS = frozenset(("all_reduce", "reduce", "broadcast", "scan", "all_gather", "gather"))
"""The calls that take a number in place of an array."""

LARGEST = np.iinfo(np.int64).max

_INTEGER, _FLOAT, _COMPLEX = map(np.dtype, (np.int64, np.float64, np.complex128))
_WIDE = {"i": _INTEGER, "f": _FLOAT, "V": _FLOAT, "c": _COMPLEX}
"""The dtype in which NumPy's numbers travel, by kind; ml_dtypes has kind V."""


class NumberCall:
    """A collective call on any number of one class. It can be carried out again and again.

    Parameters are as of `Core.collective`.

    Attributes
    ----------
    call : Call
        The call on the array in which the number travels, with a one.
    """

    def __init__(
        self, core: Any, name: str, like: Any, op: Any, root: Any, exclusive: Any, *how: Any
    ) -> None:
        backend = core.backend
        op = op if op is None else recognised(op, np.dtype(like.__class__))
        dtype, self._most = _travelling(like, op, backend.size)
        self._calls, self._class = core.calls, like.__class__
        self._box = np.ones(2, dtype)
        lists = NO_LISTS, exclusive, *how
        prepared, arrays = core.prepared_calls.find(name, self._box, "new", op, root, *lists)
        self.call = call = prepared.lane.bind(prepared, arrays, None)
        self._prepared = prepared
        self._arguments = prepared.arguments(call.send, call.recv)
        # What the ones of the ranks give; None where that is not known.
        ones = backend.rank + (not exclusive) if name == "scan" else backend.size
        if op is ReduceOp.BXOR:
            ones %= 2
        elif op is not ReduceOp.SUM or dtype == np.bool_:
            ones = min(ones, 1)
        known = ones and (op is None or isinstance(op, ReduceOp))
        self._ones = ones if known else None

    def __call__(self, x: Any, limit: float) -> Any:
        """Carry it out on a number, within a time, and return what comes."""
        self.fill(x)
        self._prepared.issue(self._arguments, self.call.keep, limit)
        return self.came(self.call.result)

    def fill(self, x: Any) -> None:
        """Make it one on that number.

        Raises
        ------
        UsageError
            If it is an integer of Python's, and what comes may not fit.
        """
        most, box = self._most, self._box
        if most is not None and not -most <= x <= most:
            raise UsageError(
                f"x is {x}, and what comes of the integers of {self._calls.backend.size} ranks may not fit int64; "
                "give float(x), or sum what all_gather_object(x) gives, whose integers have any size"
            )
        box[0], box[1] = x, 1

    def came(self, result: Any) -> Any:
        """Return what has come, as a number like the given one, or as an array of such."""
        if result is None:
            return None
        number, ones = result.T.tolist()
        if result.ndim > 1:
            number, ones = result[:, 0].copy(), max(ones, key=lambda one: one != 1)
        if ones != self._ones and self._ones is not None:
            calls, label = self._calls, self._prepared.label
            error = RankMismatch(
                f"{label.name}: the ranks give numbers of different kinds, and this one {self._class.__name__}; "
                "give one kind on all ranks, such as float(x)",
                communicator=calls.name,
                rank=calls.backend.rank,
                operation=label.name,
            )
            calls.fail(error)
            raise error
        if self._class in _PYTHON:
            return number
        return result[..., 0].astype(self._class)[()]


def plain(x: Any) -> Any:
    """Return a number of a class of the user's as Python's, and another scalar of NumPy's as a 0-d array.

    All else is returned as it is. The array is new: scalars are never written.
    """
    if x.__class__ in NUMBERS or not isinstance(x, SCALARS):
        return x
    if isinstance(x, np.generic):
        return np.array(x)
    return next(kind(x) for kind in _PYTHON if isinstance(x, kind))


def call_on_number(
    core: Any, name: str, x: Any, out: Any, async_op: bool, limit: float, key: object, *given: Any
) -> Any:
    """Carry out a collective call on a number, and keep it for others of one `key`. Within a call.

    Ranks may differ in whether they give an array for the result, `out`: what travels is the same.
    """
    if core.sink.batch is not None:
        raise UsageError(
            f"x is {x!r} within batch(), at whose end calls fill arrays; give an array, such as "
            f"numpy.array({x!r})"
        )
    into = None if out is None else host_view(out, "out")
    if into is not None:
        shape = (core.backend.size,) * name.endswith("gather")
        check_out(into.dtype, into.shape, np.asarray(x).dtype, shape)
        check_layout(into, "out", written=True)
    number = NumberCall(core, name, x, *given)

    def stored(came: Any) -> Any:
        if into is None or came is None:
            return came
        into.reshape(-1)[...] = came
        return out

    if async_op is False and not core.sink.diverted:
        if key is not None:
            core.known.keep(key, number)
        return stored(number(x, limit))
    number.fill(x)
    result = number.call.result
    call = replace(number.call, result=Later(lambda: stored(number.came(result))))
    return core.issue(call, async_op, limit)


def _travelling(x: Any, op: Any, size: int) -> tuple[DType, int | None]:
    """Return the dtype in which numbers of one class travel, and the largest that is taken."""
    if not isinstance(x, int):
        dtype = np.dtype(x.__class__)
        narrow = dtype.kind == "u" and dtype.itemsize < 8
        return _INTEGER if narrow else _WIDE.get(dtype.kind, dtype), None
    if op is ReduceOp.AVG:
        return _FLOAT, None
    counting = op is ReduceOp.SUM or op is ReduceOp.PROD or isinstance(op, PremulSum)
    if isinstance(x, bool) and not counting:
        return np.dtype(np.bool_), None
    most = LARGEST
    if op is ReduceOp.PROD:
        most = int(LARGEST ** (1 / size))
        most -= most**size > LARGEST
    elif counting:
        most //= size * (int(abs(getattr(op, "factor", 1))) or 1)
    return _INTEGER, most
