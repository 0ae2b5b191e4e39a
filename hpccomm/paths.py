"""Which way an array goes, decided once for calls that ask for the same.

The host path takes the backend's own collective where it has one that means the same, else one of
hpccomm's algorithms over the backend's point-to-point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hpccomm import policy
from hpccomm.algorithms import ALGORITHMS
from hpccomm.contracts.backend import Backend, Buffer, Native
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.signature import Signature
from hpccomm.dtypes import is_narrow
from hpccomm.execution import completed
from hpccomm.execution import steps as schedule_steps
from hpccomm.reductions import PremulSum, ReduceOp, finish_average, identity, premultiply
from hpccomm.waiting import Steps

Run = Callable[[Buffer, Buffer], None]
Start = Callable[[Buffer, Buffer], Steps]
Before = Callable[[Buffer], Buffer]
After = Callable[[Buffer], None]


@dataclass(frozen=True, slots=True)
class Way:
    """How calls of one signature are carried out.

    Attributes
    ----------
    choice : Choice
        What was decided.
    start : callable
        ``start(send, recv)`` gives the polled steps.
    run : callable or None
        ``run(send, recv)`` blocks in the backend's library; synchronous calls take it where it is
        there.
    """

    choice: Choice
    start: Start
    run: Run | None = None


class HostPath:
    """The way of arrays in host memory.

    Parameters
    ----------
    backend : Backend
        Moves the data.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def applicable(self, call: Signature, deterministic: bool) -> tuple[str, ...]:
        """Return the names that ``algorithm=`` may take for calls like `call`."""
        native = self._backend.native(_carried_out(call)) is not None
        return policy.applicable(call, native=native, deterministic=deterministic)

    def decide(self, call: Signature, algorithm: str, deterministic: bool) -> Way:
        """Decide how calls like `call` are carried out. Local; the same on every rank.

        Raises
        ------
        UsageError
            If `algorithm` does not apply.
        """
        backend = self._backend
        inner = _carried_out(call)
        native = backend.native(inner)
        decision = policy.decide(
            call,
            algorithm,
            native=native is not None,
            backend=backend.name,
            deterministic=deterministic,
        )
        choice = Choice(
            collective=call.name,
            path="host",
            backend=backend.name,
            algorithm=decision.algorithm,
            segment=None,
            registered=False,
            reason=decision.reason,
        )
        before, after = _before(call), _after(call, decision.algorithm, backend)
        if decision.algorithm == policy.NATIVE:
            assert native is not None
            return _way(choice, before, _polled(native), native.run, after)
        if deterministic and call.collective == "scan" and _rounds_narrow(call):
            return Way(choice, self._widened(call, algorithm))
        build = ALGORITHMS[call.collective][decision.algorithm]
        schedule = build(backend.rank, backend.size, inner)

        def start(send: Buffer, recv: Buffer) -> Steps:
            return schedule_steps(schedule, inner, backend.collectives, send, recv)

        return _way(choice, before, start, None, after)

    def _widened(self, call: Signature, algorithm: str) -> Start:
        """Scan narrow floats in float32, so that they are rounded once and not at each hop."""
        wide = replace(call, dtype=np.dtype(np.float32), in_place=False)
        start = self.decide(wide, algorithm, True).start

        def start_wide(send: Buffer, recv: Buffer) -> Steps:
            assert send is not None
            assert recv is not None
            result = np.empty(recv.size, np.float32)
            yield from start(send.astype(np.float32), result)
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(recv, result, casting="unsafe")
            if call.exclusive and self._backend.rank == 0:
                assert call.op is not None
                recv.fill(identity(call.op, call.dtype))  # float32's may not fit

        return start_wide


def _rounds_narrow(call: Signature) -> bool:
    return is_narrow(call.dtype) and isinstance(call.op, ReduceOp | PremulSum)


def _polled(native: Native) -> Start:
    def start(send: Buffer, recv: Buffer) -> Steps:
        return completed([native.start(send, recv)])

    return start


def _carried_out(call: Signature) -> Signature:
    """Return the call that is left once contributions are multiplied beforehand."""
    if isinstance(call.op, PremulSum):
        return replace(call, op=ReduceOp.SUM, in_place=False)
    return call


def _before(call: Signature) -> Before | None:
    """Return what makes the contribution of `send`, or None if it is that itself."""
    op = call.op
    if not isinstance(op, PremulSum):
        return None

    def scaled(send: Buffer) -> Buffer:
        assert send is not None
        product = np.empty_like(send)  # the user's array stays as it is
        premultiply(op, send, product)
        return product

    return scaled


def _after(call: Signature, algorithm: str, backend: Backend) -> After | None:
    """Return what is left to do on `recv`, or None."""
    if call.op is ReduceOp.AVG and algorithm == policy.NATIVE:
        return lambda recv: None if recv is None else finish_average(recv, backend.size)
    if call.exclusive and backend.rank == 0:
        assert call.op is not None
        neutral = identity(call.op, call.dtype)
        return lambda recv: None if recv is None else recv.fill(neutral)
    return None


def _way(
    choice: Choice, before: Before | None, start: Start, run: Run | None, after: After | None
) -> Way:
    if before is None and after is None:
        return Way(choice, start, run)

    def start_all(send: Buffer, recv: Buffer) -> Steps:
        yield from start(before(send) if before else send, recv)
        if after:
            after(recv)

    if run is None:
        return Way(choice, start_all)
    blocking = run

    def run_all(send: Buffer, recv: Buffer) -> None:
        blocking(before(send) if before else send, recv)
        if after:
            after(recv)

    return Way(choice, start_all, run_all)
