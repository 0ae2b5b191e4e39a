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

import statistics
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

import hpccomm
from contest import program
from contest.program import Option, Ranks
from contest.promises import Figure
from contest.rounds import Call, block, duration


def compared(ranks: Ranks, other: hpccomm.Communicator, name: str) -> Figure:
    """Measure a call on two communicators, of which one records and checks, or has had other calls. Collective."""
    comm, turns = ranks.comm, ranks.request.turns
    collective, size, how, measure = name.split()
    nbytes = int(size)
    plain, registered = np.zeros(nbytes // 4, np.float32), comm.empty(nbytes // 4, np.float32)
    registered.fill(0)
    x, before = (registered, plain) if how == "registered" else (plain, registered)

    def bound(each: hpccomm.Communicator, x: np.ndarray) -> Call:
        return each.plan(collective, x) if how == "plan" else partial(getattr(each, collective), x)

    if measure == "time":
        earlier = bound(comm, before)
        with comm.dup() as pure:
            ours, bare = ranks.compete(
                *(bound(each, x) for each in (comm, pure)),
                turns=turns or 21,
                calls=max(10, min(200, 100_000_000 // nbytes)),
                before=lambda: block(earlier, 50),
            )
    else:
        pair = [bound(each, x) for each in (comm, other)]
        calls = max(10, min(2000, 20_000_000 // nbytes))
        ours, bare = ranks.compete(*pair, turns=turns or 61, calls=calls)
    says = f"{duration(ours.seconds)}; {duration(bare.seconds)} without"
    if measure == "added":
        return Figure(ours.beyond(bare) * 1e6, says)
    return Figure(ours.over(bare), says, ours.seconds)


def meanwhile(ranks: Ranks) -> Figure:
    """Measure what is left of an asynchronous call after a sleep. Collective."""
    comm, request = ranks.comm, ranks.request
    x = np.zeros(request.mebibytes * 2**18, np.float32)
    comm.all_reduce(x)
    synchronous, waited = [], []
    for _ in range(request.turns or 5):
        comm.barrier()
        synchronous.append(block(lambda: comm.all_reduce(x), 1))
        comm.barrier()
        work = comm.all_reduce(x, async_op=True)
        time.sleep(request.sleep)
        waited.append(block(work.wait, 1))
    slowest = max(comm.all_gather_object(statistics.median(waited)))
    usual = statistics.median(synchronous)
    says = f"{duration(slowest)} in wait() after {request.sleep:g} s; all_reduce {duration(usual)}"
    return Figure(slowest / usual, says)


def measure(names: Sequence[str], ranks: Ranks) -> dict[str, Figure]:
    """Measure figures. Collective."""
    with hpccomm.new_comm(options=hpccomm.CommOptions(record=False, check="off")) as bare:
        return {
            name: meanwhile(ranks) if name == "all_reduce wait" else compared(ranks, bare, name)
            for name in names
        }


if __name__ == "__main__":
    program.on_ranks(
        __doc__,
        "all_reduce 8 auto added",
        measure,
        turns=Option(None, "turns of each (default 61, 21, or 5 with a sleep)", int),
        mebibytes=Option(64, "size of the array of the asynchronous call"),
        sleep=Option(1.0, "seconds of the sleep"),
    )
