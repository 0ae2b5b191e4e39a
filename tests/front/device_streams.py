"""Calls on a device keep the order of its streams, and do not block the host."""

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from front.device_inputs import MANY, device_of, filled, full, gathered, holds, ranks_sum, stream_of
from hpccomm import Communicator
from hpccomm.testing.conformance.case import Array, Behaviours

STREAMS = Behaviours("devices.streams")

TURNS = 5
"""How often what might go wrong by chance is tried."""

LATE = 0.3
"""Seconds by which a rank is late, on purpose."""


@STREAMS.behaviour(current=(stream_of, device_of))
def the_current_stream(comm: Communicator, current: Callable[[Communicator], Any]) -> None:
    """A call comes after earlier work on CuPy's current stream, or CUDA's default one, and before later work."""
    with current(comm):
        for turn in range(TURNS):
            x = filled(comm)
            comm.all_reduce(x)
            y = x * 2
            x.fill(-1)  # the call is over for the stream
            holds(y, full(2 * ranks_sum(comm)), f"all_reduce, turn {turn}")
            x = filled(comm)
            every = comm.all_gather(x)
            x.fill(-1)
            holds(every, gathered(comm), f"all_gather, turn {turn}")


@STREAMS.behaviour()
def plans_one_after_the_other(comm: Communicator) -> None:
    """Plans go on the stream that is current when they are called, in their order."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with device_of(comm) as module:
        x, out = filled(comm), module.zeros(MANY, np.float32)
        module.cuda.Device(comm.device).synchronize()
        reduction = comm.plan("all_reduce", x)
        ring = comm.plan("send_recv", x, right, out, left)
    for turn in range(TURNS):
        with stream_of(comm):
            x.fill(comm.rank + turn)
            reduction()
            ring()
            both = x + out
            x.fill(-1)  # the plans are over for the stream
            holds(both, full(2 * (ranks_sum(comm) + comm.size * (turn - 1))), f"turn {turn}")


class Protocol:
    """A stream of another library: it has CUDA's protocol and nothing else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.ptr


KINDS: dict[str, Any] = {
    "CuPy's": lambda stream: stream,
    "number": lambda stream: stream.ptr,
    "protocol": Protocol,
}


@STREAMS.behaviour(name=KINDS)
def a_stream_that_is_named(comm: Communicator, name: str) -> None:
    """``stream=`` orders the call there, with any current stream."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    calls: tuple[tuple[int, Callable[..., object], Array], ...] = (
        (MANY, lambda x, out, on: comm.all_reduce(x, out=out, stream=on), full(ranks_sum(comm))),
        (
            comm.size * 10,
            lambda x, out, on: comm.all_to_all(x, out=out, stream=on),
            gathered(comm, 10).reshape(-1),
        ),
        (10, lambda x, out, on: comm.send_recv(x, right, out, left, stream=on), full(left + 1, 10)),
    )
    with stream_of(comm), device_of(comm) as module:
        stream = module.cuda.Stream(non_blocking=True)
        for turn, (count, call, expected) in product(range(TURNS), calls):
            with stream:
                x = filled(comm, count)
                out = module.zeros_like(x)
            call(x, out, KINDS[name](stream))
            with stream:
                holds(out + 1, expected + 1, f"{count} elements, turn {turn}")


@STREAMS.behaviour(min_size=2, asynchronous=(False, True))
def the_host_goes_on(comm: Communicator, asynchronous: bool) -> None:
    """A call, or `wait`, returns while a rank has yet to come; what follows on the stream waits."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x, async_op=True).wait(block=True)  # what the first call makes may block
        comm.barrier()
        last = comm.rank == comm.size - 1
        if last:
            time.sleep(LATE)
        before = time.monotonic()
        work = comm.all_reduce(x, async_op=asynchronous)
        if asynchronous:
            work.wait()
        y = x + 1
        took = time.monotonic() - before
        done = stream.done or (asynchronous and work.done())
        assert last or took < LATE / 2, f"the call held the host up for {took:.3f} s"
        assert last or not done, "the stream went on before the last rank came"
        holds(y, full(comm.size * ranks_sum(comm) + 1), "result")


@STREAMS.behaviour()
def arrays_that_are_given_up(comm: Communicator) -> None:
    """An array may be dropped as soon as the call on another stream returned: it is kept till then."""
    with stream_of(comm) as current, device_of(comm) as module:
        stream = module.cuda.Stream(non_blocking=True)
        for turn in range(TURNS):
            x, out = filled(comm), module.empty((comm.size, MANY), np.float32)
            stream.wait_event(current.record())
            with stream:
                module.zeros(1 << 22)  # the stream comes late to the call
            comm.all_gather(x, out=out, stream=stream)
            del x
            # The pool reuses memory without references.
            other = [module.empty(MANY, np.float32) for _ in range(3)]
            for each in other:
                each.fill(-1)
            current.wait_event(stream.record())
            holds(out, gathered(comm), f"turn {turn}")
