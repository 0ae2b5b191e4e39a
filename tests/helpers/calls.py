"""Collective calls that differ: any two of them on two ranks are a mismatch."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from hpccomm import ReduceOp

Call = Callable[[Any], object]

OPS = [{"op": ReduceOp.SUM}, {"op": ReduceOp.MAX}]
ROOTS = [{"root": 0}, {"root": 1}]
ASYNC: list[dict[str, Any]] = [{}, {"async_op": True}]
KEYWORDS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "scan"), OPS),
    "reduce": [each | {"root": 0} for each in OPS],
    "all_gather": [{}],
    "all_to_all": [{}],
    **dict.fromkeys(("broadcast", "gather", "scatter"), ROOTS),
}


def _named(name: str, count: int, dtype: type, keywords: dict[str, Any]) -> tuple[str, Call]:
    def call(comm: Any) -> object:
        given = [np.ones(count * comm.size, dtype)] if count else []
        out = {"out": np.zeros(count, dtype)} if name == "scatter" else {}
        result = getattr(comm, name)(*given, **out, **keywords)
        return result.wait() if "async_op" in keywords else result

    values = ", ".join(f"{key}={value}" for key, value in keywords.items())
    return f"{name}({count} {dtype.__name__} {values})", call


CALLS = dict(_named("barrier", 0, float, each) for each in ASYNC) | dict(
    _named(name, count, dtype, keywords | more)
    for name, listed in KEYWORDS.items()
    for keywords, count, dtype, more in product(listed, (1, 9), (float, int), ASYNC)
)
