"""The dispatch of arrays in host memory: decides, and makes the route.

The host lane asks it, and so does `staged`, for device arrays through pinned memory.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.contracts.backend import Backend, Blocking, Buffer, Native, Start
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Steps
from hpccomm.dispatch import policy
from hpccomm.dispatch.algorithms import AlgorithmRunner, memory_way, sharing
from hpccomm.dispatch.route import After, Before, Route, with_pre_and_post
from hpccomm.memory.folding import Average, Folder, premultiply, try_out
from hpccomm.memory.scratch import ScratchBuffer
from hpccomm.reductions import Deterministic, PremulSum, ReduceOp, identity
from hpccomm.schedules.algorithms import Asked
from hpccomm.settings import Settings


class HostDispatch:
    """The way of arrays in host memory.

    Parameters
    ----------
    backend : Backend
        Moves the data.
    settings : Settings
        Of the communicator.
    tables : policy.Tables
        What `auto` goes by.

    Attributes
    ----------
    policy : policy.Policy
        Chooses the algorithms.
    memory : SharedMemory or None
        Has the registered memory; None where the ranks of a node share none.
    """

    def __init__(self, backend: Backend, settings: Settings, tables: policy.Tables) -> None:
        self._backend = backend
        self._setting = settings.algorithm
        self._products = ScratchBuffer()
        self._average = cache(partial(Average, contributions=backend.size))
        self._sharing = sharing(backend, settings)
        self.memory = None if self._sharing is None else backend.collectives.shared
        self._shared = self._sharing is not None and backend.topology.num_nodes == 1
        memory = memory_way(self._sharing)
        shape = tables.shape(backend.name, backend.topology, memory)
        self.policy = tables.policy(shape)
        self._own = AlgorithmRunner(backend, self._sharing, settings.segment, self.policy.network)

    def applicable(self, call: Signature, deterministic: bool) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        return policy.applicable(call, self._conditions(self._native(call.summed), deterministic))

    def _conditions(self, native: Native | None, deterministic: bool) -> policy.Conditions:
        return policy.Conditions(deterministic, native is not None, self._shared)

    def decide(self, call: Signature, algorithm: Asked, deterministic: Deterministic) -> Route:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply, or the reduction is a user's function that does not take
            NumPy arrays.
        """
        if isinstance(deterministic, str):
            return self._binned(call, algorithm)
        if call.op is not None:
            try_out(call.op, call.dtype, ordered=deterministic)
        backend = self._backend
        inner = call.summed
        native = self._native(inner)
        conditions = self._conditions(native, deterministic)
        # Multiplied contributions lie in memory of their own.
        asking = replace(call, registered=inner.registered)
        decision = self.policy.decide(asking, algorithm, conditions, self._setting)
        before, after = self._before(call), self._after(call, decision.algorithm)
        asked = self._setting if algorithm is None else algorithm
        own = decision.algorithm != policy.NATIVE and not decision.registered
        if call.op is not None and asked == policy.AUTO and own:
            small = _gathered(backend, inner)
            if small is not None:
                return with_pre_and_post(small, before, after)
        choice = Choice(
            call.name,
            "host",
            backend.name,
            decision.algorithm,
            None,
            call.registered,
            decision.reason,
        )
        if decision.algorithm == policy.NATIVE:
            assert native is not None
            route = Route(choice, _polled(native), native.run)
        elif deterministic and call.description.prefix and call.accumulator != call.dtype:
            wide = replace(inner, dtype=call.accumulator, in_place=False, registered=False)
            route = _widened(self._own.route(call, wide, decision, True, choice))
        else:
            route = self._own.route(call, inner, decision, deterministic, choice)
        route = with_pre_and_post(route, before, after)
        if call.individual and asked == policy.AUTO:
            return replace(route, planned=self._planned(inner, choice))
        return route

    def _binned(self, call: Signature, algorithm: Asked) -> Route:
        """Return the route by binned sums; where the order makes no difference, the usual one."""
        if not dtypes.is_float(call.dtype) and not dtypes.is_complex(call.dtype):
            return self.decide(call, algorithm, False)
        from hpccomm.binned import binned_sum, rounded

        parts = 2 if dtypes.is_complex(call.dtype) else 1  # real and imaginary ones
        counts = tuple(count * parts for count in call.counts)
        inner = replace(
            call,
            dtype=dtypes.BINNED,
            counts=counts,
            op=ReduceOp.SUM,
            in_place=False,
            registered=False,
        )
        route = self.decide(inner, algorithm, False)

        def start(send: Buffer, recv: Buffer) -> Steps:
            assert send is not None
            sums = binned_sum((send.view(send.real.dtype) if parts == 2 else send)[:, None], 1)
            if recv is None:
                yield from route.start(sums, None)
                return
            into = recv.view(recv.real.dtype) if parts == 2 else recv
            result = np.empty(into.size, dtypes.BINNED)
            yield from route.start(sums, result)
            np.copyto(into, rounded(result, into.dtype))

        choice = replace(route.choice, reason=f"floats are summed in bins; {route.choice.reason}")
        after = self._after(call, policy.NATIVE) if call.op is ReduceOp.AVG else None
        return with_pre_and_post(Route(choice, start), self._before(call), after)

    def _native(self, call: Signature) -> Native | None:
        """Return the backend's own way, where all ranks have it without agreeing on it."""
        native = self._backend.native(call)
        return None if native is None or native.agreed else native

    def _planned(self, call: Signature, choice: Choice) -> Route | None:
        """Return the backend's own way, where it takes calls with blocks of one size as large as this rank's."""
        native = self._backend.native(call)
        if native is None:
            return None
        block = -(-call.elements // self._backend.size)
        even = replace(
            call, counts=(block,) * self._backend.size, recv_counts=(), peers=(), uniform=True
        )
        decision = self.policy.decide(even, None, self._conditions(native, False))
        if decision.algorithm != policy.NATIVE:
            return None
        reason = f"all ranks of the plan have agreed on it; with equal blocks {decision.reason}"
        own = replace(choice, algorithm=policy.NATIVE, reason=reason)
        return Route(own, _polled(native), native.run)

    def _before(self, call: Signature) -> Before | None:
        """Return the function for the contribution of `send`, or None if it is unchanged."""
        op = call.op
        if not isinstance(op, PremulSum):
            return None

        def scaled(send: Buffer) -> Buffer:
            assert send is not None
            # A copy: the user's array stays unchanged.
            product = self._products.take(send.size, send.dtype)
            premultiply(op, send, product)
            return product

        return scaled

    def _after(self, call: Signature, algorithm: str) -> After | None:
        """Return the final operation on `recv`, or None."""
        if call.op is ReduceOp.AVG and algorithm == policy.NATIVE:
            divide = self._average(call.dtype)
            return lambda recv: None if recv is None else divide(recv)
        if call.exclusive and self._backend.rank == 0:
            assert call.op is not None
            if not isinstance(call.op, ReduceOp | PremulSum):
                return None  # `recv` stays as it is
            neutral = identity(call.op, call.dtype)
            return lambda recv: None if recv is None else recv.fill(neutral)
        return None


def _widened(route: Route) -> Route:
    """Scan narrow floats in float32, so that they are rounded once and not at each hop."""

    def start(send: Buffer, recv: Buffer) -> Steps:
        assert send is not None
        assert recv is not None
        result = np.empty(recv.size, np.float32)
        yield from route.start(send.astype(np.float32), result)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(recv, result, casting="unsafe")

    return Route(route.choice, start)


def _polled(native: Native) -> Start:
    begin = native.start

    def start(send: Buffer, recv: Buffer) -> Steps:
        # Small calls come here: this yields False until the request is complete, without Python code.
        return iter(begin(send, recv), True)

    return start


GATHERED_BYTES = 32 << 10
"""The most bytes that a rank collects. Beyond, algorithms that fold on the way move less."""

GATHERED_RANKS = 16
"""The most ranks: each contribution takes a call of NumPy."""

_MOVES = {
    "all_reduce": "all_gather",
    "scan": "all_gather",
    "reduce": "gather",
    "reduce_scatter": "all_to_all",
}


def _gathered(backend: Backend, call: Signature) -> Route | None:
    """Return the route of a small reduction by one call of the library, which moves the contributions; None for any other.

    Each rank collects the contributions to its result and folds them in rank order. So the meaning is hpccomm's
    where the library has another one, and ``deterministic=True`` has its bits.
    """
    size, rank, op, dtype = backend.size, backend.rank, call.op, call.dtype
    count = call.counts[0]
    small = call.uniform and 0 < size * count * dtype.itemsize <= GATHERED_BYTES
    if not small or size > GATHERED_RANKS or not isinstance(op, ReduceOp):
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
    choice = Choice(call.name, "host", backend.name, policy.NATIVE, None, False, reason)
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
