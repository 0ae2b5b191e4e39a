"""Groups, meshes and the store, as torch.distributed documents them."""

import _thread
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import peers
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import hpccomm
import hpccomm.torch


def store() -> None:
    """Ranks meet in the store, from any thread, without a port."""
    rank, size = dist.get_rank(), dist.get_world_size()
    kept = dist.PrefixStore("here", peers.store())
    counts = [kept.add("count", 1) for _ in range(20)]
    assert counts == sorted(counts)
    dist.barrier()
    assert kept.add("count", 0) == 20 * size
    if rank == 0:
        kept.set("bytes", b"\x00\xff\x80")
        kept.set("text", "words")
    assert kept.get("bytes") == b"\x00\xff\x80"  # waits for it
    assert kept.get("text") == b"words"
    assert kept.compare_set("only", "", str(rank)) == kept.get("only")
    kept.wait(["bytes", "text"], timedelta(seconds=5))
    with pytest.raises(dist.DistStoreError, match=r"timeout after 50ms, keys: .*never"):
        kept.wait(["never"], timedelta(seconds=0.05))
    dist.barrier()
    if rank == 0:
        assert kept.delete_key("text")
        assert not kept.delete_key("text")
    dist.barrier()
    assert not kept.check(["text"])


def rendezvous() -> None:
    """The rank and the number of ranks that a program gives are those of MPI, or refused."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for wrong in ({"rank": rank, "world_size": size + 1}, {"rank": rank ^ 1, "world_size": size}):
        with pytest.raises(hpccomm.LaunchError, match=r"of MPI|MPI has"):
            next(dist.rendezvous("mpi://", **wrong))


def store_faults() -> None:
    """What the store cannot do, it says at once; nothing is lost to other threads or to a child."""
    rank = dist.get_rank()
    kept = dist.PrefixStore("faults", peers.store())
    kept.set(f"text{rank}", "words")
    begun = time.monotonic()
    with pytest.raises(dist.DistStoreError, match=rf"add\(.*text{rank}.*ValueError.*words"):
        kept.add(f"text{rank}", 1)
    usual = kept.timeout
    kept.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(dist.DistStoreError, match="never"):
        kept.get("never")
    kept.set_timeout(usual)
    assert time.monotonic() - begun < usual.total_seconds() / 2

    def in_child() -> None:
        with pytest.raises(dist.DistStoreError, match="forked"):
            kept.add("child", 5)

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert kept.add(f"parent{rank}", 1) == 1
    assert not kept.check(["child"])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet in the middle of an addition
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [kept.add("threads", 1) for _ in range(50)], range(4)))
    dist.barrier()
    sys.setswitchinterval(before)
    assert kept.add("threads", 0) == 4 * 50 * dist.get_world_size()


def mesh() -> None:
    """A device mesh takes its groups from the backend."""
    size = dist.get_world_size()
    whole = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        x = torch.ones(1)
        dist.all_reduce(x, group=whole.get_group(name))
        assert x.item() == whole[name].size()


def threads() -> None:
    """Several threads call one group; it serves them one after the other."""

    def run(_: int) -> None:
        for _ in range(20):
            x = torch.ones(3)
            dist.all_reduce(x, async_op=True).wait()
            assert x.tolist() == [dist.get_world_size()] * 3

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))


def callbacks() -> None:
    """A callback's call, which others await, may come late: its thread is one of the program's. So is one of C."""
    several = [dist.new_group() for _ in range(3)]
    x, y, z, done = torch.ones(1), torch.ones(1), torch.ones(1), threading.Event()

    def late(_: object) -> None:
        time.sleep(2)  # as long as a rank that waits in a call and makes none may take
        dist.all_reduce(y, group=several[1])
        done.set()

    if dist.get_rank() == 0:
        future = dist.all_reduce(x, group=several[0], async_op=True).get_future().then(late)
        dist.all_reduce(z, group=several[2])
        future.wait()
        done.clear()
        _thread.start_new_thread(late, (None,))  # which `threading` knows as little as one of C
        dist.all_reduce(z, group=several[2])
        done.wait()
    else:
        dist.all_reduce(x, group=several[0])
        for _ in range(2):
            dist.all_reduce(y, group=several[1])
            dist.all_reduce(z, group=several[2])
    assert x.item() == dist.get_world_size()


def mixture() -> None:
    """The backend beside another one, where PyTorch can; else that is refused in words."""
    backend = "cpu:hpccomm,cuda:gloo"
    if torch.__version__ < "2.14":
        with pytest.raises(hpccomm.UsageError, match=r"PyTorch 2\.14"):
            dist.new_group(backend=backend)
        return
    group, size = dist.new_group(backend=backend), dist.get_world_size()
    x = torch.ones(2)
    assert dist.all_reduce(x, group=group, async_op=True).get_future().wait()[0] is x
    dist.monitored_barrier(group, timedelta(seconds=20))
    assert x.tolist() == [size] * 2
    right, left = (dist.get_rank() + 1) % size, (dist.get_rank() - 1) % size
    out = torch.empty(2)
    operations = [dist.P2POp(dist.isend, x, right, group), dist.P2POp(dist.irecv, out, left, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert out.tolist() == [size] * 2


def facts() -> None:
    """What c10d and libraries on it ask a group."""
    group = dist.group.WORLD
    assert dist.get_backend() == "hpccomm"
    backend = group._get_backend(torch.device("cpu"))  # which FSDP and others ask in this way
    assert not backend.supports_splitting
    memory = backend.allocate_tensor(5, dtype=torch.bfloat16)
    memory.fill_(1)
    dist.all_reduce(memory)
    assert memory.tolist() == [dist.get_world_size()] * 5
    group.set_timeout(timedelta(seconds=50))
    if torch.__version__ >= "2.14":
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        assert dist.get_backend_impl() is group
    # Processes that are forked, as those that load data, leave the group alone.
    loaded = torch.utils.data.DataLoader(torch.arange(4.0), num_workers=1, batch_size=2)
    assert [each.tolist() for each in loaded] == [[0, 1], [2, 3]]
    dist.barrier()


def groups() -> None:
    """Members alone make a group; several are used at the same time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for ranks in ([0], [size - 1, 0], list(range(size))):
        group = dist.new_group(ranks)  # c10d sorts them
        if rank in ranks:
            x = torch.tensor([rank + 1.0])
            dist.all_reduce(x, group=group)
            assert x.item() == sum(ranks) + len(ranks)
            assert dist.get_backend(group) == "hpccomm"
            assert hpccomm.torch.communicator(group).size == len(ranks)
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    if rank < 2:  # the others know nothing of it
        group = dist.new_group([0, 1], use_local_synchronization=True)
        objects = [None, None]
        dist.all_gather_object(objects, rank, group=group)
        assert objects == [0, 1]
        dist.destroy_process_group(group)
    with pytest.raises(hpccomm.UsageError, match="'hpccomm'"):
        hpccomm.torch.communicator(peers.gloo())
