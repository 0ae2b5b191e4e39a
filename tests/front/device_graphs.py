"""CUDA graphs: calls are captured once and replayed on the arrays' new contents."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hpccomm
from front.device_inputs import filled, full, holds, ranks_sum, stream_of
from hpccomm import Communicator, ReduceOp
from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import cupy
from hpccomm.testing.conformance.case import Behaviours, raises

GRAPHS = Behaviours("devices.graphs")

COUNT = 1000
"""Elements."""

REPLAYS = 3


@contextmanager
def capture(stream: Any) -> Iterator[list[Any]]:
    """Capture the work on the stream; the list holds the graph after the block.

    In the mode that lets other threads of the process go on as they like.
    """
    graph: list[Any] = []
    stream.begin_capture(cupy().cuda.runtime.streamCaptureModeThreadLocal)
    try:
        yield graph
    except BaseException:
        stream.end_capture()
        raise
    graph.append(stream.end_capture())


def in_a_batch(comm: Communicator, x: Any, out: Any) -> None:
    with comm.batch():
        comm.recv(out, (comm.rank - 1) % comm.size)
        comm.send(x, (comm.rank + 1) % comm.size)


CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "all_reduce": lambda c, x, _: c.all_reduce(x),
    "out": lambda c, x, out: c.all_reduce(x, out=out),
    "max": lambda c, x, _: c.all_reduce(x, ReduceOp.MAX),
    "premul_sum": lambda c, x, _: c.all_reduce(x, hpccomm.premul_sum(1)),
    "own algorithm": lambda c, x, _: c.all_reduce(x, algorithm="recursive_doubling"),
    "ring": lambda c, x, _: c.all_reduce(x, algorithm="ring"),
    "scan": lambda c, x, out: c.scan(x, out=out, algorithm="linear"),
    "all_to_all": lambda c, x, out: c.all_to_all(x, out=out),
    "in place": lambda c, x, _: c.all_to_all(x, out=x),
    "batch": in_a_batch,
    "broadcast": lambda c, x, _: c.broadcast(x, c.size - 1),
    "send_recv": lambda c, x, out: c.send_recv(
        x, (c.rank + 1) % c.size, out, (c.rank - 1) % c.size
    ),
}


@GRAPHS.behaviour(name=(*CALLS, "plan"))
def replayed(comm: Communicator, name: str) -> None:
    """A replayed call has the same effect as a direct one."""
    if name == "premul_sum" and comm.size == 1:
        return  # NCCL is not called for one rank, and the host multiplies
    with stream_of(comm) as stream:
        x, out = filled(comm, COUNT * comm.size), filled(comm, COUNT * comm.size)
        planned = comm.plan("all_reduce", x, ReduceOp.MAX, algorithm="ring")

        def call() -> None:
            planned() if name == "plan" else CALLS[name](comm, x, out)

        call()  # the first call may allocate
        with capture(stream) as graph:
            call()
        for turn in range(REPLAYS):
            x.fill(comm.rank + turn)
            out.fill(-1)
            graph[0].launch(stream)
            replayed = x.copy(), out.copy()
            x.fill(comm.rank + turn)
            out.fill(-1)
            call()
            for result, theirs in zip(replayed, (x, out), strict=True):
                holds(result, theirs.get(), f"{name}, replay {turn}")


@GRAPHS.behaviour()
def captured_asynchronously(comm: Communicator) -> None:
    """An asynchronous call forks from the stream, and `wait` joins it again."""
    with stream_of(comm) as stream:
        x, y = filled(comm), filled(comm)
        comm.all_reduce(x, async_op=True).wait()
        y *= 2  # a kernel must not be loaded in a capture
        x += y
        with capture(stream) as graph:
            work = comm.all_reduce(x, async_op=True)
            y *= 2
            for ask in (work.done, work.exception, lambda: work.wait(block=True)):
                with raises(UsageError, "CUDA graph", "not under way"):
                    ask()
            with raises(UsageError, "CUDA graph"):
                work.add_done_callback(lambda: None)
            work.wait()
            x += y
        for turn in range(REPLAYS):
            x.fill(comm.rank + 1)
            y.fill(turn)
            graph[0].launch(stream)
            holds(x, full(ranks_sum(comm) + 2 * turn), f"replay {turn}")


@GRAPHS.behaviour()
def captured_calls_hold_their_arrays(comm: Communicator) -> None:
    """The memory of a graph lives as long as the communicator, without other references."""
    with stream_of(comm) as stream:
        out = filled(comm)
        x = filled(comm)
        comm.all_reduce(x, out=out)
        with capture(stream) as graph:
            comm.all_reduce(x, out=out)
        del x
        others = [filled(comm) for _ in range(4)]
        for other in others:
            other.fill(-7)
        for turn in range(REPLAYS):
            out.fill(turn)
            graph[0].launch(stream)
            holds(out, full(ranks_sum(comm)), f"replay {turn}")


@GRAPHS.behaviour()
def refused(comm: Communicator) -> None:
    """Where the host takes part in a call, it cannot be captured, and that is said."""
    with stream_of(comm) as stream:
        x = filled(comm)
        comm.all_reduce(x)
        with raises(UsageError, "graph"), capture(stream):
            comm.all_reduce(x)
        comm.all_reduce(x)
        holds(x, full(comm.size * ranks_sum(comm)), "afterwards")
