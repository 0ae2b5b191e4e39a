"""NCCL's own environment variables. Only this module reads them.

NCCL copies its configuration files into C's environment, which Python's ``os.environ`` does not
show: ``NCCL_CONF_FILE`` or ``~/.nccl.conf``, then ``/etc/nccl.conf``. Variables that are set
already count (NCCL 2.30, misc/param.cc: initEnvFunc). It does so when it first reads a variable.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from hpccomm.contracts.transport import Steps

logger = logging.getLogger("hpccomm")

ALGO = "NCCL_ALGO"
HOST_ID = "NCCL_HOSTID"
SEVERAL_RANKS_A_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"

MAX_CTAS = "NCCL_MAX_CTAS"

GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"

LAUNCH_ORDER_SINCE = 22600
"""First NCCL version with `LAUNCH_ORDER`."""


@cache
def _getenv() -> Any:
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_char_p
    return getenv


def _values(names: Iterable[str]) -> dict[str, str]:
    """Return NCCL's values of those variables that are set, now or after it has read its files."""
    from hpccomm.contracts.variables import settings

    values = {each.name: each.value for each in reversed(settings())}
    for name in names:
        own: bytes | None = _getenv()(name.encode())
        if own is not None:
            values[name] = os.fsdecode(own)
    return {name: values[name] for name in names if name in values}


def value(name: str) -> str | None:
    """Return NCCL's value of a variable, now or after it has read its files; or None."""
    return _values((name,)).get(name)


def host_id() -> str:
    """Return the user's ``NCCL_HOSTID``, which NCCL takes for the host's name; empty if unset."""
    return value(HOST_ID) or ""


def equal_on_all() -> dict[str, str]:
    """Return the variables that are set and must be equal on all ranks.

    By these each rank decides alone, and NCCL's calls do not match each other where the ranks differ.
    """
    from hpccomm.contracts.variables import known  # a host-only program needs no tables

    lines = (each for each in known().values() if each.library == "NCCL")
    equal = [each.name for each in lines if each.ranks == "equal" and each.status != "removed"]
    values = _values(equal) | {ALGO: algo()}
    return {name: text for name, text in values.items() if text}


def register_no_captured_arrays() -> None:
    """Have NCCL register no arrays of the calls that a CUDA graph records, unless the user has it do so.

    Each rank would decide by the kind of its own memory, and wait for others that decide otherwise (NCCL 2.30,
    transport/p2p.cc: ncclIpcGraphRegisterBuffer; device/prims_simple.h).
    """
    if value(GRAPH_REGISTER) is None:
        os.environ[GRAPH_REGISTER] = "0"


def order_launches(version: int) -> None:
    """Make NCCL order the calls of all communicators of a device as the program issues them.

    Otherwise two communicators whose kernels start in different orders on two devices wait for each
    other for ever. A value that the user has set stays.
    """
    if version >= LAUNCH_ORDER_SINCE and value(LAUNCH_ORDER) is None:
        os.environ[LAUNCH_ORDER] = "1"


def warn(nccl: int, options: Collection[str]) -> list[str]:
    """Log a warning for each of NCCL's variables that should be changed; return their names.

    Parameters
    ----------
    nccl : int
        Its version, as its code.
    options : collection of str
        Fields of ncclConfig_t that the program sets.
    """
    from hpccomm.contracts.variables import (
        here,
        judge_all,  # the tables: a host-only program needs none
        settings,
    )

    verdicts = judge_all(settings(), here(nccl, options))
    wrong = [each for each in verdicts if each.fault and each.name.startswith("NCCL_")]
    for each in wrong:
        shown = f"{each.name}={each.value}" if each.value else each.name
        logger.warning("%s: %s; %s (hpccomm env says more)", shown, each.words, each.remedy)
    return [each.name for each in wrong]


_changing = threading.Lock()
_creating = 0  # threads that create communicators under `_value`
_value: str | None = None
_before: str | None = None
_pythons = False  # whether `_before` is in os.environ


def algo() -> str:
    """Return the user's own ``NCCL_ALGO``; empty if unset."""
    with _changing:
        return (_before if _creating and _value is not None else value(ALGO)) or ""


@contextmanager
def pinned(wanted: str | None, drive: Callable[[Steps], None]) -> Iterator[None]:
    """Hold ``NCCL_ALGO`` at `wanted` while a communicator is created; None leaves the user's value.

    NCCL reads the variable when it creates a communicator, for the life of that communicator. The
    variable belongs to the process, whose ranks may be threads that create one communicator together.
    Threads that want the same value may hold it at the same time; threads that want another value
    wait. The last thread to leave restores the user's value.

    Parameters
    ----------
    wanted : str or None
        For ``NCCL_ALGO``.
    drive : callable
        Waits, under a deadline, for polled steps.
    """
    global _creating

    def taken() -> bool:
        global _creating, _value, _before, _pythons
        with _changing:
            if _creating and _value != wanted:
                return False
            if not _creating:
                _value, _before, _pythons = wanted, value(ALGO), ALGO in os.environ
                if wanted is not None:
                    os.environ[ALGO] = wanted
            _creating += 1
            return True

    drive(iter(taken, True))
    try:
        yield
    finally:
        with _changing:
            _creating -= 1
            if not _creating and wanted is not None:
                os.environ.pop(ALGO, None)
                if _before is not None and _pythons:
                    os.environ[ALGO] = _before
                elif _before is not None:  # NCCL reads its files once
                    os.putenv(ALGO, _before)
