"""Registers hpccomm with c10d: the backend, and the way to start it.

The entry point ``torch.backends`` and `hpccomm.torch` call it. It loads PyTorch, and nothing else.
"""

from contextlib import suppress
from importlib import import_module
from typing import Any

from hpccomm.spelling import install_command
from hpccomm.torch.untraced import NAME, SCHEME, untraced


def register() -> None:
    """Register the backend, and ``init_method="mpi://"``. Local; idempotent.

    PyTorch calls it at the end of its own import, by the entry point ``torch.backends``: within another call of
    this function, where that import is its own.

    Raises
    ------
    ImportError
        If there is no PyTorch.
    """
    try:
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        raise ImportError(f"hpccomm.torch needs PyTorch: {install_command('torch')}") from error
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(
        NAME, untraced(_create), extended_api=True, devices=["cpu", "cuda"]
    )
    # Another package may have taken the name, which is no reason to break PyTorch's import.
    with suppress(RuntimeError):
        dist.register_rendezvous_handler(SCHEME, untraced(_rendezvous))


def _create(options: Any, _: Any) -> Any:
    return import_module("hpccomm.torch.starting").create(options)


def _rendezvous(url: str, **how: Any) -> Any:
    return import_module("hpccomm.torch.starting").rendezvous(url, **how)
