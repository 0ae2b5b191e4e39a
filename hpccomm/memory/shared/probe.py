"""Tests whether the processes of a node reach each other's memory, before the first call uses it.

Processes in containers of their own may see different processes under the same number. So each
offers a random token, and a process is written to only after its token was read there.

If Yama's ``ptrace_scope`` is 1, a process can read the pages of another only if that one has
declared it (``PR_SET_PTRACER``). Ranks do not declare it, like Open MPI and MPICH (UCX does): they
would be permanently open to every process of the user, without being faster than registered memory,
which does not need this permission.

The package runs it when a communicator is made; the doctor runs it too.
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import CommunicationError
from hpccomm.memory.shared.heap import process_memory
from hpccomm.memory.shared.pages import RemoteMemory
from hpccomm.memory.views import address

TOKEN = 16
"""Bytes of a token."""

_ANOTHER = "another process has its number here: they run in containers of their own"


class Offer(NamedTuple):
    """Memory of a process that its neighbors try to reach. Plain data.

    Attributes
    ----------
    pid : int
        The process.
    token : bytes
        The bytes to be found.
    key, offset : int
        Place of the token in its registered memory.
    at : int
        Address of the token in plain memory.
    problem : str
        Why it has no registered memory; empty if it has.
    """

    pid: int
    token: bytes
    key: int
    offset: int
    at: int
    problem: str


class ProbeResult(NamedTuple):
    """Why a process could not reach the memory of its neighbors; empty strings if it could.

    Attributes
    ----------
    mapped : str
        For their registered memory.
    plain : str
        For plain memory.
    """

    mapped: str
    plain: str


@cache
def _token() -> NDArray[np.uint8]:
    return np.frombuffer(os.urandom(TOKEN), np.uint8).copy()


@cache
def _registered() -> NDArray[np.uint8]:
    memory = process_memory().heap.empty(TOKEN)
    memory[:] = _token()
    return memory


def offer() -> Offer:
    """Return this process's offer. Local."""
    plain = _token()
    try:
        at = address(_registered())
    except MemoryError as error:
        return Offer(os.getpid(), plain.tobytes(), -1, 0, address(plain), str(error))
    segment = process_memory().heap.where(at)
    assert segment is not None
    return Offer(os.getpid(), plain.tobytes(), segment.key, at - segment.at, address(plain), "")


def tried(offers: Mapping[int, Offer], rank: int) -> ProbeResult:
    """Try to reach the memory of this process's node. Local.

    Parameters
    ----------
    offers : mapping of int to Offer
        By rank; of all ranks of the node.
    rank : int
        This one.
    """
    mapped, plain = "", ""
    for peer, offered in offers.items():
        if peer == rank:
            continue
        mapped = mapped or _map(peer, offered)
        plain = plain or _read(peer, offered)
    return ProbeResult(mapped, plain)


def _map(peer: int, offered: Offer) -> str:
    """Return why a peer's registered memory is not reached, or an empty string."""
    if offered.problem:
        return f"rank {peer} has no token: {offered.problem}"
    try:
        segment = process_memory().peers.find(offered.pid, offered.key)
    except OSError as error:
        return f"that of rank {peer} cannot be mapped: {error.strerror}"
    token = segment[offered.offset : offered.offset + TOKEN].tobytes()
    return "" if token == offered.token else f"that of rank {peer} is not there: {_ANOTHER}"


def _read(peer: int, offered: Offer) -> str:
    """Return why a peer's pages are not reached, or an empty string."""
    remote = RemoteMemory(offered.pid, peer)
    token = np.zeros(TOKEN, np.uint8)
    try:
        remote.read(offered.at, address(token), TOKEN)
        if token.tobytes() != offered.token:
            return f"rank {peer} is not there: {_ANOTHER}"
        remote.write(offered.at, address(token), TOKEN)  # the same
    except CommunicationError as error:
        return f"{error}"
    return ""


def agreed(findings: Sequence[ProbeResult]) -> tuple[str, str, str]:
    """Return why registered memory is not reached, why plain is not, and how plain arrays go.

    Parameters
    ----------
    findings : sequence of ProbeResult
        Of each rank of the communicator.

    Returns
    -------
    mapped, plain : str
        Empty where they are.
    how : str
        In words.
    """
    mapped = _first([each.mapped for each in findings])
    plain = _first([each.plain for each in findings])
    if not plain:
        return mapped, plain, "peers' pages are read and written (process_vm_readv)"
    return mapped, plain, f"peers' pages are not read: {plain}"


def _first(problems: Sequence[str]) -> str:
    """Return the first problem, with the rank that has it."""
    return next(
        (f"on rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), ""
    )
