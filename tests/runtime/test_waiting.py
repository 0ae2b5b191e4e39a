"""The loop that waits: deadlines, gates, and patience."""

import math
import threading
import time
from collections.abc import Iterator

import pytest

from hpccomm.errors import CollectiveTimeout, CommunicatorAborted
from hpccomm.runtime.waiting import SPINS, YIELD_SECONDS, Gate, Patience, drive, wait

SHORT = 0.05
SOON = 30.0


def expired(elapsed: float) -> CollectiveTimeout:
    return CollectiveTimeout(f"after {elapsed}", elapsed=elapsed)


def never() -> Iterator[bool]:
    while True:
        yield False


def busy() -> Iterator[bool]:
    while True:
        yield True


def wait_for_ever(timeout: float, gate: Gate) -> None:
    wait(lambda: False, timeout=timeout, gate=gate, expired=expired)


def drive_for_ever(timeout: float, gate: Gate) -> None:
    drive(never(), timeout=timeout, gate=gate, expired=expired)


def drive_busily(timeout: float, gate: Gate) -> None:
    drive(busy(), timeout=timeout, gate=gate, expired=expired)


ENDLESS = [wait_for_ever, drive_for_ever, drive_busily]


@pytest.mark.parametrize("endless", ENDLESS)
def test_the_deadline_passes(endless) -> None:
    before = time.perf_counter()
    with pytest.raises(CollectiveTimeout) as caught:
        endless(SHORT, Gate())
    assert SHORT < caught.value.elapsed <= time.perf_counter() - before < SOON


@pytest.mark.parametrize("endless", ENDLESS)
def test_a_gate_is_shut_from_another_thread(endless) -> None:
    gate = Gate()
    timer = threading.Timer(SHORT, gate.shut, (CommunicatorAborted("given up"),))
    timer.start()
    with pytest.raises(CommunicatorAborted, match="given up"):
        endless(math.inf, gate)
    timer.join()


def test_the_first_error_of_a_gate_stays() -> None:
    gate = Gate()
    gate.shut(CommunicatorAborted("first"))
    gate.shut(CommunicatorAborted("second"))
    with pytest.raises(CommunicatorAborted, match="first"):
        wait_for_ever(math.inf, gate)


def test_what_is_there_is_taken_whatever_the_gate_and_the_deadline() -> None:
    gate = Gate(CommunicatorAborted("shut"))
    wait(lambda: True, timeout=1e-9, gate=gate, expired=expired)
    drive(iter(()), timeout=1e-9, gate=gate, expired=expired)


def test_what_comes_while_the_deadline_passes_is_taken() -> None:
    polls = iter([False, False, True])

    def slow() -> bool:
        time.sleep(SHORT)
        return next(polls)

    wait(slow, timeout=SHORT / 2, gate=Gate(), expired=expired)


def test_errors_of_what_is_polled_come_through() -> None:
    def failing() -> Iterator[bool]:
        yield False
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive(failing(), timeout=math.inf, gate=Gate(), expired=expired)


def test_patience_spins_then_yields_then_naps() -> None:
    patience = Patience()
    for _ in range(SPINS + 2):
        patience.pause()
    assert not patience.napping
    patience.since -= 2 * YIELD_SECONDS
    patience.pause()
    assert patience.napping
    patience.reset()
    assert (patience.turns, patience.napping) == (0, False)
