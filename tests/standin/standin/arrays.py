"""Arrays in device memory as the operations on streams see them: where they lie, and no hold on them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from standin import heap


class Layout(NamedTuple):
    """Where an array's elements lie. It keeps no memory alive, as a kernel does not."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    def host(self, device: bool | None = True) -> np.ndarray:
        """Return the elements as a NumPy array; from a stream alone."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(step for step in steps if step < 0)
        high = sum(step for step in steps if step > 0) + self.dtype.itemsize
        data = heap.view(self.pointer + low, high - low, device)
        return np.ndarray(self.shape, self.dtype, data, -low, self.strides)


def kernel(function: Callable[..., Any], out: Layout, *inputs: Any) -> Callable[[], None]:
    """Return an operation for a stream: ``out[...] = function(*inputs)``, layouts read then."""

    def run() -> None:
        values = [x.host() if isinstance(x, Layout) else x for x in inputs]
        with np.errstate(all="ignore"):  # a device does not warn
            np.copyto(out.host(), function(*values), casting="unsafe")

    return run
