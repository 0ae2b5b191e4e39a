"""Kernels out of C text, as ``cupy.ElementwiseKernel`` takes it, computed by NumPy.

The C is small: declarations first, then assignments, whose operands stand in parentheses, so that
Python ranks operators as C does. `test_narrow_kernels` has a C compiler, where there is one, say the same.
"""

import re
from typing import Any

import numpy as np

from cupy._arrays import ndarray, run

_TYPES = {"unsigned int": np.uint32, "float": np.float32}
_KNOWN = {
    "__fadd_rn": np.add, "__fmul_rn": np.multiply, "__fdiv_rn": np.divide, "where": np.where,
    "__uint_as_float": lambda x: np.asarray(x, np.uint32).view(np.float32),
    "__float_as_uint": lambda x: np.asarray(x, np.float32).view(np.uint32),
    "uint32": np.uint32,
}  # fmt: skip


def _python(text: str) -> str:
    condition, asks, rest = text.partition(" ? ")
    if not asks:
        return re.sub(r"\b(0x[0-9a-f]+|[0-9]+)u\b", r"uint32(\1)", text)
    first, _, second = rest.partition(" : ")
    return f"where({', '.join(map(_python, (condition, first, second)))})"


class ElementwiseKernel:
    """One kernel for the elements of arrays of one shape."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        reduce_dims: bool = True,
        preamble: str = "",
        no_return: bool = False,
        return_tuple: bool = False,
        **kwargs: Any,
    ) -> None:
        if not name.isidentifier() or preamble or kwargs or not no_return:
            raise NotImplementedError("the stand-in has no such kernels")
        self.name = name
        self._in = [part.split() for part in in_params.split(", ")]
        ((kind, self._out),) = [part.split() for part in out_params.split(", ")]
        self._made = np.dtype(kind)
        self._types: dict[str, Any] = {}
        self._code = []
        for statement in filter(None, (part.strip() for part in operation.split(";"))):
            kind = next((kind for kind in _TYPES if statement.startswith(f"{kind} ")), "")
            if kind:
                names = statement.removeprefix(kind).split(",")
                self._types |= {name.strip(): _TYPES[kind] for name in names}
                continue
            target, value = statement.split(" = ", 1)
            self._code.append((target, compile(_python(value), name, "eval")))

    def __call__(self, *args: Any) -> None:
        *given, out = args
        for x, (kind, name) in zip(given, self._in, strict=True):
            # As CuPy 14.2's _kernel.pyx, _decide_params_type_core.
            if isinstance(x, ndarray) and x.dtype != np.dtype(kind):
                raise TypeError(f"Type is mismatched. {name} {x.dtype} {kind}")
            if isinstance(x, ndarray) and x.shape != out.shape:
                raise ValueError("Out shape is mismatched")
        if out.dtype != self._made:
            raise TypeError(f"Type is mismatched. {self._out} {out.dtype} {self._made}")

        def computed(*values: Any) -> Any:
            there = dict(_KNOWN)
            for x, (kind, name) in zip(values, self._in, strict=True):
                there[name] = np.asarray(x).astype(kind)
            with np.errstate(all="ignore"):
                for target, code in self._code:
                    there[target] = np.asarray(eval(code, there)).astype(
                        self._types.get(target, self._made)
                    )
            return there[self._out]

        computed.kernel = self.name  # type: ignore[attr-defined]
        run(computed, out, *given)
