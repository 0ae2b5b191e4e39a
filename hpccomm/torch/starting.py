"""Starts groups: rank, size and store from MPI, and a communicator for each group.

The store goes over hpccomm's side channel, and needs no port: rank 0 keeps the values, and a thread of it answers.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing import parent_process
from threading import Lock
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
import torch.distributed as dist
from torch.distributed import DistStoreError, Store

import hpccomm
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.communicator import Communicator
from hpccomm.contracts.backend import ANSWERED, GONE, Facts, SideChannel
from hpccomm.errors import BackendUnavailable, LaunchError, UsageError
from hpccomm.memory.cuda.library import visible_devices
from hpccomm.runtime.answering import serve
from hpccomm.torch.group import BESIDE_OTHERS, GroupCalls, HpccommGroup, served_by
from hpccomm.torch.registration import NAME, SCHEME, untraced
from hpccomm.torch.tensors import seconds

STORE_SECONDS = 300.0
"""How long the store waits, as c10d's do."""

ANSWER_SECONDS = 30.0
"""How long rank 0 may take for an answer, before it is asked again."""

LONGEST_PAUSE = 0.05
"""Seconds between two looks for a value that is not there yet."""

_numbers = itertools.count()

_store: "JobStore | None" = None
"""c10d keeps the C++ half of the store; this keeps the Python half."""

_waiting: Communicator | None = None
"""The communicator of all ranks that a rendezvous has made, until the default group takes it."""


def init(*, timeout: timedelta | None = None, **options: Any) -> None:
    """Start `torch.distributed` with the backend ``"hpccomm"`` on all ranks of MPI. Collective; blocks.

    It is ``init_process_group("hpccomm", init_method="mpi://")``. Rank, size and store come from MPI: no address, no
    port, no environment variable. Tensors of one CUDA device are taken: that of ``device_id``; else PyTorch's current
    one, if CUDA has begun, as after ``torch.cuda.set_device``; else that of the rank's number on its node.

    Parameters
    ----------
    timeout : timedelta, optional
        Deadline of the default group's calls; None is c10d's, half an hour.
    **options
        Options of ``init_process_group``, such as ``device_id``.

    Raises
    ------
    LaunchError
        If the job was not started by MPI, such as by ``torch.multiprocessing.spawn``.
    """
    given = options.get("device_id")
    url = f"{SCHEME}://?device={getattr(given, 'index', given)}"  # c10d does not tell `rendezvous`
    dist.init_process_group(
        options.pop("backend", NAME), init_method=url, timeout=timeout, **options
    )


def rendezvous(
    url: str, timeout: timedelta | None = None, **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """Give c10d store, rank and size. Collective; blocks.

    Raises
    ------
    LaunchError
        If `url` has a rank or a number of ranks that are not MPI's, or multiprocessing has started this process.
    """
    global _store, _waiting
    query = parse_qsl(urlsplit(url).query)
    given = {name: int(number) for name, number in query if number not in ("-1", "None")}
    _check_start(given)
    if _waiting is not None:  # another backend had the store
        _waiting.finalize()
        _waiting = None
    comm = _new_comm(seconds(timeout), given.get("device"))
    _check_place(comm, given.get("rank", comm.rank), given.get("world_size", comm.size))
    _waiting = comm
    if comm.size == 1:
        _check_place(comm, 0, int(os.environ.get("WORLD_SIZE", "1")))
        yield dist.HashStore(), 0, 1
    else:
        side = comm._core.backend.side  # noqa: SLF001 (of hpccomm)
        if side is None:
            raise BackendUnavailable(
                f"backend {comm.backends['host']!r} has no side channel for the store; give "
                "init_process_group a store, rank and world_size"
            )
        _store = JobStore(side, comm.rank, STORE_SECONDS)
        yield _store, comm.rank, comm.size


def _new_comm(timeout: float | None, device: int | None) -> Communicator:
    """Return the communicator of all ranks for a CUDA device, by default the one that the program has made current."""
    if not visible_devices():  # to hpccomm: PyTorch may see some
        device = None
    elif device is None and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
    return hpccomm.new_comm(name="torch", timeout=timeout, device=device)


def _check_start(given: Mapping[str, int]) -> None:
    """Raise if each of several processes would silently be a group of one."""
    launch = launched()
    alone = launch is None or launch.size == 1
    if alone and parent_process() is not None and "world_size" not in given:
        raise LaunchError(
            "multiprocessing has started this process, as torch.multiprocessing.spawn does, and MPI has not: it would be "
            "a group of one. Start the ranks with 'mpiexec -n N python ...' (or srun) in place of spawn, and call "
            "hpccomm.torch.init() in each; if one is meant, give rank=0 and world_size=1"
        )


def _check_place(comm: Communicator, rank: int, size: int) -> None:
    """Raise unless these are the rank and the number of ranks that MPI has started."""
    if comm.size != size:
        text = (
            f"torch.distributed has {size} ranks and MPI has {comm.size}: the backend {NAME!r} takes processes that MPI "
            "has started. Call hpccomm.torch.init(), which takes rank and size from MPI, and not from RANK and WORLD_SIZE "
            f"as env:// does; where {size} are meant, start 'mpiexec -n {size} python ...' (or srun) in place of torchrun"
        )
        comm.finalize()
    elif comm.rank != rank:
        text = (
            f"rank {rank} of torch.distributed is rank {comm.rank} of MPI; give init_process_group the rank of MPI, or "
            "call hpccomm.torch.init()"
        )
        comm.abort()
    else:
        return
    raise LaunchError(text)


def create(options: Any) -> GroupCalls:
    """Make the group, or its backend for one kind of device, that c10d asks for. Called by its members; blocks."""
    kind = _kind()
    comm = _communicator(options, seconds(options.timeout), list(options.global_ranks_in_group))
    return kind(comm, options.group_id, options.store)


def _kind() -> type[GroupCalls]:
    """Return the class that c10d needs: it takes a `ProcessGroup` for the whole group.

    c10d does not pass the group's backends, so they are read from a variable of its frame.

    Raises
    ------
    UsageError
        If there are others, and this version has no place for them.
    """
    frame: Any = sys._getframe()  # noqa: SLF001 (there is no other way)
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back
    names = {} if frame is None else frame.f_locals["backend_config"].get_device_backend_map()
    if set(names.values()) <= {NAME}:
        return HpccommGroup
    if BESIDE_OTHERS:
        from hpccomm.torch.group import HpccommBackend

        return HpccommBackend
    given = ",".join(f"{device}:{name}" for device, name in names.items())
    raise UsageError(
        f"backend is {given!r}, and before PyTorch 2.14 a group of {NAME!r} has no other backend beside it; give "
        f"{NAME!r}, which takes cpu and cuda tensors, or install PyTorch 2.14"
    )


def _communicator(options: Any, timeout: float | None, ranks: list[int]) -> Communicator:
    global _waiting
    if not ranks:  # the default group
        comm, _waiting = _waiting or _new_comm(timeout, None), None
        _check_place(comm, options.group_rank, options.group_size)
        return comm
    if ranks != sorted(ranks):
        raise UsageError(f"ranks is {ranks}; give ranks in ascending order")
    default = served_by(dist.group.WORLD)
    if default is None:
        raise UsageError(
            f"the default group has no backend {NAME!r}, of which other groups are made; call "
            f"init_process_group({NAME!r}) or hpccomm.torch.init()"
        )
    return default.group(ranks, timeout)


@untraced
class JobStore(Store):  # type: ignore[misc]  # PyTorch brings no types
    """The store of the ranks of a communicator. Making it is local, in one order on all ranks.

    Parameters
    ----------
    side : SideChannel
        The communicator's.
    rank : int
        This rank.
    timeout : float
        Seconds that `get` and `wait` wait.
    """

    def __init__(self, side: SideChannel, rank: int, timeout: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=timeout))  # a `PrefixStore` sets it there, too
        self._side, self._rank, self._process = side, rank, os.getpid()
        self._name = f"c10d store {next(_numbers)}"
        self._lock, self._serving, self._asked = Lock(), Lock(), 0
        self._values: dict[str, str] = {}
        self._answered: dict[int, tuple[int, Facts]] = {}
        if rank == 0:
            serve(self._name, self._serve)

    # At rank 0.

    def _serve(self, question: Facts) -> Facts:
        """Answer a question, once: a repeated question gets the same answer. From any thread."""
        with self._serving:
            number, answer = self._answered.get(question["from"], (-1, {}))
            if number != question["number"]:
                try:
                    answer = {"is": _OPERATIONS[question["do"]](self._values, *question["with"])}
                except (KeyError, TypeError, ValueError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                self._answered[question["from"]] = question["number"], answer
            return answer

    # At every rank.

    def _ask(self, what: str, *arguments: object) -> Any:
        if os.getpid() != self._process:  # with the parent's number, which gets the parent's answer
            raise DistStoreError(
                f"{what}: a forked process has no part in the store; call it in the process that MPI has started"
            )
        limit = self._seconds()
        until = monotonic() + max(limit, LONGEST_PAUSE)
        with self._lock:
            self._asked += 1
            question = {
                "service": self._name,
                "from": self._rank,
                "number": self._asked,
                "do": what,
                "with": arguments,
            }
            while monotonic() < until:
                answer = self._side.ask((0,), question, ANSWER_SECONDS)[0]
                if answer.state == ANSWERED and "is" in answer.facts:
                    return answer.facts["is"]
                if answer.state == ANSWERED and "error" in answer.facts:
                    raise DistStoreError(f"{what}{arguments}: rank 0 has {answer.facts['error']}")
                if answer.state == GONE:
                    raise DistStoreError(f"{what}: rank 0, which keeps the store, has ended")
                sleep(LONGEST_PAUSE)  # rank 0 has not made its store yet, or is busy
        raise DistStoreError(f"rank 0, which keeps the store, did not answer in {limit:g} s")

    def _seconds(self, timeout: timedelta | None = None) -> float:
        return float((self.timeout if timeout is None else timeout).total_seconds())

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask("set", key, _text(value))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return it."""
        return int(self._ask("add", key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one is expected, or none is present and none expected; return the present one."""
        return _bytes(self._ask("compare_set", key, _text(expected), _text(desired)))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all have values."""
        return bool(self._ask("check", list(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a value; return whether there was one."""
        return bool(self._ask("delete_key", key))

    def num_keys(self) -> int:
        """Return how many there are."""
        return int(self._ask("num_keys"))

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 (what a `PrefixStore` calls)

    def get(self, key: str) -> bytes:
        """Return a value, when it is there."""
        self.wait([key])
        return _bytes(self._ask("get", key))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all have values.

        Raises
        ------
        torch.distributed.DistStoreError
            If the deadline passes.
        """
        limit = self._seconds(timeout)
        until, pause = monotonic() + limit, 1e-3
        while not self.check(keys):
            if monotonic() > until:
                raise DistStoreError(  # as TCPStore says it
                    f"wait timeout after {1e3 * limit:.0f}ms, keys: {', '.join(keys)}: no rank has set all of them"
                )
            sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)


def _text(value: str | bytes) -> str:
    """Return a value as it is sent: a character a byte."""
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _add(values: dict[str, str], key: str, amount: int) -> int:
    total = int(values.get(key, "0")) + amount
    values[key] = str(total)
    return total


def _compare_set(values: dict[str, str], key: str, expected: str, desired: str) -> str:
    if values.get(key, "") == expected:
        values[key] = desired
    return values.get(key, expected)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "set": dict.__setitem__,
    "get": dict.get,
    "add": _add,
    "compare_set": _compare_set,
    "check": lambda values, keys: all(key in values for key in keys),
    "delete_key": lambda values, key: values.pop(key, None) is not None,
    "num_keys": len,
}
