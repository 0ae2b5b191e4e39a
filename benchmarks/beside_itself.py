"""What watching adds to a call, what earlier calls do to it, and what goes on meanwhile: hpccomm beside itself.

Run it on two ranks that have a core each::

    mpiexec -n 2 python benchmarks/beside_itself.py "all_reduce 8 auto added" "all_reduce 1048576 auto ratio"
    mpiexec -n 2 python benchmarks/beside_itself.py "all_reduce wait"

Two communicators take turns on the same array. A figure is one of

COLLECTIVE BYTES auto|plan added|ratio      what the recorder and the check between ranks add to a call, from the
                                            second call on: in microseconds, or as the time over that without. One
                                            communicator is as it comes, one has ``record=False`` and
                                            ``check="off"``. The watchdog looks after both.
COLLECTIVE BYTES registered|plain time      what a call takes after 50 others on arrays of the other kind, over that
                                            without these: what was called before does not decide a call's speed.
all_reduce wait                             whether an asynchronous call goes on while the program is elsewhere: each turn
                                            takes a synchronous call, and an asynchronous one with a sleep between its
                                            start and `wait`. It is the time in `wait` over the synchronous time: 0 if
                                            the whole of it happened meanwhile, 1 if none did.

Figures are medians over the turns, of the slowest rank.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

import hpccomm
from contest import program
from contest.program import Option, Ranks
from contest.promises import Figure
from contest.rounds import Call, block


def bound(comm: hpccomm.Communicator, collective: str, x: np.ndarray, how: str = "auto") -> Call:
    """Return a call without arguments."""
    if how == "plan":
        return comm.plan(collective, x)
    method = getattr(comm, collective)
    return lambda: method(x)


def in_turns(
    comm: hpccomm.Communicator, pair: list[Call], calls: int, turns: int, before: Call | None = None
) -> tuple[float, float]:
    """Return the median seconds of two calls on this rank. `before` is called before each turn."""
    taken = []
    for _ in range(turns):
        if before is not None:
            before()
        comm.barrier()
        taken.append([block(call, calls) for call in pair])
        pair.reverse()
    # Every second turn went the other way round.
    return (
        statistics.median(turn[n % 2] for n, turn in enumerate(taken)),
        statistics.median(turn[1 - n % 2] for n, turn in enumerate(taken)),
    )


def watched(
    comm: hpccomm.Communicator, other: hpccomm.Communicator, name: str, turns: int
) -> Figure:
    """Measure what the recorder and the check add. Collective."""
    collective, size, how, measure = name.split()
    x = np.zeros(int(size) // 8)
    pair = [bound(each, collective, x, how) for each in (comm, other)]
    for call in pair:
        block(call, 10)
    calls = max(10, min(2000, 20_000_000 // int(size)))
    ours, bare = in_turns(comm, pair, calls, turns)
    value = (ours - bare) * 1e6 if measure == "added" else ours / bare
    value, ours, bare = max(comm.all_gather_object((value, ours, bare)))
    says = f"{ours * 1e6:.2f} µs; {bare * 1e6:.2f} µs without"
    return Figure(value, says, ours if measure == "ratio" else None)


def after_others(comm: hpccomm.Communicator, name: str, turns: int) -> Figure:
    """Measure a call after others on arrays of the other kind. Collective."""
    collective, size, kind, _ = name.split()
    arrays = [np.zeros(int(size) // 4, np.float32), comm.empty(int(size) // 4, np.float32)]
    arrays[1].fill(0)
    other, mine = arrays if kind == "registered" else reversed(arrays)
    earlier = bound(comm, collective, other)
    with comm.dup() as pure:
        pair = [bound(each, collective, mine) for each in (comm, pure)]
        for call in pair:
            block(call, 10)
        calls = max(10, min(200, 100_000_000 // int(size)))
        ours, bare = in_turns(comm, pair, calls, turns, lambda: block(earlier, 50))
    value, ours, bare = max(comm.all_gather_object((ours / bare, ours, bare)))
    says = f"{ours * 1e6:.1f} µs; {bare * 1e6:.1f} µs where nothing else was called"
    return Figure(value, says, ours)


def meanwhile(comm: hpccomm.Communicator, request: argparse.Namespace) -> Figure:
    """Measure what is left of an asynchronous call after a sleep. Collective."""
    x = np.zeros(request.mebibytes * 2**18, np.float32)
    comm.all_reduce(x)
    synchronous, waited = [], []
    for _ in range(request.turns or 5):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(x)
        synchronous.append(time.perf_counter() - begin)
        comm.barrier()
        work = comm.all_reduce(x, async_op=True)
        time.sleep(request.sleep)
        begin = time.perf_counter()
        work.wait()
        waited.append(time.perf_counter() - begin)
    slowest = max(comm.all_gather_object(statistics.median(waited)))
    usual = statistics.median(synchronous)
    says = (
        f"{slowest * 1e3:.3f} ms in wait() after {request.sleep:g} s; "
        f"all_reduce of {request.mebibytes} MiB takes {usual * 1e3:.3f} ms"
    )
    return Figure(slowest / usual, says)


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures. Collective."""
    comm, turns, found = ranks.comm, ranks.request.turns, {}
    with hpccomm.new_comm(options=hpccomm.CommOptions(record=False, check="off")) as bare:
        for name in names:
            if name.endswith(("added", "ratio")):
                found[name] = watched(comm, bare, name, turns or 61)
            elif name.endswith("time"):
                found[name] = after_others(comm, name, turns or 21)
    if "all_reduce wait" in names:
        found["all_reduce wait"] = meanwhile(comm, ranks.request)
    return found


if __name__ == "__main__":
    program.on_ranks(
        __doc__,
        "all_reduce 8 auto added",
        measure,
        turns=Option(None, "turns of each (default 61, 21, or 5 with a sleep)", int),
        mebibytes=Option(64, "size of the array of the asynchronous call"),
        sleep=Option(1.0, "seconds of the sleep"),
    )
