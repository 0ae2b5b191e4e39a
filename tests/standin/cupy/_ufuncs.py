"""Functions of elements, as CuPy has them: put on the current stream."""

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._arrays import check_kernel_dtype, checked_dtype, ndarray, run
from cupy._creation import asarray
from cupy._loops import TYPES
from cupy._loops import dtype as loop_dtype


class ufunc:  # CuPy's name
    """A function of elements."""

    def __init__(self, name: str) -> None:
        self.name = f"cupy_{name}"
        self.__name__ = name
        self.types = TYPES[name]
        self._function = getattr(np, name)
        self.nin = self._function.nin
        self.nout = 1
        self._chosen: dict[Any, tuple[list[np.dtype], np.dtype]] = {}

    def __call__(
        self, *args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind"
    ) -> ndarray:
        if len(args) > self.nin:
            *args, out = args  # positionally, as NumPy allows
        for x in args:
            if not isinstance(x, ndarray | bool | int | float | complex | np.generic):
                raise TypeError(f"Unsupported type {type(x)}")
        inputs, output = self._loop(args, dtype)
        shape = np.broadcast_shapes(*(np.shape(_shaped(x)) for x in args))
        if out is None:
            out = ndarray(shape, output)
        elif not isinstance(out, ndarray):
            raise TypeError("return arrays must be of ArrayType")
        elif np.broadcast_shapes(shape, out.shape) != out.shape:
            raise ValueError("Out shape is mismatched")
        elif output.kind != out.dtype.kind and not np.can_cast(output, out.dtype, casting):
            raise TypeError(
                f"Cannot cast array data from {output!r} to {out.dtype!r} according to the rule "
                f"'{casting}'"
            )
        for x in (*args, out):
            if isinstance(x, ndarray):
                check_kernel_dtype(x.dtype)
        function = self._function

        def computed(*values: Any) -> Any:
            cast = [np.asarray(v).astype(t) for v, t in zip(values, inputs, strict=True)]
            return np.asarray(function(*cast)).astype(output)

        computed.kernel = self.name  # type: ignore[attr-defined]
        return run(computed, out, *args)

    def _loop(self, args: Any, dtype: Any) -> tuple[list[np.dtype], np.dtype]:
        """Return the dtypes that the inputs are cast to, and that of the result."""
        given = tuple(_seen(x) for x in args)
        if (given, dtype) not in self._chosen:
            self._chosen[given, dtype] = self._first_that_fits(given, dtype)
        return self._chosen[given, dtype]

    def _first_that_fits(self, given: Any, dtype: Any) -> tuple[list[np.dtype], np.dtype]:
        weak = _weak(given)
        for loop in self.types:
            letters, result = loop.split("->")
            inputs = [loop_dtype(letter) for letter in letters]
            if dtype is not None:
                fits = loop_dtype(result) == np.dtype(dtype)
            else:
                fits = builtins.all(
                    np.can_cast(seen, wanted)
                    or (weak and scalar is not None and np.result_type(scalar(0), wanted) == wanted)
                    for (seen, scalar), wanted in zip(given, inputs, strict=True)
                )
            if fits:
                if self.__name__ in ("subtract", "negative") and letters[0] == "?":
                    raise TypeError(
                        f"cupy boolean {self.__name__}, the `-` operator, is deprecated"
                    )
                return inputs, loop_dtype(result)
        wrong = tuple(seen for seen, _ in given) if dtype is None else dtype
        raise TypeError(f"Wrong type ({wrong}) of arguments for {self.name}")


def _seen(x: Any) -> tuple[np.dtype, type | None]:
    """Return an argument's dtype, and its class where it is a number of Python's own."""
    if isinstance(x, ndarray | np.generic):
        return x.dtype, None
    return np.asarray(x).dtype, None if isinstance(x, bool) else type(x)


_RANKS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 2}


def _weak(given: tuple[tuple[np.dtype, type | None], ...]) -> bool:
    """Tell whether numbers of Python's own follow the arrays' dtypes."""
    scalars = [_RANKS[seen.kind] for seen, scalar in given if scalar is not None]
    others = [_RANKS.get(seen.kind, 3) for seen, scalar in given if scalar is None]
    return len(scalars) > 0 and len(others) > 0 and sorted(others)[-1] >= sorted(scalars)[-1]


for _name in TYPES:
    globals()[_name] = ufunc(_name)


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    if isinstance(src, np.ndarray):
        if src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        src = src.squeeze()[()]
    if type(src) in (bool, int, float, complex):
        np.copyto(np.empty((), dst.dtype), src, casting=casting)
    elif not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode")
    if not isinstance(src, ndarray) or src.dtype != dst.dtype:
        for x in (src, dst):
            if isinstance(x, ndarray):
                check_kernel_dtype(x.dtype)
    if where is None:
        run(lambda x: x, dst, src)
    else:
        run(lambda x, old, mask: np.where(mask, x, old), dst, src, dst, where)


def _shaped(x: Any) -> Any:
    return np.empty(x.shape, bool) if isinstance(x, ndarray) else x


def concatenate(tup: Any, axis: Any = 0, out: Any = None) -> ndarray:
    parts = [asarray(x) for x in tup]
    like = np.concatenate([np.empty(p.shape, p.dtype) for p in parts], axis)
    target = ndarray(like.shape, like.dtype) if out is None else out
    return run(lambda *values: np.concatenate(values, axis), target, *parts)


def reduced(name: str, x: Any, axis: Any, dtype: Any, out: Any, keepdims: bool) -> ndarray:
    """Reduce over elements by one of NumPy's functions of that name."""
    function = getattr(np, name)
    keywords: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    if dtype is not None:
        keywords["dtype"] = checked_dtype(dtype)
    like = np.asarray(function(np.ones(x.shape, x.dtype), **keywords))
    target = ndarray(like.shape, like.dtype) if out is None else out
    return run(lambda values: function(values, **keywords), target, x)


def _reduction(name: str) -> Callable[..., ndarray]:
    def call(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        return reduced(name, a, axis, dtype, out, keepdims)

    call.__name__ = name
    return call


_REDUCTIONS = ("sum", "prod", "max", "min", "all", "any", "mean")
for _name in _REDUCTIONS:
    globals()[_name] = _reduction(_name)


def matmul(x1: ndarray, x2: ndarray, out: Any = None) -> ndarray:
    like = np.matmul(np.zeros(x1.shape, x1.dtype), np.zeros(x2.shape, x2.dtype))
    return run(np.matmul, ndarray(like.shape, like.dtype) if out is None else out, x1, x2)


_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    "matmul": "matmul",
}  # fmt: skip
_COMPARE = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}  # fmt: skip


def _operators() -> None:
    there = globals()
    for short, name in _BINARY.items():
        f = there[name]
        setattr(ndarray, f"__{short}__", lambda self, other, f=f: f(self, other))
        setattr(ndarray, f"__r{short}__", lambda self, other, f=f: f(other, self))
        setattr(ndarray, f"__i{short}__", lambda self, other, f=f: f(self, other, out=self))
    for short, name in _COMPARE.items():
        f = there[name]
        setattr(ndarray, f"__{short}__", lambda self, other, f=f: f(self, other))
    ndarray.__hash__ = None
    for short, name in {"neg": "negative", "invert": "invert", "abs": "absolute"}.items():
        f = there[name]
        setattr(ndarray, f"__{short}__", lambda self, f=f: f(self))


_operators()
__all__ = [  # noqa: PLE0604  # names of the table
    *TYPES, *_REDUCTIONS, "concatenate", "copyto", "matmul", "ufunc",
]  # fmt: skip
