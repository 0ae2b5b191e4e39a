"""What a test can say about the machine: environment variables, read when they are needed.

======================== =========================================================================
STANDIN_DEVICES          devices of the machine (8)
STANDIN_NCCL_VERSION     version of the library that is loaded (23203)
STANDIN_DELAY            longest time in seconds by which work on a stream is late, at random (0)
STANDIN_LATE_RANK        a rank that never comes to the creation of a communicator
STANDIN_FAIL_INIT        a rank on which the creation of a communicator fails
STANDIN_FAIL_REGISTER    a rank on which memory cannot be registered
STANDIN_CONNECT          ``1``: the first call of a kind waits for all ranks before it returns
STANDIN_NO_COPIES        ``1``: asynchronous copies carry nothing
STANDIN_QUEUE            operations that a stream has room for; who puts more on it waits (no limit)
======================== =========================================================================
"""

import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MEMORY = 80 << 30
"""Bytes of a device's memory."""


def devices() -> int:
    """Return how many devices this process sees."""
    return int(os.environ.get("STANDIN_DEVICES", "8"))


def nccl_version() -> int:
    """Return the version of the NCCL that is loaded, as ncclGetVersion does."""
    return int(os.environ.get("STANDIN_NCCL_VERSION", "23203"))


def on(variable: str) -> bool:
    """Tell whether a variable is ``1``."""
    return os.environ.get(variable) == "1"


def queue() -> float:
    """Return how many operations a stream has room for."""
    return float(os.environ.get("STANDIN_QUEUE", "inf"))


def late() -> None:
    """Let a while go by, if a test has asked for it."""
    longest = float(os.environ.get("STANDIN_DELAY", "0") or 0)
    if longest and threading.current_thread().name not in punctual:
        time.sleep(random.random() * longest)


def rank_is(variable: str, rank: int) -> bool:
    """Tell whether `rank` is the one that a variable names."""
    return os.environ.get(variable, "") == str(rank)


_C = ctypes.CDLL(None)
_C.getenv.restype = ctypes.c_char_p
_params: dict[str, str] = {}


def nccl_env(name: str) -> str:
    """Return a variable as NCCL reads it: from C's environment, once its files have been put there."""
    if "files" not in _params:
        _params["files"] = "read"
        users = os.environ.get("NCCL_CONF_FILE") or os.path.expandvars("$HOME/.nccl.conf")
        for file in map(Path, (users, "/etc/nccl.conf")):
            for line in file.read_text().splitlines() if file.exists() else ():
                variable, equals, text = line.partition("=")
                if equals and not line.startswith("#"):
                    _C.setenv(variable.encode(), text.encode(), 0)
    found = _C.getenv(name.encode())
    return "" if found is None else os.fsdecode(found)


def nccl_param(name: str) -> str:
    """Return a variable that NCCL reads once a process."""
    return _params.setdefault(name, nccl_env(name))


def forget_nccl() -> None:
    """Have NCCL read its files and variables again, as in a new process."""
    _params.clear()


punctual: set[str] = set()
"""Threads of streams that are never late."""

watchers: list[Callable[..., object]] = []
"""What a test has called with the name and the arguments of some functions of CUDA and NCCL, just before them."""


def seen(name: str, *arguments: object) -> None:
    """Tell that a function was called."""
    for watcher in tuple(watchers):
        watcher(name, *arguments)


violations: list[str] = []
"""What this process did that CUDA or NCCL would have answered by a crash, or by wrong bytes."""


def violation(what: str) -> None:
    """Record that a rule was broken, and say so."""
    violations.append(what)
    print(f"stand-in: {what}", file=sys.stderr, flush=True)
