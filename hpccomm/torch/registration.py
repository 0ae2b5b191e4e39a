"""Registers hpccomm with c10d: the backend, and the way to start it.

The entry point ``torch.backends`` and `hpccomm.torch` call it. It loads PyTorch, and nothing else.
"""

from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import Any

from hpccomm.spelling import install_command

NAME = "hpccomm"
"""The backend's name."""

SCHEME = "mpi"
"""The scheme of its ``init_method``."""

MARK = "_torchdynamo_disable"
"""The attribute that keeps Dynamo from inlining a function."""


def untraced(it: Any) -> Any:
    """Return a function, or a class, that Dynamo neither traces nor looks into: C++ calls it while Dynamo looks.

    `torch.compiler.disable` does the same, but loads all of Dynamo, which takes seconds, and puts a function around
    each call.
    """
    # Not at the top of the file: it imports PyTorch, which calls `register` before that exists.
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    unseen = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)  # with all that it calls
    for each in vars(it).values() if isinstance(it, type) else (it,):
        if isinstance(each, FunctionType):
            set_code_exec_strategy(each.__code__, unseen)
            setattr(each, MARK, True)
    return it


def register() -> None:
    """Register the backend, and ``init_method="mpi://"``. Local; idempotent.

    PyTorch calls it at the end of its import, by the entry point ``torch.backends``. If this function has begun that
    import, this is a call within its call.

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
