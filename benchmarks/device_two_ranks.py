"""Two ranks over NCCL: a captured call on both kinds of device memory, and a rank that is lost.

Run it on two ranks::

    mpiexec -n 2 python benchmarks/device_two_ranks.py
    mpiexec -n 2 python benchmarks/device_two_ranks.py --lose stop
    mpiexec --with-ft ulfm -n 2 python benchmarks/device_two_ranks.py --lose kill

The first takes a GPU for each rank. A call is captured whose array comes from ``comm.empty`` on rank 0 and from CuPy on
the others. NCCL registers the first kind alone, and a replay could wait for ever. It must be right, or refused on all
ranks.

With ``--lose``, for which ranks may share a GPU, rank 1 is stopped, or killed, while rank 0 puts call after call on its
stream. NCCL's kernels wait for ever then, and a launch blocks when the driver's queue is full. Rank 0 must raise within
its deadline all the same. Then the job ends. A launcher kills rank 0 as well when a rank is killed, unless it tolerates
that. A verdict stands in a line of its own; the exit status is 1 if one fails.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

import numpy as np

import hpccomm
from contest import device, program
from contest.device import captured, on_stream
from contest.program import Option
from contest.verdicts import Verdicts

CALLS = 2000
"""More than a stream's queue has room for."""
BEFORE = 100
"""Calls that rank 1 makes before it is lost."""
TIMEOUT, MARGIN = 10.0, 10.0
"""Seconds of the deadline, and after it, within which the error must have come."""
REPLAY_SECONDS = 20.0
"""Most that a replay is waited for: it has no deadline."""


def mixed(comm: hpccomm.Communicator, verdicts: Verdicts) -> None:
    """Replay a call that was captured on both kinds of device memory; ends the process if it hangs."""
    import cupy

    name, count = "a captured all_reduce of 64 MiB on both kinds of device memory", 16 << 20
    with on_stream(comm) as stream, verdicts.part(name):
        x = cupy.empty(count, np.float32)
        if comm.rank == 0:
            x = comm.empty(count, np.float32, device=comm.device)
        x.fill(1)
        comm.all_reduce(x)  # what is made once
        x.fill(1)
        told = ""
        try:
            graph = captured(stream, lambda: comm.all_reduce(x))
        except hpccomm.HpccommError as error:
            told = type(error).__name__
        every = comm.all_gather_object(told)
        if any(every):
            verdicts.limit(all(every), f"{name}: refused by {every}")
            return
        graph.launch(stream)
        ends = time.perf_counter() + REPLAY_SECONDS
        while not stream.done and time.perf_counter() < ends:
            time.sleep(0.01)
        if not stream.done:
            verdicts.limit(False, f"{name}: the replay hangs for {REPLAY_SECONDS:g} s")
            sys.stdout.flush()
            os._exit(1)
        right = bool((x == comm.size).all())
        verdicts.limit(all(comm.all_gather_object(right)), name)


def lost(comm: hpccomm.Communicator, verdicts: Verdicts, how: str) -> None:
    """Lose rank 1 with calls queued; ends the process."""
    import cupy

    other = comm.broadcast_object(os.getpid() if comm.rank == 1 else None, root=1)
    issued = 0
    begin, told = time.perf_counter(), "nothing"
    with cupy.cuda.Device(comm.device):
        x = cupy.ones(1000, np.float32)
        comm.all_reduce(x)
        cupy.cuda.get_current_stream().synchronize()
        comm.barrier()
        if comm.rank == 1:
            for _ in range(BEFORE):
                comm.all_reduce(x)
            cupy.cuda.get_current_stream().synchronize()
            os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
            time.sleep(600)
        name = f"a rank is lost ({how}) with {CALLS} calls queued"
        # Should the main thread be stuck in the driver for ever, the verdict is known all the same.
        limit = TIMEOUT + 2 * MARGIN
        stuck = threading.Timer(limit, ended, (verdicts, other, f"{name}: stuck for {limit:g} s"))
        stuck.daemon = True
        stuck.start()
        try:
            for issued in range(CALLS):
                begin = time.perf_counter() if issued == BEFORE else begin
                comm.all_reduce(x)
            cupy.cuda.get_current_stream().synchronize()
            comm.barrier()
        except hpccomm.HpccommError as error:
            told = type(error).__name__
        took = time.perf_counter() - begin
        stuck.cancel()
    right = told != "nothing" and took <= TIMEOUT + MARGIN
    text = f"{name}: {told} after {took:.1f} s, at call {issued} (at most {TIMEOUT + MARGIN:g} s)"
    verdicts.limit(right, text)
    ended(verdicts, other, "")


def ended(verdicts: Verdicts, other: int, wrong: str) -> None:
    """End both processes; rank 0 calls this."""
    if wrong:
        verdicts.limit(False, wrong)
    sys.stdout.flush()
    with suppress(ProcessLookupError):
        os.kill(other, signal.SIGKILL)
    os._exit(verdicts.failed)


def main() -> None:
    """Check and print."""
    options = {
        "lose": Option("", "lose rank 1 in this way: stop or kill"),
    }
    request = program.parser(__doc__, options).parse_args()
    with device.ranks(TIMEOUT if request.lose else 60.0) as (comm, verdicts):
        if request.lose:
            lost(comm, verdicts, request.lose)
        mixed(comm, verdicts)


if __name__ == "__main__":
    main()
