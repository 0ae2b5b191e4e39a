"""A function called in a process of its own, with limits, where a library may crash or loop on its input.

HDF5 trusts what it reads: a damaged file can make it crash, loop or ask for all memory. What it does in
the other process is known here as its result, or as the reason why there is none.
"""

import json
import math
import pickle
import resource
import signal
import subprocess
import sys
from importlib import import_module
from typing import Any

SECONDS = 4.0
"""Processor time for reading a file, beyond what its size takes. It may wait longer, for a disk or a processor."""

PATIENCE = 15.0
"""How many times as long it may take with waiting."""

_BYTES_A_SECOND = 20e6
_MEMORY = 4 << 30

_PROGRAM = """\
import json, sys
task = json.load(sys.stdin)
sys.path[:] = task["path"]
from hpccomm.files.apart import serve
serve(task)
"""


_LOOPS = "HDF5 does not come to an end with it"


class Failed(Exception):
    """The other process gave no result; the message says why, without a subject."""


def call(place: str, argument: str, *, size: int) -> Any:
    """Return what a function returns, called in a process of its own.

    Parameters
    ----------
    place : str
        Module and function: ``"package.module:function"``.
    argument : str
        Its argument, such as the name of a file.
    size : int
        Bytes of what it reads: more of them may take more time and memory.

    Returns
    -------
    object
        Its result, which can be pickled.

    Raises
    ------
    Failed
        If it raised, crashed or took too long.
    """
    seconds = SECONDS + size / _BYTES_A_SECOND
    task = {
        "path": sys.path,
        "place": place,
        "argument": argument,
        "seconds": math.ceil(seconds),
        "bytes": _MEMORY + 8 * size,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM],
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=PATIENCE * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(_LOOPS) from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise Failed(_LOOPS)
    if done.returncode:
        raise Failed(f"HDF5 crashes on it (status {done.returncode})")
    said, result = pickle.loads(done.stdout)
    if said is not None:
        raise Failed(said)
    return result


def serve(task: dict[str, Any]) -> None:
    """Call the function of a task and write its result to standard output: the other process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task["seconds"], task["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (task["bytes"], task["bytes"]))
    module, name = task["place"].split(":")
    result: tuple[str | None, Any]
    try:
        result = None, getattr(import_module(module), name)(task["argument"])
    # Whatever may stand in an HDF5 file, h5py and NumPy answer to it with these.
    except (
        AttributeError,
        LookupError,
        MemoryError,
        OSError,
        OverflowError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        result = f"{error}" or type(error).__name__, None
    sys.stdout.buffer.write(pickle.dumps(result, protocol=5))
    sys.stdout.buffer.flush()
