"""The conformance suite finds the faults of backends: some are planted here, and its cases must fail."""

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from together import LATE

from hpccomm import CommOptions, HpccommError, ReduceOp, UsageError
from hpccomm.backends import loopback
from hpccomm.backends.loopback import (
    LoopbackBackend,
    LoopbackExposure,
    LoopbackMemory,
    LoopbackOneSided,
    LoopbackSideChannel,
    LoopbackTransport,
)
from hpccomm.contracts.backend import Implementation
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Arrival, Wanted
from hpccomm.testing import conformance, run_ranks
from hpccomm.testing.conformance import survival
from hpccomm.testing.conformance.case import equal, raises, same_bits
from hpccomm.testing.conformance.oracle import MOVABLE, PAIRS, poison, reduced, reduction

CASES = {case.name: case for case in conformance.cases()}

Plant = Callable[[pytest.MonkeyPatch], None]


def test_the_tools_of_cases_see_what_differs() -> None:
    for dtype in MOVABLE:
        expected = np.zeros(9, dtype)
        assert not (poison(expected).view(np.uint8) == expected.view(np.uint8)).all()
    for size in (1, 3, 20):
        for op, of in PAIRS:  # whatever the order
            arrays = reduced(op, size, (50,), of)
            equal(reduction(op, arrays[::-1]), reduction(op, arrays), f"{op} of {of}")
    x = np.arange(3.0)
    equal(np.array([np.nan, *x]), np.array([np.nan, *x]))
    for other in (x.astype(np.float32), x.reshape(1, 3), x + 1e-15, list(x)):
        with pytest.raises(AssertionError):
            equal(other, x)
    with pytest.raises(AssertionError):
        same_bits(np.array(0.0), np.array(-0.0))
    with pytest.raises(AssertionError, match="lacks"), raises(UsageError, "dst"):
        raise UsageError("ROOT is 3")
    with pytest.raises(AssertionError, match="not raised"), raises(UsageError):
        pass
    with pytest.raises(ZeroDivisionError), raises(UsageError):
        raise ZeroDivisionError


def changed(name: str, change: Callable[..., Any], of: Any = LoopbackTransport) -> Plant:
    """Return what has `change` called with the method of that name of a class, and its arguments."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        method = getattr(of, name)
        # A fault is planted in a right backend.
        patch.setattr(of, name, lambda *its, **how: change(method, *its, **how))

    return plant


def both(*plants: Plant) -> Plant:
    return lambda patch: [plant(patch) for plant in plants]


# Collectives of the backend's own.


def natively(result: Callable[[Signature, list[Any]], Any]) -> Plant:
    """Have the backend carry out all_reduce and broadcast itself: `result` makes them of all ranks' arrays."""

    def native(
        _: Any, backend: LoopbackBackend, signature: Signature, *, apart: bool = False
    ) -> Implementation | None:
        if signature.collective not in ("all_reduce", "broadcast"):
            return None
        numbers = backend.__dict__.setdefault("numbers", count())
        context = (backend.uid, "native")
        ways = LoopbackTransport(backend.world, context, backend.members, backend.rank)

        def start(send: Any, recv: Any) -> Any:
            mine, number = recv if send is None else send, next(numbers)
            arrays = [np.empty_like(mine) for _ in backend.members]
            left = [ways.isend(mine, rank, number) for rank in range(backend.size)]
            left += [ways.irecv(each, rank, number) for rank, each in enumerate(arrays)]

            def done() -> bool:
                left[:] = [test for test in left if not test()]
                if left:
                    return False
                recv[...] = result(signature, arrays)
                return True

            return iter(done, True)

        return Implementation(start)

    return changed("native", native, LoopbackBackend)


def rightly(signature: Signature, arrays: list[Any]) -> Any:
    if signature.collective == "broadcast":
        return arrays[signature.root]
    # An average of the backend's own is a sum, which hpccomm divides.
    op: Any = ReduceOp.SUM if signature.op is ReduceOp.AVG else signature.op
    return reduction(op, arrays)


def divided(call: Signature, arrays: list[Any]) -> Any:
    return reduction(call.op, arrays) if call.op is ReduceOp.AVG else rightly(call, arrays)


def from_rank_0(call: Signature, arrays: list[Any]) -> Any:
    return arrays[0] if call.collective == "broadcast" else rightly(call, arrays)


def short(call: Signature, arrays: list[Any]) -> Any:
    """Leave the last element out."""
    return np.concatenate([rightly(call, arrays)[:-1], arrays[0][-1:]])


def without_nan(call: Signature, arrays: list[Any]) -> Any:
    if call.op is not ReduceOp.MIN:
        return rightly(call, arrays)
    return np.fmin.reduce([np.nan_to_num(each.astype(np.float32), nan=np.inf) for each in arrays])


# Messages.


def backwards(begun: Any, transport: Any, receive: Any, box: int) -> Any:
    """Let the last message that has arrived be received first."""
    # Nothing else than the mailbox has the order.
    with transport._world.box((transport.context, receive.src, transport.rank, box)) as mailbox:
        mailbox.messages.reverse()
    return begun(transport, receive, box)


def again(isend: Any, *its: Any) -> Any:
    """Send a message twice."""
    isend(*its)
    return isend(*its)


def blocked(irecv: Any, *its: Any) -> Any:
    """Wait for a message in the library, whatever the deadline."""
    test, until = irecv(*its), time.monotonic() + 1
    while time.monotonic() < until and not test():
        pass
    return test


def impatient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(survival, "SOON", 0.5)  # 5 s on a busy machine, which this test would wait


def unwaited(isend: Any, *its: Any) -> Any:
    """Tell who sends that the send is complete, as if it did not wait for it: its array may change before it leaves."""
    isend(*its)
    return lambda: True


def flipped(isend: Any, transport: Any, data: Any, dst: int, tag: int) -> Any:
    """Change the last byte of a message of more than 1 MiB."""
    if data.nbytes > 1 << 20:
        data = data.copy()
        data.reshape(-1).view(np.uint8)[-1] ^= 1
    return isend(transport, data, dst, tag)


def counting_elements(take: Any, *its: Any) -> Iterator[bool]:
    """Let a probe tell the number of elements for that of bytes."""
    arrival = yield from take(*its)
    return arrival and Arrival(arrival[0], arrival.tag, arrival.nbytes // 8, arrival.receive)


# Windows, memory, groups and the end.


def of_ones_own(get: Any, window: Any, into: Any, _src: int, start: int) -> Any:
    """Read one's own memory."""
    return get(window, into, window.signals.rank, start)


def slow(get: Any, *its: Any) -> Any:
    request = get(*its)
    time.sleep(0.001)  # time for another rank
    return request


MEMORY = np.empty(1 << 22, np.uint8)
"""What all arrays have, by mistake."""


def sharing_messages(_: Any, its: Any, ranks: Any, _label: int) -> LoopbackBackend:
    """Give a group the context of its parent."""
    members = [its.members[rank] for rank in ranks]
    context = its._context  # which no right backend would have twice
    return LoopbackBackend(its.world, context, members, list(ranks).index(its.rank))


UIDS = count()


FAULTS: dict[Plant, tuple[str, ...]] = {
    natively(divided): ("collectives.reductions[all_reduce-AVG]",),
    natively(from_rank_0): (
        "collectives.moved[broadcast-float32]",
        "collectives.forms[broadcast-call]",
    ),
    natively(short): ("collectives.reductions[all_reduce-SUM]",),
    natively(without_nan): ("collectives.nan_spreads[MIN]",),
    changed("_begun", backwards): ("transport.messages_of_all_sizes[False]",),
    changed("isend", again): ("transport.messages_of_all_sizes[False]",),
    changed("isend", unwaited): (
        "collectives.forms[all_reduce-call]",
        "transport.planned_messages[40000]",
    ),
    changed("isend", flipped): ("transport.messages_of_all_sizes[False]",),
    both(changed("irecv", blocked), impatient): ("survival.a_call_times_out[recv]",),
    changed("planned", lambda _, backend: backend.messages, LoopbackBackend): (
        "transport.planned_messages[3]",
    ),
    changed("take", counting_elements): ("arrivals.what_a_probe_tells[int16]",),
    changed("take", lambda take, way, it: take(way, Wanted(it.src or 1, *it[1:]))): (
        "arrivals.from_any_sender[False]",
    ),
    changed("put", lambda put, its, data, dst, start: put(its, data, dst, 0), LoopbackOneSided): (
        "window.put_round_a_ring[off-float32]",
    ),
    changed("get", of_ones_own, LoopbackOneSided): ("window.get_from_every_rank[off]",),
    both(
        changed("get", slow, LoopbackOneSided),
        *(
            changed(name, lambda *_: lambda: True, LoopbackOneSided)
            for name in ("acquire", "release")
        ),
    ): ("window.a_lock_of_ones_own[off]",),
    changed(
        "peer_buffer", lambda of, its, peer, *x: of(its, (peer + 1) % 3, *x), LoopbackExposure
    ): ("shared_memory.arrays_lie_anywhere[reduce-auto-plain]",),
    changed("empty", lambda _, memory, nbytes: MEMORY[:nbytes], LoopbackMemory): (
        "memory.arrays_are_apart",
    ),
    changed(
        "group", lambda group, its, ranks, *x: group(its, sorted(ranks), *x), LoopbackBackend
    ): ("groups.split_ranks",),
    changed("group", sharing_messages, LoopbackBackend): (
        "transport.messages_and_collectives_mix",
    ),
    changed(
        "ask", lambda ask, its, ranks, *x: ask(its, list(ranks)[1:], *x), LoopbackSideChannel
    ): ("survival.ranks_answer_while_others_wait",),
    changed("group_uid", lambda *_: str(next(UIDS)), loopback): (
        "survival.ranks_answer_while_others_wait",
    ),
}
"""Faults of a backend, and cases that find them."""

UNCHECKED = CommOptions(self_check=False, check="off")
"""Some faults would not get past the checks that a communicator makes of itself, and of first calls."""


def run(name: str) -> None:
    run_ranks(3, CASES[name].run, timeout=12, options=UNCHECKED, late_sends=LATE)


@pytest.mark.slow("where a call waits for another rank, until its deadline")
@pytest.mark.parametrize(
    ("plant", "name"), [(plant, name) for plant, names in FAULTS.items() for name in names]
)
def test_a_planted_fault_is_found(plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with warnings.catch_warnings():  # calls under way are dropped where a case fails
        warnings.simplefilter("ignore")
        with pytest.raises((AssertionError, HpccommError, ValueError)):
            run(name)
        gc.collect()


@pytest.mark.parametrize("plant", [None, natively(rightly)])
def test_the_same_cases_pass_without_a_fault(
    plant: Plant | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plant is not None:
        plant(monkeypatch)
    for name in dict.fromkeys(name for names in FAULTS.values() for name in names):
        run(name)
