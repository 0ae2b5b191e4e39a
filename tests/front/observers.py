"""Hooks and counts: a program's information about its calls."""

import logging
import math
from contextlib import closing
from typing import Any

import numpy as np

from hpccomm import ANY, CommOptions, Communicator
from hpccomm.errors import CommunicatorAborted, HpccommError
from hpccomm.testing.conformance.case import Behaviours, raises
from hpccomm.testing.conformance.collectives import another

OBSERVERS = Behaviours("observers")


@OBSERVERS.behaviour()
def hooks_see_calls(comm: Communicator) -> None:
    """A hook before and one after each call learn which it is, how much it moves and how long."""
    before: list[Any] = []
    after: list[Any] = []
    pre, post = comm.register_pre_hook(before.append), comm.register_post_hook(after.append)
    with closing(pre), closing(post):
        comm.all_reduce(np.zeros(4))
        comm.broadcast(np.zeros(2, np.int8))
        comm.barrier()
        comm.all_gather_object("x")
        comm.all_reduce(np.zeros(8), async_op=True).wait()
    operations = ["all_reduce", "broadcast", "barrier", "all_gather_object", "all_reduce"]
    assert [info.operation for info in after] == operations, after
    assert [info.nbytes for info in before if "object" not in info.operation] == [32, 2, 0, 64], (
        before
    )
    for first, last in zip(before, after, strict=True):
        assert (first.rank, first.communicator, first.elapsed) == (comm.rank, comm.name, None)
        assert (last.operation, last.sequence) == (first.operation, first.sequence), (first, last)
        assert last.elapsed >= 0, last
        assert last.error is None, last
    sequences = [info.sequence for info in before]
    assert sequences == sorted(set(sequences)), "sequence numbers grow"
    # They have come off. What is refused for its arguments is no call.
    comm.barrier()
    second = comm.register_pre_hook(before.append)
    pre.close()
    with raises(HpccommError):
        comm.broadcast(np.zeros(2), comm.size)
    comm.reduce(np.zeros(2))
    second.close()
    comm.barrier()
    assert [info.operation for info in before] == [*operations, "reduce"], before


@OBSERVERS.behaviour()
def slow_calls_are_logged(comm: Communicator) -> None:
    """A call that took `slow_call` seconds or more is logged with its name and communicator."""
    messages: list[str] = []
    listener, logger = logging.Handler(), logging.getLogger("hpccomm")
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    name = f"slow{comm.rank}"
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
    for count in (4, 1 << 16):
        work = comm.send(np.zeros(count), (comm.rank + 1) % comm.size, async_op=True)
        comm.recv(np.zeros(count), ANY)
        work.wait()
    comm.barrier()
    counted = comm.stats()
    assert {key: (row.calls, row.nbytes) for key, row in counted.items()} == {
        ("all_reduce", "to 1 KiB"): (3, 3 * 32),
        ("all_reduce", "to 1 MiB"): (1, 8 << 16),
        **{
            (name, size): (1, nbytes)
            for name in ("send", "recv")
            for size, nbytes in (("to 1 KiB", 32), ("to 1 MiB", 8 << 16))
        },
        ("barrier", "0 B"): (1, 0),
    }
    assert counted["all_reduce", "to 1 KiB"].seconds > 0, counted
