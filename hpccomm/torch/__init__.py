"""PyTorch's distributed package over hpccomm: the backend ``"hpccomm"`` of c10d.

>>> import hpccomm.torch                    # doctest: +SKIP
>>> hpccomm.torch.init()                    # doctest: +SKIP
>>> torch.distributed.all_reduce(tensor)    # doctest: +SKIP

Importing it registers the backend. So does ``import torch``, by the entry point ``torch.backends``: neither
loads MPI or CUDA.

- `registration`: registers with c10d, out of sight of Dynamo. `starting`: rank, size and store from MPI; groups.
- `group`: c10d's class of a group, by version, with its calls. `tensors`: their arguments. `work`: their results.
- `hooks`: compressed gradients for DistributedDataParallel.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hpccomm.torch.registration import register

if TYPE_CHECKING:
    from hpccomm.torch.group import communicator as communicator
    from hpccomm.torch.hooks import ddp_comm_hook as ddp_comm_hook
    from hpccomm.torch.starting import init as init

_HOME = {"communicator": "group", "ddp_comm_hook": "hooks", "init": "starting"}

__all__ = ["communicator", "ddp_comm_hook", "init"]

register()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hpccomm.torch' has no attribute {name!r}")
    return getattr(import_module(f"hpccomm.torch.{_HOME[name]}"), name)
