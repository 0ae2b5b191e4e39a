"""The dispatch of arrays in host memory: chooses the algorithm of a call, and makes the functions that carry it out.

The host lane uses it, and `staged`, which moves device arrays through pinned memory, does so too.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from hpccomm import dtypes
from hpccomm.calls import policy
from hpccomm.calls.algorithms import AlgorithmRunner, memory_way, sharing
from hpccomm.contracts.backend import Backend, Buffer, Implementation
from hpccomm.contracts.signature import Choice, Signature
from hpccomm.contracts.transport import Steps
from hpccomm.memory.folding import Average, Folder, premultiply, try_out
from hpccomm.memory.views import ScratchBuffer
from hpccomm.reductions import PremulSum, ReduceOp, identity
from hpccomm.schedules.algorithms import Asked
from hpccomm.settings import Settings

Before = Callable[[Buffer], Buffer]
After = Callable[[Buffer], None]


class HostDispatch:
    """Decides how calls on arrays in host memory are carried out.

    Parameters
    ----------
    backend : Backend
        Moves the data.
    settings : Settings
        The settings of the communicator.
    tables : policy.Tables
        The tables from which ``auto`` chooses.

    Attributes
    ----------
    policy : policy.Policy
        Chooses the algorithms.
    memory : SharedMemory or None
        Has the registered memory; None if the ranks of a node share no memory.
    """

    def __init__(self, backend: Backend, settings: Settings, tables: policy.Tables) -> None:
        self._backend = backend
        self._setting = settings.algorithm
        self._products = ScratchBuffer()
        self._average = cache(partial(Average, contributions=backend.size))
        found = sharing(backend, settings)
        self.memory = None if found is None else backend.collectives.shared
        shape = tables.shape(backend.name, backend.topology, memory_way(found))
        self.policy = tables.policy(shape)
        self._own = AlgorithmRunner(backend, found, settings.segment, self.policy.network)

    def applicable(self, call: Signature) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        native = self._native(call.summed) is not None
        return policy.applicable(call, native, self.policy.shared)

    def size_class(self, call: Signature) -> int:
        """Return the number of a call's class of size.

        Calls that differ only in their sizes, and have the same class, share a choice.
        """
        if call.individual:
            return 0
        nbytes = _in_bins(call).nbytes if _binned(call) else call.nbytes
        return self.policy.table.size_class(call.collective, nbytes)

    def decide(self, call: Signature, algorithm: Asked) -> tuple[Choice, Implementation]:
        """Decide how calls like `call` are carried out: `choose` and `implement` in one."""
        return self.implement(call, self.choose(call, algorithm), algorithm)

    def choose(self, call: Signature, algorithm: Asked) -> Choice:
        """Choose the algorithm of calls like `call`. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply, or the reduction is a user's function that does not take
            NumPy arrays.
        """
        if isinstance(call.deterministic, str):
            choice = self.choose(_in_bins(call), algorithm)
            if not _binned(call):
                return choice
            return replace(choice, reason=f"floats are summed in bins; {choice.reason}")
        if call.op is not None:
            try_out(call.op, call.dtype, ordered=call.deterministic)
        inner = call.summed
        native = self._native(inner) is not None
        # A product is sent from scratch, which is not registered.
        asking = call._replace(registered=inner.registered)
        choice = self.policy.decide(asking, algorithm, native, self._setting)
        asked = self._setting if algorithm is None else algorithm
        own = choice.algorithm != policy.NATIVE and not choice.registered
        if own and asked == policy.AUTO and _gathers(self._backend, inner):
            way = _way(call)
            reason = (
                f"small contributions are moved by the library's {way}, and folded in rank order"
            )
            return replace(
                choice,
                algorithm=policy.NATIVE,
                segment=None,
                reason=reason,
                channels=0,
                other=gathered,
            )
        if choice.registered == call.registered:
            return choice
        return replace(choice, registered=call.registered)

    def implement(
        self, call: Signature, choice: Choice, algorithm: Asked
    ) -> tuple[Choice, Implementation]:
        """Return the functions for calls like `call`, and the choice, completed with their facts. Local."""
        if _binned(call):
            return self._in_bins(call, choice, algorithm)
        if isinstance(call.deterministic, str):
            call = call._replace(deterministic=False)
        inner = call.summed
        if choice.other is gathered:
            found = gathered(self._backend, inner)
        elif choice.algorithm == policy.NATIVE:
            native = self._native(inner)
            assert native is not None
            found = native
        elif call.deterministic and call.description.prefix and call.accumulator != call.dtype:
            wide = inner._replace(dtype=call.accumulator, in_place=False, registered=False)
            choice, found = self._own.implement(call, wide, choice)
            found = _widened(found)
        else:
            choice, found = self._own.implement(call, inner, choice)
        found = with_pre_and_post(found, self._before(call), self._after(call, choice))
        if call.individual and (self._setting if algorithm is None else algorithm) == policy.AUTO:
            found = found._replace(planned=partial(self._planned, inner))
        return choice, found

    def _in_bins(
        self, call: Signature, choice: Choice, algorithm: Asked
    ) -> tuple[Choice, Implementation]:
        """Return the implementation by binned sums."""
        from hpccomm.memory.binned import binned_sum, rounded

        inner, parts = _in_bins(call), 2 if dtypes.is_complex(call.dtype) else 1
        choice, (begin, *_) = self.implement(inner, choice, algorithm)

        def start(send: Buffer, recv: Buffer) -> Steps:
            assert send is not None
            sums = binned_sum((send.view(send.real.dtype) if parts == 2 else send)[:, None], 1)
            if recv is None:
                yield from begin(sums, None)
                return
            into = recv.view(recv.real.dtype) if parts == 2 else recv
            result = np.empty(into.size, dtypes.BINNED)
            yield from begin(sums, result)
            np.copyto(into, rounded(result, into.dtype))

        after = self._averaging(call) if call.op is ReduceOp.AVG else None
        return choice, with_pre_and_post(Implementation(start), self._before(call), after)

    def _native(self, call: Signature) -> Implementation | None:
        """Return the backend's own form of a call, if all ranks have it without an agreement."""
        native = self._backend.native(call)
        return None if native is None or native.agreed else native

    def _planned(self, call: Signature) -> tuple[Choice, Implementation] | None:
        """Return the backend's own form of an uneven call for plans, or None.

        It is used if the policy would choose it for equal blocks of this rank's average size.
        """
        native = self._backend.native(call)
        if native is None:
            return None
        block = -(-call.elements // self._backend.size)
        even = call._replace(
            counts=(block,) * self._backend.size, recv_counts=(), peers=(), uniform=True
        )
        choice = self.policy.decide(even, None, native=True)
        if choice.algorithm != policy.NATIVE:
            return None
        reason = f"all ranks of the plan have agreed on it; with equal blocks {choice.reason}"
        return replace(choice, collective=call.name, reason=reason), native

    def _before(self, call: Signature) -> Before | None:
        """Return the function that makes the contribution from `send`; None if that is `send` itself."""
        op = call.op
        if not isinstance(op, PremulSum):
            return None

        def scaled(send: Buffer) -> Buffer:
            assert send is not None
            # The product goes to other memory, so that the user's array stays unchanged.
            product = self._products.take(send.size, send.dtype)
            premultiply(op, send, product)
            return product

        return scaled

    def _after(self, call: Signature, choice: Choice) -> After | None:
        """Return the final operation on `recv`, or None."""
        if call.op is ReduceOp.AVG and choice.algorithm == policy.NATIVE and choice.other is None:
            return self._averaging(call)
        if call.exclusive and self._backend.rank == 0:
            assert call.op is not None
            if not isinstance(call.op, ReduceOp | PremulSum):
                return None  # `recv` stays as it is
            neutral = identity(call.op, call.dtype)
            return lambda recv: None if recv is None else recv.fill(neutral)
        return None

    def _averaging(self, call: Signature) -> After:
        divide = self._average(call.dtype)
        return lambda recv: None if recv is None else divide(recv)


def with_pre_and_post(
    found: Implementation, before: Before | None, after: After | None
) -> Implementation:
    """Return an implementation that applies `before` to the sent array and `after` to the received array."""
    if before is None and after is None:
        return found
    begin, run, arguments = found.start, found.run, found.arguments

    def start_all(send: Buffer, recv: Buffer) -> Steps:
        given = before(send) if before else send  # this variable keeps it alive
        yield from begin(given, recv)
        if after:
            after(recv)

    if run is None:
        return Implementation(start_all, any_size=found.any_size)

    def run_all(send: Buffer, recv: Buffer) -> None:
        run(*arguments(before(send) if before else send, recv))
        if after:
            after(recv)

    return Implementation(start_all, run_all, any_size=found.any_size)


def _binned(call: Signature) -> bool:
    """Return whether a call sums in bins: order matters for its dtype, and the number of ranks must not matter."""
    floating = dtypes.is_float(call.dtype) or dtypes.is_complex(call.dtype)
    return floating and isinstance(call.deterministic, str)


def _in_bins(call: Signature) -> Signature:
    """Return the call on binned sums that replaces a call; if order does not matter, the usual call."""
    if not _binned(call):
        return call._replace(deterministic=False)
    parts = 2 if dtypes.is_complex(call.dtype) else 1  # real and imaginary parts
    return call._replace(
        dtype=dtypes.BINNED,
        counts=tuple([count * parts for count in call.counts]),
        op=ReduceOp.SUM,
        in_place=False,
        registered=False,
        deterministic=False,
    )


def _widened(found: Implementation) -> Implementation:
    """Return an implementation that scans narrow floats in float32: they are rounded once and not at each hop."""

    def start(send: Buffer, recv: Buffer) -> Steps:
        assert send is not None
        assert recv is not None
        result = np.empty(recv.size, np.float32)
        yield from found.start(send.astype(np.float32), result)
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(recv, result, casting="unsafe")

    return Implementation(start)


GATHERED_BYTES = 32 << 10
"""Most bytes that a rank collects in `gathered`. For more, algorithms that fold on the way move fewer bytes."""

GATHERED_RANKS = 16
"""Most ranks of `gathered`, since each contribution takes a call of NumPy."""


def _way(call: Signature) -> str:
    """Return the collective that moves the contributions of a reduction to the ranks that fold them."""
    if call.description.blockwise:
        return "all_to_all"
    return "gather" if call.description.root_receives else "all_gather"


def _moved(backend: Backend, call: Signature) -> Implementation | None:
    """Return the library's implementation of that collective; None if the library lacks it."""
    way, counts = _way(call), (call.counts[0],) * backend.size
    coming = counts if way == "all_to_all" else ()
    return backend.native(Signature(way, call.dtype, counts, coming, root=call.root))


def _gathers(backend: Backend, call: Signature) -> bool:
    """Return whether a reduction is so small that `gathered` carries it out; the same for all sizes of a class."""
    if not isinstance(call.op, ReduceOp) or not call.uniform or backend.size > GATHERED_RANKS:
        return False
    many = 1 if call.description.blockwise else backend.size
    most = policy.rounded_up(call.nbytes) * many
    return 0 < most <= GATHERED_BYTES and _moved(backend, call) is not None


def gathered(backend: Backend, call: Signature) -> Implementation:
    """Return a small reduction by one call of the library, which moves the contributions.

    Each rank collects the contributions to its result and folds them in rank order. So the result has hpccomm's
    meaning even if the library's reduction has another, and the bits of ``deterministic=True``.
    """
    size, rank, op, dtype = backend.size, backend.rank, call.op, call.dtype
    moved = _moved(backend, call)
    assert moved is not None
    assert isinstance(op, ReduceOp)
    begin, move, arguments = moved.start, moved.run, moved.arguments
    fold = Folder(op, dtype, size if op is ReduceOp.AVG else 0)
    # A scan folds the contributions up to this rank, an exclusive scan those of the ranks before.
    last = rank + (not call.exclusive) if call.description.prefix else size
    if call.description.root_receives and rank != call.root:
        last = 0
    # The table is as many times as large as the sent array.
    copies = 1 if call.description.blockwise else size

    def new_table(elements: int) -> tuple[Any, list[Any]]:
        """Return memory for the contributions, and the rows of it that are folded."""
        table = np.empty(elements, dtype)
        return table, [*table.reshape(size, -1)[:last]]

    def start(send: Any, recv: Any) -> Steps:
        table, rows = new_table(send.size * copies)
        yield from begin(send, table)
        if rows:
            fold(rows, recv)

    if move is None:
        return Implementation(start, any_size=moved.any_size)
    table, rows = new_table(sum(call.counts) * copies)  # only one call at a time blocks
    pair = fold.pair if last == 2 else None

    def blocking(send: Any, recv: Any) -> None:
        nonlocal table, rows
        if table.size != send.size * copies:
            table, rows = new_table(send.size * copies)
        move(*arguments(send, table))
        if pair is not None:
            pair(*rows, recv)
        elif rows:
            fold(rows, recv)

    return Implementation(start, blocking, any_size=moved.any_size)
