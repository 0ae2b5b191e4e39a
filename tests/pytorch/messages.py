"""Messages, and what calls give back, as torch.distributed documents them."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hpccomm.torch
from hpccomm.torch.work import PendingWork


def receives_in_order() -> None:
    """Receives from any rank and from a certain one take messages in the order in which they were begun."""
    rank = dist.get_rank()
    xs = [torch.zeros(1) for _ in range(4)]
    if rank == 0:
        works = [dist.irecv(x, src) for x, src in zip(xs, (None, 1, None, 1), strict=True)]
        unanswered = dist.irecv(torch.zeros(1), tag=3).get_future()
        assert not any(work.is_completed() for work in works)
        dist.barrier()
        for work in reversed(works):
            work.wait()
        assert [x.item() for x in xs] == [0, 1, 2, 3]
        # What `dist.recv` returns comes from it; of the others it is PyTorch's own test.
        assert [works[each]._source_rank() for each in (0, 2)] == [1, 1]
        wrong = dist.irecv(torch.zeros(1), tag=1)
        with pytest.raises(dist.DistBackendError, match="BufferMismatch"):
            wrong.wait()
        assert wrong.is_completed()
        assert isinstance(wrong.exception().__cause__, hpccomm.BufferMismatch)
        dist.recv(xs[0], tag=1)
        assert xs[0].item() == 5
        dist.barrier()
        unanswered.wait()
    else:
        dist.barrier()
        if rank == 1:
            for each in range(4):
                dist.send(torch.tensor([float(each)]), 0)
            dist.send(torch.zeros(1 << 18), 0, tag=1)
            dist.send(torch.tensor([5.0]), 0, tag=1)
        dist.barrier()
        if rank == 1:
            dist.send(torch.zeros(1), 0, tag=3)


def point_to_point() -> None:
    """Messages by tag, begun in any order, to and from memory of any kind."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    tagged = [torch.empty(1), torch.empty(1)]
    column, out = torch.zeros(4, 4), torch.empty(1 << 18)
    works = [dist.isend(torch.tensor([float(tag)]), right, tag=tag) for tag in (1, 2)]
    works += [dist.irecv(tagged[tag - 1], left, tag=tag) for tag in (2, 1)]
    works += [dist.isend(torch.arange(4.0), right), dist.irecv(column[:, 1], left)]
    works += [dist.isend(torch.full((1 << 18,), float(rank)), right), dist.irecv(out, left)]
    for work in works:
        work.wait()
    assert [each.item() for each in tagged] == [1, 2]
    assert column[:, 1].tolist() == [0, 1, 2, 3]
    assert out.eq(left).all()


def works() -> None:
    """A call under way says how it goes, and its future holds the list of tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(1 << 16)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.wait(timedelta(seconds=1))  # again
    x = torch.ones(4, 3).T  # filled from a copy
    future = dist.all_reduce(x, async_op=True).get_future()
    assert future.wait()[0] is x
    assert x.eq(size).all()
    # Who waits second waits for the copies, too.
    begun = threading.Event()

    def copy() -> None:
        begun.set()
        time.sleep(0.2)  # who does not wait for it is done sooner
        x.zero_()

    call = hpccomm.torch.communicator().barrier(async_op=True)
    work = PendingWork(call, [x], [copy], progresses=True)
    first = threading.Thread(target=work.wait)
    first.start()
    assert begun.wait(60)
    work.wait()
    assert x.eq(0).all()
    first.join()
    # What hangs on a future may wait for another one.
    y = torch.ones(2)

    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0] + 1

    chained = dist.all_reduce(y, async_op=True).get_future().then(again)
    assert chained.wait().tolist() == [size * size + 1.0] * 2
    for work in (dist.barrier(async_op=True), dist.group.WORLD.barrier()):
        work.get_future().wait()
    # A wrong argument is refused before anything is sent, and the group goes on.
    for wrong, error in (
        (lambda: dist.all_reduce(torch.ones(2).to_sparse(), dist.ReduceOp.MAX), "to_dense"),
        (lambda: dist.all_reduce(torch.ones(1).expand(4)), "contiguous"),
        (lambda: dist.all_gather([torch.ones(1).expand(4)] * size, torch.ones(4)), "contiguous"),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "dtype"),
    ):
        with pytest.raises(hpccomm.UsageError, match=error):
            wrong()
    y = torch.full((1,), float(rank))
    dist.all_reduce(y)
    assert y.item() == size * (size - 1) / 2
