"""Keeps `torch.compile` out of what it cannot compile: C++ calls these functions while Dynamo looks."""

from types import FunctionType
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_UNSEEN = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
"""For a function, and for all that it calls."""

MARK = "_torchdynamo_disable"
"""The attribute by which Dynamo knows what it is not to inline."""


def untraced(it: Any) -> Any:
    """Return a function, or a class, that Dynamo neither traces nor looks into.

    `torch.compiler.disable` does the same, but loads all of Dynamo, which takes seconds, and puts a function around
    each call.
    """
    for each in vars(it).values() if isinstance(it, type) else (it,):
        if isinstance(each, FunctionType):
            set_code_exec_strategy(each.__code__, _UNSEEN)
            setattr(each, MARK, True)
    return it
