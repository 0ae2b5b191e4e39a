"""Hooks and counts: a program's information about its calls."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccomm import CommOptions
from hpccomm.errors import CommunicatorAborted, HpccommError
from hpccomm.testing.conformance.case import Behaviours
from hpccomm.testing.conformance.check import raises
from hpccomm.testing.conformance.creation import another
from hpccomm.testing.conformance.failures import SHORT, has_failed

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

OBSERVERS = Behaviours("observers")
FAILURES = Behaviours("failures")


@OBSERVERS.behaviour()
def hooks_come_off(comm: Communicator) -> None:
    """After `remove`, a hook hears nothing; removing again does nothing."""
    heard: list[str] = []
    first = comm.register_pre_hook(lambda _: heard.append("first"))
    second = comm.register_pre_hook(lambda _: heard.append("second"))
    comm.barrier()
    first.close()
    first.close()
    comm.barrier()
    second.close()
    comm.barrier()
    assert heard == ["first", "second", "second"], heard


@OBSERVERS.behaviour()
def hooks_do_not_hear_refused_calls(comm: Communicator) -> None:
    """A call that is refused for its arguments is no call."""
    heard: list[Any] = []
    handle = comm.register_pre_hook(heard.append)
    with raises(HpccommError):
        comm.broadcast(np.zeros(2), comm.size)
    handle.close()
    assert heard == [], heard
    comm.barrier()


@OBSERVERS.behaviour()
def slow_calls_are_logged(comm: Communicator) -> None:
    """A call that took `slow_call` seconds or more is logged with its name and communicator."""
    messages: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    name = f"slow{comm.rank}"
    listener = Listener()
    logger = logging.getLogger("hpccomm")
    logger.addHandler(listener)
    try:
        with another(comm, name=name, options=CommOptions(slow_call=1e-9)) as slow:
            slow.all_reduce(np.zeros(4))
        with another(comm, name=name + "not", options=CommOptions(slow_call=math.inf)) as fast:
            fast.all_reduce(np.zeros(4))
    finally:
        logger.removeHandler(listener)
    told = [text for text in messages if "slow call" in text and name in text]
    assert any("all_reduce" in text and "32 bytes" in text for text in told), messages
    assert not any(name + "not" in text for text in told), told


@OBSERVERS.behaviour(fails=True)
def abort_hooks(comm: Communicator) -> None:
    """A hook learns, once, why the communicator failed; one that came off does not."""
    heard: list[BaseException] = []
    comm.register_abort_hook(heard.append)
    comm.register_abort_hook(lambda _: heard.clear()).close()
    comm.abort()
    comm.abort()
    assert len(heard) == 1, heard
    assert isinstance(heard[0], CommunicatorAborted), heard[0]


@OBSERVERS.behaviour(fails=True)
def stats_count_calls(comm: Communicator) -> None:
    """`stats` counts calls, bytes and seconds by collective and size class, from nothing."""
    assert not comm.stats(), comm.stats()
    for _ in range(3):
        comm.all_reduce(np.zeros(4))
    comm.all_reduce(np.zeros(1 << 16), async_op=True).wait()
    comm.barrier()
    counted = comm.stats()
    small = [row for key, row in counted.items() if key[0] == "all_reduce" and row.calls == 3]
    large = [row for key, row in counted.items() if key[0] == "all_reduce" and row.calls == 1]
    assert len(small) == 1, counted
    assert len(large) == 1, counted
    assert small[0].nbytes == 3 * 32, counted
    assert large[0].nbytes == 8 << 16, counted
    assert small[0].seconds > 0, counted
    barriers = [row for key, row in counted.items() if key[0] == "barrier"]
    assert [row.calls for row in barriers] == [1], counted


def _raising(_info: object) -> None:
    raise KeyError("from a hook")


@FAILURES.behaviour(min_size=2, fails=True)
def a_hook_that_raises_hides_no_failure(comm: Communicator) -> None:
    """The communicator has failed also where a hook of the user's raises over it."""
    if comm.rank == comm.size - 1:
        return
    handle = comm.register_post_hook(_raising)
    with raises(KeyError, "from a hook"):
        comm.recv(np.ones(3), comm.size - 1, timeout=SHORT)
    handle.close()
    has_failed(comm)


@FAILURES.behaviour(min_size=2, fails=True)
def a_hook_that_raises_before_a_call(comm: Communicator) -> None:
    """Nothing is sent, and the communicator has failed: the other ranks may have made the call."""
    if comm.rank == comm.size - 1:
        return
    handle = comm.register_pre_hook(_raising)
    with raises(KeyError, "from a hook"):
        comm.all_reduce(np.ones(3), timeout=SHORT)
    handle.close()
    has_failed(comm)
