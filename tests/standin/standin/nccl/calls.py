"""NCCL's functions, each with NCCL's arguments; they return its status (0: success)."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

from standin import control, devices, streams
from standin.errors import CUDARuntimeError
from standin.nccl import rendezvous
from standin.nccl.algorithms import Allowed
from standin.nccl.collectives import REDUCTIONS, Terms
from standin.nccl.communicator import Call, Collective, Communicator, Message, overlapping
from standin.nccl.post import Stopped
from standin.nccl.reductions import AVG, FLOAT8, PREMUL

SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE = range(6)

handles = itertools.count(0x7F40_0000_0000, 0x1000)
_communicators: dict[int, Communicator] = {}
_ended: set[int] = set()
_ending: list[Communicator] = []


class _Group(threading.local):
    """The calling thread's group: how deep, what was called in it, and its first error."""

    depth = 0
    error = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Communicator, Call, int]] = []


_group = _Group()


def all_communicators() -> list[Communicator]:
    """Return this process's that have not ended, or whose end waits for graphs."""
    return [*_communicators.values(), *_ending]


def _registered(communicator: Communicator) -> int:
    handle = next(handles)
    _communicators[handle] = communicator
    return handle


def init(size: int, unique: bytes, rank: int) -> tuple[int, int]:
    """Create a communicator; return a status and its handle. Blocks until all ranks do so."""
    if control.rank_is("STANDIN_FAIL_INIT", rank):
        return SYSTEM_ERROR, 0
    device = devices.device()
    if control.rank_is("STANDIN_LATE_RANK", rank):
        threading.Event().wait()
    allowed = Allowed(control.nccl_env("NCCL_ALGO"))
    name, table = rendezvous.meet(unique, rendezvous.myself(rank, size, device))
    if len({member.gpu for member in table}) < size and not all(each.shares for each in table):
        return INVALID_USAGE, 0  # Duplicate GPU detected
    made = Communicator(name, rank, [member.address for member in table], device, allowed)
    control.seen("ncclCommInitRank", rank)
    return SUCCESS, _registered(made)


def shrink(handle: int, exclude: list[int]) -> tuple[int, int]:
    """Create a communicator of the ranks that are left; only they call. Blocks."""
    parent = _communicators[handle]
    left = [rank for rank in range(parent.size) if rank not in exclude]
    if parent.busy():
        control.violation("an NCCL communicator was shrunk with calls under way")
        parent.finish()
    parent.children += 1
    name, addresses = f"{parent.name}/shrunk{parent.children}", [parent.addresses[r] for r in left]
    allowed = Allowed(control.nccl_env("NCCL_ALGO"))
    made = Communicator(name, left.index(parent.rank), addresses, parent.device, allowed)
    made.meet("shrink", lambda: False)
    return SUCCESS, _registered(made)


def find(handle: int) -> Communicator:
    """Return a communicator by its handle."""
    return _communicators[handle]


def destroy(handle: int) -> int:
    """End a communicator, after what is under way, and when no graph has its calls. Blocks."""
    return _end(handle, "destroyed", Communicator.finish)


def abort(handle: int) -> int:
    """End what is under way, and the communicator when no graph has its calls. From any thread; blocks."""
    return _end(handle, "aborted", Communicator.stop)


def _end(handle: int, what: str, finish: Callable[[Communicator], None]) -> int:
    communicator = _communicators.pop(handle, None)
    if communicator is None:
        return _not_there(handle, what)
    if what == "aborted" and communicator.inside:
        control.violation("an NCCL communicator was aborted while a thread was in a call of it")
    _ended.add(handle)
    _ending.append(communicator)
    communicator.check_process()
    finish(communicator)
    communicator.outlive_graphs()
    _ending.remove(communicator)
    return SUCCESS


def revoke(handle: int) -> int:
    """End what is under way, and free nothing. From any thread; blocks.

    Once; later calls are refused, and the owner can still end it. What comes on a stream behind it waits for its
    peers again: the flag to abort is put back (NCCL 2.30 init.cc: ncclCommRevoke, commRevokeAsync).
    """
    communicator = _communicators.get(handle)
    if communicator is None:
        return _not_there(handle, "revoked")
    if communicator.revoked:
        return INVALID_ARGUMENT
    communicator.revoked = True
    communicator.abort()
    communicator.finish()
    communicator.aborted = False
    return SUCCESS


def _not_there(handle: int, what: str) -> int:
    if handle in _ended:
        control.violation(f"an NCCL communicator that had ended was {what}")
    return INVALID_ARGUMENT


def told(handle: int, attribute: str) -> tuple[int, int]:
    """Return a status, and what a communicator tells of itself."""
    communicator = _communicators.get(handle)
    if communicator is None:
        return _not_there(handle, f"asked for its {attribute}"), 0
    communicator.check_process()
    value = getattr(communicator, attribute)
    return SUCCESS, value.number if attribute == "device" else value


def group_start() -> int:
    """Begin a group of the calling thread, or one inside."""
    _group.depth += 1
    return SUCCESS


def group_end() -> int:
    """End a group; at the outermost, put on their streams all calls in it, or none after an error."""
    if _group.depth == 0:
        return INVALID_USAGE
    _group.depth -= 1
    if _group.depth:
        return SUCCESS
    calls, error = _group.calls, _group.error
    _group.calls, _group.error = [], 0
    together: dict[Communicator, list[tuple[Call, int]]] = {}
    for communicator, call, stream in calls:
        together.setdefault(communicator, []).append((call, stream))
    for communicator, entries in together.items():
        # As NCCL has them run: by size, the largest first, and not in the order of the calls.
        entries.sort(key=lambda entry: _first(communicator, entry[0]))
        error = error or _launch(communicator, entries)
    return error


def _first(communicator: Communicator, call: Call) -> int:
    if isinstance(call, Message):
        return 1
    given, got = call.spans(communicator.rank, communicator.size)
    return -max(nbytes for _, nbytes in given + got)


def collective(handle: int, terms: Terms, send: int, recv: int, stream: int) -> int:
    """Put a collective on a stream, or into the calling thread's group."""

    def made(communicator: Communicator) -> Call | int:
        if not _known(terms.datatype):
            return INVALID_ARGUMENT
        permitted = communicator.size == 1 or communicator.algorithms.permits(terms.kind)
        if terms.count and not permitted:
            return INVALID_USAGE  # no algorithm available: NCCL_ALGO was set to ...
        if terms.kind not in REDUCTIONS or terms.op < PREMUL:
            return Collective(terms, send, recv)
        datatype, factor = communicator.factors[terms.op]
        if datatype != terms.datatype:
            return INVALID_ARGUMENT
        return Collective(replace(terms, op=PREMUL), send, recv, factor)

    control.seen(terms.kind, handle, terms)
    return _called(handle, made, stream)


def message(handle: int, call: Message, stream: int) -> int:
    """Put a message on a stream, or into the calling thread's group."""
    control.seen("message", handle)
    return _called(handle, lambda _: call if _known(call.datatype) else INVALID_ARGUMENT, stream)


def _known(datatype: int) -> bool:
    return datatype not in FLOAT8 or control.nccl_version() >= 22400


def _called(handle: int, made: Callable[[Communicator], Call | int], stream: int) -> int:
    status = _enter(handle, made, stream)
    if _group.depth:
        _group.error = _group.error or status
    return status


def _enter(handle: int, made: Callable[[Communicator], Call | int], stream: int) -> int:
    communicator = _communicators.get(handle)
    if communicator is None:
        return _not_there(handle, "called")
    if not communicator.using.acquire(blocking=False):
        control.violation(f"two threads used NCCL communicator {communicator.name} at once")
        return INVALID_USAGE
    try:
        if communicator.revoked:
            return INVALID_USAGE  # enqueue.cc: ncclEnqueueCheck
        call = communicator.error or made(communicator)
        if isinstance(call, int):
            return call
        if communicator.size == 1 and isinstance(call, Collective) and _unfit(communicator, call):
            return INVALID_ARGUMENT
        if _group.depth:
            _group.calls.append((communicator, call, stream))
            return SUCCESS
        return _launch(communicator, [(call, stream)])
    finally:
        communicator.using.release()


def _unfit(communicator: Communicator, call: Collective) -> bool:
    """Tell whether a collective of one rank is beyond NCCL's ncclLaunchOneRank (device/onerank.cu).

    It copies on the current device. A factor and an average of floats take a kernel that a host function
    chooses by __CUDA_ARCH__: it has none of float8.
    """
    current = devices.current()
    if current != communicator.device.number:
        control.violation(f"NCCL copies on the current device, {current}, and not on its own")
    factor = call.terms.op in (PREMUL, AVG) and call.terms.kind in REDUCTIONS
    return factor and call.terms.datatype in FLOAT8


def _launch(communicator: Communicator, entries: list[tuple[Call, int]]) -> int:
    calls = tuple(call for call, _ in entries)
    if overlapping(calls, communicator.rank, communicator.size):
        control.violation(f"memory of calls that NCCL carries out at once overlaps: {calls}")
    communicator.inside += 1
    try:
        found = [streams.find(s, communicator.device.number) for _, s in entries]
        (first,) = dict.fromkeys(found)  # a group on several streams is nobody's here
        if first.device is not communicator.device:
            return CUDA_ERROR
        for call in calls:
            if isinstance(call, Collective):
                communicator.connect(call)
        communicator.order(first)
        first.put(lambda: communicator.carry_out(calls), (communicator,))
        communicator.launched(first)
    except CUDARuntimeError:
        return CUDA_ERROR
    except Stopped:
        return INTERNAL_ERROR
    finally:
        communicator.inside -= 1
    return SUCCESS
