"""Groups, meshes and the store."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from peers import gloo
from torch.distributed.device_mesh import init_device_mesh

import hpccomm
import hpccomm.torch


def store() -> None:
    """Ranks meet in the store, from any thread, without a port."""
    rank, size = dist.get_rank(), dist.get_world_size()
    kept = dist.PrefixStore("here", dist.distributed_c10d._get_default_store())
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
    with pytest.raises(dist.DistStoreError, match="never"):
        kept.wait(["never"], timedelta(seconds=0.05))
    dist.barrier()
    if rank == 0:
        assert kept.delete_key("text")
        assert not kept.delete_key("text")
    dist.barrier()
    assert not kept.check(["text"])


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
        hpccomm.torch.communicator(gloo())


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
    wrong: list[str] = []

    def run() -> None:
        for _ in range(20):
            x = torch.ones(3)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            if x.tolist() != [dist.get_world_size()] * 3:
                wrong.append(str(x))

    several = [threading.Thread(target=run) for _ in range(3)]
    for each in several:
        each.start()
    for each in several:
        each.join()
    assert not wrong


SCENARIOS = (store, groups, mesh, threads)
