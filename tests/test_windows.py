"""Windows: behaviour beyond the conformance suite, and faults that the suite must find."""

import time
from collections.abc import Callable

import numpy as np
import pytest

import front
from hpccomm import Communicator, HpccommError, UsageError
from hpccomm.backends.loopback import LoopbackBackend, LoopbackOneSided
from hpccomm.communicator.windows import Window
from hpccomm.communicator.windows.access import Access, Array
from hpccomm.contracts.transport import Steps
from hpccomm.testing import conformance, run_ranks

CASES = {case.name: case for case in (*conformance.cases(), *front.cases())}

Patch = pytest.MonkeyPatch


def slowly_added(comm: Communicator) -> float:
    """What rank 0 has when all ranks have added to it at the same time, and took their time."""

    def slowly(a: Array, b: Array) -> Array:
        total: Array = a + b
        time.sleep(0.002)
        return total

    memory = np.zeros(1)
    with comm.window(memory) as window:
        for turn in range(5):
            if (comm.rank + turn) % 2:
                window.accumulate(np.ones(1), 0, op=slowly)
            else:
                window.fetch_and_op(1.0, 0, op=slowly)
    return float(memory[0])


@pytest.mark.parametrize("per_node", [4, 2])
def test_no_accumulate_meets_another(per_node: int) -> None:
    assert run_ranks(4, slowly_added, ranks_per_node=per_node)[0] == 20.0


def test_the_lock_is_what_keeps_them_apart(monkeypatch: Patch) -> None:
    for name in ("acquire", "release"):
        monkeypatch.setattr(LoopbackOneSided, name, lambda self, dst: lambda: True)
    assert run_ranks(4, slowly_added)[0] < 20.0


def test_a_function_that_fails_gives_the_lock_back() -> None:
    def run(comm: Communicator) -> float:
        memory = np.zeros(1)

        def fails_at_last(a: Array, b: Array) -> Array:
            if 0.0 in a:  # not when it is tried, before anything is sent
                raise ZeroDivisionError
            return np.asarray(a + b)

        with comm.dup() as other:
            window = other.window(memory)
            comm.barrier()
            if comm.rank == 1:
                with pytest.raises(ZeroDivisionError):
                    window.accumulate(np.ones(1), 0, op=fails_at_last)
            comm.barrier()
            if comm.rank != 1:
                window.accumulate(np.ones(1), 0, timeout=60.0)
            comm.barrier()
            other.abort()
        return float(memory[0])

    assert run_ranks(3, run)[0] == 2.0


def test_asynchronous_calls_go_on_beside_a_window() -> None:
    def run(comm: Communicator) -> None:
        memory, x = np.zeros(50_000), np.ones(50_000)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        with comm.window(memory) as window:
            # The reduction ends only after the put, on the other ranks: so the put must not wait.
            if comm.rank == 0:
                work = comm.all_reduce(x, async_op=True)
                window.put(np.full(50_000, 7.0), right)
                window.signal(right)
            else:
                window.wait_signal(left)
                window.put(np.full(50_000, 7.0), right)
                window.signal(right)
                work = comm.all_reduce(x, async_op=True)
            work.wait()
            if comm.rank == 0:
                window.wait_signal(left)
            assert (memory == 7.0).all()
            assert (x == comm.size).all()

    run_ranks(3, run)


def test_a_backend_without_one_sided_communication(monkeypatch: Patch) -> None:
    monkeypatch.setattr(LoopbackBackend, "window", lambda self: None)

    def run(comm: Communicator) -> None:
        with pytest.raises(UsageError, match=r"one-sided.*send and recv"):
            comm.window(np.zeros(1))
        comm.barrier()

    run_ranks(2, run)


def starts_at_zero(patch: Patch) -> None:
    put = Access.put

    def faulty(self: Access, data: Array, dst: int, start: int) -> Steps:
        return put(self, data, dst, 0)

    patch.setattr(Access, "put", faulty)


def only_one_block_is_folded(patch: Patch) -> None:
    patch.setattr(
        "hpccomm.communicator.windows.access.range", lambda *span: [span[0]], raising=False
    )


def a_fence_waits_for_nobody(patch: Patch) -> None:
    def fenced(self: Window) -> Steps:
        time.sleep(0.002 * self._rank)
        yield True

    patch.setattr(Window, "_fenced", fenced)


def bounds_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(Window, "_place", lambda self, name, rank, offset, count: (rank, 0))


def every_signal_is_the_same(patch: Patch) -> None:
    patch.setattr(Window, "_signalled", lambda self, name, rank, index: (rank, 0))


def nothing_is_locked(patch: Patch) -> None:
    get = Access.get

    def slow(self: Access, into: Array, src: int, start: int) -> Steps:
        yield from get(self, into, src, start)
        time.sleep(0.001)

    patch.setattr(Access, "get", slow)
    for name in ("acquire", "release"):
        patch.setattr(LoopbackOneSided, name, lambda self, dst: lambda: True)


def every_comparison_holds(patch: Patch) -> None:
    swap = Access.compare_and_swap

    def faulty(
        self: Access, data: Array, expected: Array, old: Array, dst: int, start: int
    ) -> Steps:
        expected[:] = self._reached[dst][start : start + 1]
        return swap(self, data, expected, old, dst, start)

    patch.setattr(Access, "compare_and_swap", faulty)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (starts_at_zero, "windows.put_round_a_ring[float32]"),
        (only_one_block_is_folded, "windows.windows_by_messages_alone"),
        (a_fence_waits_for_nobody, "windows.fences_part_epochs"),
        (bounds_are_not_looked_at, "windows.misused_windows"),
        (every_signal_is_the_same, "windows.signals_are_counted"),
        (nothing_is_locked, "atomics.tickets"),
        (every_comparison_holds, "atomics.replace_and_read[float32]"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[Patch], None], name: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError, HpccommError)):
        run_ranks(3, CASES[name].run, timeout=5.0)
