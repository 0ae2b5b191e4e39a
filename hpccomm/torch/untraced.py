"""Keeps `torch.compile` out of what it cannot compile; and the names by which PyTorch knows the backend."""

from types import FunctionType
from typing import Any

NAME = "hpccomm"
"""The backend's name."""

SCHEME = "mpi"
"""The scheme of its ``init_method``."""

MARK = "_torchdynamo_disable"
"""The attribute by which Dynamo knows what it is not to inline."""


def untraced(it: Any) -> Any:
    """Return a function, or a class, that Dynamo neither traces nor looks into: C++ calls it while Dynamo looks.

    `torch.compiler.disable` does the same, but loads all of Dynamo, which takes seconds, and puts a function around
    each call.
    """
    # Not above: it imports PyTorch, which calls `register`, and would find none.
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    unseen = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)  # with all that it calls
    for each in vars(it).values() if isinstance(it, type) else (it,):
        if isinstance(each, FunctionType):
            set_code_exec_strategy(each.__code__, unseen)
            setattr(each, MARK, True)
    return it
