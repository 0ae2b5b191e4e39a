"""Collective calls that differ: any two of them on two ranks are a mismatch."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from hpccomm import ReduceOp

Call = Callable[[Any], object]


def _on(name: str, count: int, dtype: type, **more: Any) -> tuple[str, Call]:
    def call(comm: Any) -> object:
        rows = count * comm.size
        made = {key: value for key, value in more.items() if value is not None}
        if name == "barrier":
            result = comm.barrier(**made)
        elif name == "scatter":
            made["out"] = np.zeros(count, dtype)
            result = comm.scatter(np.ones(rows, dtype), **made)
        else:
            result = getattr(comm, name)(np.ones(rows, dtype), **made)
        return result.wait() if made.get("async_op") else result

    values = ", ".join(f"{key}={value}" for key, value in more.items() if value is not None)
    return f"{name}({count} {dtype.__name__} {values})", call


def _all() -> dict[str, Call]:
    calls = [_on("barrier", 0, float, async_op=each) for each in (None, True)]
    for name, count, dtype, async_op in product(
        ("all_reduce", "reduce_scatter", "reduce", "scan"), (1, 9), (float, int), (None, True)
    ):
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            root = 0 if name == "reduce" else None
            calls.append(_on(name, count, dtype, op=op, root=root, async_op=async_op))
    for name, count, dtype, async_op in product(
        ("all_gather", "all_to_all", "broadcast", "gather", "scatter"),
        (1, 9),
        (float, int),
        (None, True),
    ):
        rooted = name in ("broadcast", "gather", "scatter")
        roots = (0, 1) if rooted else (None,)
        calls += [_on(name, count, dtype, root=root, async_op=async_op) for root in roots]
    return dict(calls)


CALLS = _all()
