"""Small reductions by one call of the backend's library, which moves the contributions.

Each rank collects the contributions to its result and folds them in rank order. So the meaning is hpccomm's where the
library has another one, and ``deterministic=True`` has its bits. `hpccomm.dispatch.host` asks for it.
"""

from typing import Any

import numpy as np

from hpccomm.contracts.backend import Backend, Blocking
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dispatch.policy import NATIVE
from hpccomm.dispatch.route import Route
from hpccomm.memory.folding import Folder
from hpccomm.reductions import ReduceOp

BYTES = 32 << 10
"""The most bytes that a rank collects. Beyond, algorithms that fold on the way move less."""

RANKS = 16
"""The most ranks: each contribution takes a call of NumPy."""

_MOVES = {
    "all_reduce": "all_gather",
    "scan": "all_gather",
    "reduce": "gather",
    "reduce_scatter": "all_to_all",
}


def gathered(backend: Backend, call: Signature) -> Route | None:
    """Return the route of a small reduction whose contributions are collected first; None for any other."""
    size, rank, op, dtype = backend.size, backend.rank, call.op, call.dtype
    count = call.counts[0]
    small = call.uniform and 0 < size * count * dtype.itemsize <= BYTES
    if not small or size > RANKS or not isinstance(op, ReduceOp):
        return None
    way, counts = _MOVES[call.collective], (count,) * size
    coming = counts if way == "all_to_all" else ()
    native = backend.native(Signature(way, dtype, counts, coming, root=call.root))
    if native is None:
        return None
    begin, run = native.start, native.run
    fold = Folder(op, dtype, size if op is ReduceOp.AVG else 0)
    # A scan folds the contributions up to this rank, and an exclusive one those before it.
    last = size if call.collective != "scan" else rank + (not call.exclusive)
    if call.collective == "reduce" and rank != call.root:
        last = 0

    def collected() -> tuple[Any, list[Any]]:
        table = np.empty(size * count, dtype)
        return table, [*table.reshape(size, count)[:last]]

    def start(send: Any, recv: Any) -> Steps:
        table, rows = collected()
        yield from iter(begin(send, table), True)
        if rows:
            fold(rows, recv)

    reason = f"small contributions are moved by the library's {way}, and folded in rank order"
    choice = Choice(call.name, "host", backend.name, NATIVE, None, False, reason)
    if run is None:
        return Route(choice, start)
    move, arguments = run.call, run.arguments
    table, rows = collected()  # of the one call at a time that blocks
    pair = fold.pair if last == 2 else None

    def blocking(send: Any, recv: Any) -> None:
        move(*arguments(send, table))
        if pair is not None:
            pair(*rows, recv)
        elif rows:
            fold(rows, recv)

    return Route(choice, start, Blocking(blocking))
