"""CuPy's binding of NCCL."""

from importlib import import_module
from typing import Any

from hpccomm.memory.cuda.library import cupy


def nccl() -> Any:
    """Return the module ``cupy.cuda.nccl``. CuPy itself does not import it.

    Raises
    ------
    BackendUnavailable
        If device arrays cannot be used here.
    """
    cupy()
    return import_module("cupy.cuda.nccl")
