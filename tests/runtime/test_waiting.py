"""The loop that waits: deadlines and gates."""

import math
import threading
import time
from itertools import repeat

import pytest

from hpccomm.errors import CollectiveTimeout, CommunicatorAborted
from hpccomm.runtime.waiting import Gate, drive, wait

SHORT = 0.05
SOON = 30.0


def expired(elapsed: float) -> CollectiveTimeout:
    return CollectiveTimeout(f"after {elapsed}", elapsed=elapsed)


ENDLESS = [
    lambda timeout, gate: wait(lambda: False, timeout=timeout, gate=gate, expired=expired),
    lambda timeout, gate: drive(repeat(False), timeout=timeout, gate=gate, expired=expired),
    lambda timeout, gate: drive(repeat(True), timeout=timeout, gate=gate, expired=expired),
]
"""Polls in vain, steps in vain, and steps that always find something."""


@pytest.mark.parametrize("endless", ENDLESS)
def test_the_deadline_passes(endless) -> None:
    before = time.perf_counter()
    with pytest.raises(CollectiveTimeout) as caught:
        endless(SHORT, Gate())
    assert SHORT < caught.value.elapsed <= time.perf_counter() - before < SOON


@pytest.mark.parametrize("endless", ENDLESS)
def test_a_gate_is_shut_from_another_thread_and_its_first_error_stays(endless) -> None:
    gate = Gate()
    timer = threading.Timer(SHORT, gate.shut, (CommunicatorAborted("first"),))
    timer.start()
    for _ in range(2):
        with pytest.raises(CommunicatorAborted, match="first"):
            endless(math.inf, gate)
        gate.shut(CommunicatorAborted("second"))
    timer.join()


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
