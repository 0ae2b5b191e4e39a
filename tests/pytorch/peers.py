"""The group of the backend and one of Gloo's of the same ranks, which tells what is right."""

from functools import cache
from typing import Any

import torch
import torch.distributed as dist


@cache
def gloo() -> Any:
    """Gloo's group, which meets by hpccomm's store."""
    return dist.new_group(backend="gloo")


def store() -> Any:
    """Return the store of the job, which PyTorch has no public function for."""
    # PyTorch has no other name for it.
    return dist.distributed_c10d._get_default_store()


def both() -> tuple[Any, Any]:
    return dist.group.WORLD, gloo()


def same(ours: Any, theirs: Any) -> None:
    """Check that tensors, or lists of them, are equal."""
    if isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        if ours.dtype.itemsize == 1 or ours.dtype is torch.complex32:  # which `equal` lacks
            ours, theirs = ours.view(torch.uint8), theirs.view(torch.uint8)
        assert torch.equal(ours, theirs), (ours, theirs)
    else:
        assert ours == theirs
