"""Functions of elements, as CuPy has them: put on the current stream."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._arrays import asarray, checked_dtype, ndarray, run

_NAMES = """
add subtract multiply divide true_divide floor_divide remainder mod fmod power negative absolute abs
minimum maximum fmin fmax bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
logical_and logical_or logical_xor logical_not equal not_equal less less_equal greater greater_equal
isnan isinf isfinite sign signbit sqrt exp log sin cos rint floor ceil trunc conjugate conj copysign
square
""".split()


def _kind(x: Any) -> Any:
    return np.ones((1,) * x.ndim, x.dtype) if isinstance(x, ndarray) else x


def _ufunc(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def call(*args: Any, out: Any = None, dtype: Any = None, casting: str = "same_kind") -> Any:
        if len(args) > function.nin:
            *args, out = args  # positionally, as NumPy allows
        keywords: dict[str, Any] = {"casting": casting}
        if dtype is not None:
            keywords["dtype"] = np.dtype(dtype)
        shapes = [x.shape if isinstance(x, ndarray) else np.shape(x) for x in args]
        with np.errstate(all="ignore"):
            made = np.asarray(function(*map(_kind, args), **keywords)).dtype
        if out is None:
            out = ndarray(np.broadcast_shapes(*shapes), made)
        elif not isinstance(out, ndarray):
            raise TypeError("return arrays must be of ArrayType")
        elif np.broadcast_shapes(*shapes, out.shape) != out.shape:
            raise ValueError("Out shape is mismatched")
        elif not np.can_cast(made, out.dtype, casting):
            raise TypeError(
                f"output (typecode '{made.char}') could not be coerced to provided output parameter "
                f"(typecode '{out.dtype.char}') according to the casting rule \"{casting}\""
            )
        return run(lambda *values: function(*values, **keywords), out, *args)

    call.__name__ = name
    return call


for _name in _NAMES:
    globals()[_name] = _ufunc(_name)


def where(condition: Any, x: Any = None, y: Any = None) -> ndarray:
    parts = (condition, x, y)
    made = np.where(*map(_kind, parts)).dtype
    shapes = [p.shape if isinstance(p, ndarray) else np.shape(p) for p in parts]
    return run(np.where, ndarray(np.broadcast_shapes(*shapes), made), *parts)


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    source = src.dtype if isinstance(src, ndarray) else np.min_scalar_type(src)
    if not np.can_cast(source, dst.dtype, casting):
        raise TypeError(f"Cannot cast {source} to {dst.dtype} in {casting} casting mode")
    if where is None:
        run(lambda x: x, dst, src)
    else:
        run(lambda x, old, mask: np.where(mask, x, old), dst, src, dst, where)


def take(a: ndarray, indices: Any, axis: Any = None, out: Any = None) -> ndarray:
    indices = indices if isinstance(indices, ndarray) or np.isscalar(indices) else asarray(indices)
    shape = np.take(np.empty(a.shape, bool), np.zeros(np.shape(_shaped(indices)), int), axis).shape
    target = ndarray(shape, a.dtype) if out is None else out
    return run(lambda x, i: np.take(x, i, axis, mode="wrap"), target, a, indices)


def _shaped(x: Any) -> Any:
    return np.empty(x.shape, bool) if isinstance(x, ndarray) else x


def concatenate(arrays: Any, axis: Any = 0, out: Any = None) -> ndarray:
    parts = [asarray(x) for x in arrays]
    like = np.concatenate([np.empty(p.shape, p.dtype) for p in parts], axis)
    target = ndarray(like.shape, like.dtype) if out is None else out
    return run(lambda *values: np.concatenate(values, axis), target, *parts)


def stack(arrays: Any, axis: int = 0) -> ndarray:
    parts = [asarray(x) for x in arrays]
    like = np.stack([np.empty(p.shape, p.dtype) for p in parts], axis)
    return run(lambda *values: np.stack(values, axis), ndarray(like.shape, like.dtype), *parts)


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


for _name in ("sum", "prod", "max", "min", "all", "any", "mean"):
    globals()[_name] = _reduction(_name)


def count_nonzero(a: ndarray, axis: Any = None) -> ndarray:
    like = np.asarray(np.count_nonzero(np.ones(a.shape, bool), axis))
    return run(lambda x: np.count_nonzero(x, axis), ndarray(like.shape, np.int64), a)


def matmul(x1: ndarray, x2: ndarray, out: Any = None) -> ndarray:
    like = np.matmul(np.zeros(x1.shape, x1.dtype), np.zeros(x2.shape, x2.dtype))
    return run(np.matmul, ndarray(like.shape, like.dtype) if out is None else out, x1, x2)


def dot(a: ndarray, b: ndarray, out: Any = None) -> ndarray:
    like = np.asarray(np.dot(np.zeros(a.shape, a.dtype), np.zeros(b.shape, b.dtype)))
    return run(np.dot, ndarray(like.shape, like.dtype) if out is None else out, a, b)


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> ndarray:
    first, second = asarray(a1), asarray(a2)
    return run(
        lambda x, y: np.array_equal(x, y, equal_nan=equal_nan), ndarray((), np.bool_), first, second
    )


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
__all__ = [
    name
    for name in globals()
    if not name.startswith("_")
    and name not in {"np", "Any", "Callable", "asarray", "checked_dtype", "ndarray", "run"}
]
