"""What programs get where ranks disagree, are late or die: each on a group of its own, whose deadline is short.

``mpiexec -n 2 python faults.py``; with the argument ``loss`` rank 1 dies, in a job that survives it.
"""

import atexit
import os
import signal
import sys
import threading
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hpccomm.torch
from hpccomm.gradients import TopK

DEADLINE = timedelta(seconds=3)


def fresh() -> Any:
    return dist.new_group(timeout=DEADLINE)


def late() -> None:
    """A rank that does not come: the others know who, through the call and through its future.

    Programs look for words of Gloo and NCCL: PyTorch's DistributedTest for " Timed out ", test_c10d_nccl for "timed out".
    """
    group, rank = fresh(), dist.get_rank()
    if rank == 1:
        dist.barrier()  # rank 0 has its error
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(torch.ones(4), group=group)
        return
    future = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future()
    words = r"(?s)CollectiveTimeout: all_reduce #1.*rank 1.*timed out: Timed out waiting 3000ms"
    with pytest.raises(RuntimeError, match=words):
        future.wait()
    with pytest.raises(dist.DistBackendError, match="all_reduce #1") as caught:
        dist.all_reduce(torch.ones(4), group=group)
    assert isinstance(caught.value.__cause__, hpccomm.CommunicatorAborted)
    dist.barrier()


def timeout_of_a_wait() -> None:
    """The timeout of `wait` ends that wait alone; `exception` says what came of the group's own."""
    group, x = fresh(), torch.ones(4)
    dist.barrier(group)
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        for _ in range(2):
            with pytest.raises(dist.DistBackendError, match=r"WaitTimeout: .*going on: all_reduce"):
                work.wait(timedelta(seconds=0.2))
        assert not work.is_completed()
        dist.barrier()
        assert work.wait()
        assert x.tolist() == [2.0] * 4
        work = dist.all_reduce(x, group=group, async_op=True)
        with pytest.raises(dist.DistBackendError, match="CollectiveTimeout"):
            work.wait(DEADLINE * 5)
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
    else:
        dist.barrier()
        dist.all_reduce(x, group=group)


def message() -> None:
    """A message that does not come, from a certain rank and from any: the wait's timeout, and the group's."""
    for source, limit in ((1, 0.5), (None, 0.5), (None, None)):
        group = fresh()
        if dist.get_rank() == 0:
            work = dist.irecv(torch.empty(2), source, group=group)
            error = "WaitTimeout: .*recv" if limit else "CollectiveTimeout: recv"
            with pytest.raises(dist.DistBackendError, match=error):
                work.wait(timedelta(seconds=limit) if limit else None)


def operation() -> None:
    """Different calls: each rank knows the other's line, which is one of the program, not of PyTorch."""
    group, x = fresh(), torch.ones(4)
    line = r"at operation\(\), faults.py line \d+"
    words = rf"(?s)RankMismatch.*rank 0: all_reduce.*{line}; rank 1: broadcast.*{line}"
    with pytest.raises(dist.DistBackendError, match=words):
        dist.broadcast(x, 0, group=group) if dist.get_rank() else dist.all_reduce(x, group=group)
    one, other, third = fresh(), fresh(), fresh()
    kinds = torch.uint8, torch.float8_e8m0fnu  # which goes as bytes; NCCL and Gloo take it for that
    words = r"rank 0: .*uint8.*rank 1: .*float8_e8m0fnu"
    with pytest.raises(dist.DistBackendError, match=words):
        dist.broadcast(torch.zeros(8, dtype=kinds[dist.get_rank()]), 0, group=third)
    with pytest.raises(dist.DistBackendError, match=r"operation\(\), faults"):
        dist.barrier(one) if dist.get_rank() else one.group([0, 1], None)
    if dist.get_rank() == 0:  # of no length, as DistributedTest has it
        with pytest.raises(dist.DistBackendError, match="Rank 0 timed out in monitoredBarrier"):
            other.monitored_barrier(timedelta(0))


def ddp() -> None:
    """The backward pass of DistributedDataParallel raises where a rank does not come."""
    # The first one loads much, on one rank sooner than on the other.
    DistributedDataParallel(torch.nn.Linear(1, 1))
    dist.barrier()
    group = fresh()
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    for _ in range(2):  # the second step makes other buckets
        model(torch.ones(1, 4)).sum().backward()
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"(?s)CollectiveTimeout: all_reduce.*rank 1"):
            model(torch.ones(1, 4)).sum().backward()


def ddp_with_other_shape() -> None:
    """So it does where models differ."""
    group = fresh()
    with pytest.raises(RuntimeError, match=r"(?i)rank|process 0"):
        DistributedDataParallel(torch.nn.Linear(4, 4 + dist.get_rank()), process_group=group)


def aborted() -> None:
    """Another thread ends what waits."""
    group = fresh()
    if dist.get_rank() == 0:
        threading.Timer(0.5, group.abort).start()
        with pytest.raises(dist.DistBackendError, match="CommunicatorAborted"):
            dist.all_reduce(torch.ones(4), group=group)
        bucket = SimpleNamespace(buffer=lambda: torch.ones(4))
        with pytest.raises(dist.DistBackendError, match="CommunicatorAborted"):
            hpccomm.torch.ddp_comm_hook(TopK(0.5))(group, bucket)


def destroyed() -> None:
    """A group's end needs no other rank, as with Gloo: one that still waits for a message, and others in any order.

    Nor does it keep others: some make a call before it that this rank makes after it.
    """
    open_one, *others = fresh(), fresh(), fresh()
    rank, work = dist.get_rank(), None
    if rank == 0:
        work = dist.irecv(torch.empty(1), 1, group=open_one)
    for group in (open_one, *(others if rank else reversed(others))):
        dist.destroy_process_group(group)
    for _ in range(3):
        part, x = dist.new_group(), torch.ones(1)
        if rank == 0:
            dist.destroy_process_group(part)
        dist.all_reduce(x)
        assert x.item() == 2
        with pytest.raises(hpccomm.UsageError, match="finalized") if rank == 0 else nullcontext():
            dist.destroy_process_group(part) if rank else part.allreduce([x])
    if work is not None:
        with pytest.raises(dist.DistBackendError):
            work.wait()


def at_exit() -> None:
    """A future is completed also while Python ends."""
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    dist.destroy_process_group()
    print("fault at_exit: ok", flush=True)


def loss() -> None:
    """A rank dies in the middle of training."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"(?s)PeerLost: all_reduce.*rank 1"):
        model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        dist.all_reduce(torch.ones(4))


FAULTS = (
    late, timeout_of_a_wait, message, operation, ddp, ddp_with_other_shape, aborted, destroyed,
)  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    hpccomm.torch.init(timeout=timedelta(seconds=60))
    named = sys.argv[1:]
    for fault in (loss,) if "loss" in named else FAULTS:
        if named and fault.__name__ not in named:
            continue
        fault()
        if fault is not loss:
            dist.barrier()
        if dist.get_rank() == 0:
            print(f"fault {fault.__name__}: ok", flush=True)
    if "loss" in named:
        os._exit(0)  # the job has lost a rank
    atexit.register(at_exit)


if __name__ == "__main__":
    main()
