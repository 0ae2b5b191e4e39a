"""Functions of elements, as CuPy has them: put on the current stream."""

import builtins
from functools import partial
from typing import Any

import numpy as np

from cupy._arrays import check_kernel_dtype, ndarray, run
from cupy._loops import TYPES
from cupy._loops import dtype as loop_dtype


class ufunc:  # CuPy's name
    """A function of elements."""

    def __init__(self, name):
        self.name = f"cupy_{name}"
        self.__name__ = name
        self.types = TYPES[name]
        self._function = getattr(np, name)
        self._chosen: dict[Any, tuple[list[np.dtype], np.dtype]] = {}

    def __call__(self, *args, out=None):
        for x in args:
            if not isinstance(x, ndarray | bool | int | float | complex | np.generic):
                raise TypeError(f"Unsupported type {type(x)}")
        inputs, output = self._loop(args)
        shape = np.broadcast_shapes(*(np.shape(_shaped(x)) for x in args))
        if out is None:
            out = ndarray(shape, output)
        elif not np.can_cast(output, out.dtype, "same_kind"):
            raise TypeError(f"Cannot cast array data from {output!r} to {out.dtype!r}")
        for x in (*args, out):
            if isinstance(x, ndarray):
                check_kernel_dtype(x.dtype)
        function = self._function

        def computed(*values):
            cast = [np.asarray(v).astype(t) for v, t in zip(values, inputs, strict=True)]
            return np.asarray(function(*cast)).astype(output)

        computed.kernel = self.name  # type: ignore[attr-defined]
        return run(computed, out, *args)

    def _loop(self, args):
        """Return the dtypes that the inputs are cast to, and that of the result."""
        typed = [x.dtype for x in args if isinstance(x, ndarray | np.generic)]
        # Numbers of Python's own follow the arrays' dtypes.
        given = tuple(
            x.dtype if isinstance(x, ndarray | np.generic) else np.result_type(x, *typed)
            for x in args
        )
        if given not in self._chosen:
            self._chosen[given] = self._first_that_fits(given)
        return self._chosen[given]

    def _first_that_fits(self, given):
        for loop in self.types:
            letters, result = loop.split("->")
            inputs = [loop_dtype(letter) for letter in letters]
            if builtins.all(map(np.can_cast, given, inputs)):
                return inputs, loop_dtype(result)
        raise TypeError(f"Wrong type ({given}) of arguments for {self.name}")


for _name in TYPES:
    globals()[_name] = ufunc(_name)


def matmul(x1, x2, out=None):
    """As docs/examples/train_cupy.py and benchmarks/device_overlap.py take it."""
    like = np.matmul(np.zeros(x1.shape, x1.dtype), np.zeros(x2.shape, x2.dtype))
    return run(np.matmul, ndarray(like.shape, like.dtype) if out is None else out, x1, x2)


def copyto(dst, src, casting="same_kind"):
    if not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode")
    if src.dtype != dst.dtype:
        check_kernel_dtype(src.dtype)
        check_kernel_dtype(dst.dtype)
    run(lambda x: x, dst, src)


def _shaped(x):
    return np.empty(x.shape, bool) if isinstance(x, ndarray) else x


def _reduction(name):
    def call(a, axis=None, keepdims=False):
        function = partial(getattr(np, name), axis=axis, keepdims=keepdims)
        like = np.asarray(function(np.ones(a.shape, a.dtype)))
        return run(lambda values: function(values), ndarray(like.shape, like.dtype), a)

    return call


for _name in ("sum", "max", "all"):
    setattr(ndarray, _name, _reduction(_name))


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "matmul": "matmul",
    "floordiv": "floor_divide", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal",
}  # fmt: skip

for _short, _name in _OPERATORS.items():
    _f = globals()[_name]
    setattr(ndarray, f"__{_short}__", lambda self, other, f=_f: f(self, other))
    setattr(ndarray, f"__r{_short}__", lambda self, other, f=_f: f(other, self))
    setattr(ndarray, f"__i{_short}__", lambda self, other, f=_f: f(self, other, out=self))
ndarray.__hash__ = None
ndarray.__neg__ = lambda self: globals()["negative"](self)

__all__ = [*TYPES, "copyto", "matmul", "ufunc"]  # noqa: PLE0604  # names of the table
