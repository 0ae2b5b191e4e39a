"""NCCL's functions, each with NCCL's arguments; they return its status (0: success)."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from standin import control, devices, streams
from standin.errors import CUDARuntimeError
from standin.nccl import algorithms, rendezvous
from standin.nccl.collectives import REDUCTIONS, Terms
from standin.nccl.communicator import Call, Collective, Communicator, Message, overlapping
from standin.nccl.post import Stopped
from standin.nccl.reductions import AVG, DTYPES, FLOAT8, PREMUL

SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR = 0, 1, 2, 3
INVALID_ARGUMENT, INVALID_USAGE = 4, 5

FIRST_OWN_OP = 5
_own_ops = itertools.count(FIRST_OWN_OP)
"""Numbers of reductions that were made for a communicator begin here."""

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


def _end(handle: int, communicator: Communicator, finish: Callable[[], object]) -> None:
    _ended.add(handle)
    _ending.append(communicator)
    communicator.check_process()
    finish()
    communicator.outlive_graphs()
    _ending.remove(communicator)


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
        while True:
            time.sleep(60)
    allowed = algorithms.from_environment()
    status, table = rendezvous.meet(unique, rendezvous.myself(rank, size, device))
    if status:
        return status, 0
    name = unique.rstrip(b"\0").decode().lstrip("\0")
    made = _registered(
        Communicator(name, rank, [member.address for member in table], device, allowed)
    )
    control.seen("ncclCommInitRank", rank)
    return SUCCESS, made


def shrink(handle: int, exclude: list[int]) -> tuple[int, int]:
    """Create a communicator of the ranks that are left; only they call. Blocks."""
    parent = _communicators[handle]
    left = [rank for rank in range(parent.size) if rank not in exclude]
    number = parent.children
    parent.children += 1
    if parent.busy():
        control.violation(
            "an NCCL communicator was shrunk with calls under way, which can block for ever"
        )
        parent.finish()
    waiting = Communicator(
        f"{parent.name}/shrink{number}", parent.rank, parent.addresses, parent.device, None
    )
    waiting.meet("shrink", left, lambda: False)
    return SUCCESS, _child(parent, f"shrunk{number}", left)


def _child(parent: Communicator, name: str, ranks: list[int]) -> int:
    addresses = [parent.addresses[rank] for rank in ranks]
    made = Communicator(
        f"{parent.name}/{name}",
        ranks.index(parent.rank),
        addresses,
        parent.device,
        algorithms.from_environment(),
    )
    return _registered(made)


def find(handle: int) -> Communicator:
    """Return a communicator by its handle."""
    return _communicators[handle]


def destroy(handle: int) -> int:
    """End a communicator, after what is under way, and when no graph has its calls. Blocks."""
    communicator = _communicators.pop(handle, None)
    if communicator is None:
        return _not_there(handle, "destroyed")
    _end(handle, communicator, communicator.finish)
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


def abort(handle: int) -> int:
    """End what is under way, and the communicator when no graph has its calls. From any thread; blocks."""
    communicator = _communicators.pop(handle, None)
    if communicator is None:
        return _not_there(handle, "aborted")
    if communicator.inside:
        control.violation(
            f"NCCL communicator {communicator.name} was aborted while a thread was in a call of it, which "
            "goes on in freed memory"
        )
    _end(handle, communicator, communicator.stop)
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
    if error:
        return error
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
        status = _refused(communicator, terms)
        if status:
            return status
        call = Collective(terms, send, recv)
        given, got = call.spans(communicator.rank, communicator.size)
        if any(nbytes and not pointer for pointer, nbytes in given + got):
            return INVALID_ARGUMENT
        if terms.kind not in REDUCTIONS or terms.op < FIRST_OWN_OP:
            return call
        datatype, factor = communicator.factors[terms.op]
        if datatype != terms.datatype:
            return INVALID_ARGUMENT
        return Collective(replace(terms, op=PREMUL), send, recv, factor)

    control.seen(terms.kind, handle, terms)
    return _called(handle, made, stream)


def message(
    handle: int, sends: bool, pointer: int, count: int, datatype: int, peer: int, stream: int
) -> int:
    """Put a message on a stream, or into the calling thread's group."""

    def made(communicator: Communicator) -> Call | int:
        if not 0 <= peer < communicator.size or not _known(datatype) or (count and not pointer):
            return INVALID_ARGUMENT
        return Message(sends, peer, pointer, count, datatype)

    control.seen("message", handle)
    return _called(handle, made, stream)


def _known(datatype: int) -> bool:
    last = len(DTYPES) if control.nccl_version() >= 22400 else FLOAT8[0]
    return 0 <= datatype < last


def _refused(communicator: Communicator, terms: Terms) -> int:
    if not _known(terms.datatype) or terms.count < 0:
        return INVALID_ARGUMENT
    if not 0 <= terms.root < communicator.size:
        return INVALID_ARGUMENT
    known = 0 <= terms.op < FIRST_OWN_OP or terms.op in communicator.factors
    if terms.kind in REDUCTIONS and not known:
        return INVALID_ARGUMENT
    if communicator.size > 1 and terms.count and not communicator.algorithms.permits(terms.kind):
        return INVALID_USAGE  # no algorithm available: NCCL_ALGO was set to ...
    return SUCCESS


def _called(handle: int, made: Callable[[Communicator], Call | int], stream: int) -> int:
    status = _enter(handle, made, stream)
    if status and _group.depth:
        _group.error = _group.error or status
    return status


def _enter(handle: int, made: Callable[[Communicator], Call | int], stream: int) -> int:
    communicator = _communicators.get(handle)
    if communicator is None:
        if handle in _ended:
            control.violation("a call on an NCCL communicator that had ended")
        return INVALID_ARGUMENT
    if not communicator.using.acquire(blocking=False):
        control.violation(f"two threads used NCCL communicator {communicator.name} at once")
        return INVALID_USAGE
    try:
        if communicator.revoked:
            return INVALID_USAGE  # enqueue.cc: ncclEnqueueCheck
        if communicator.error:
            return communicator.error
        call = made(communicator)
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
        control.violation(
            f"NCCL copies on the current device, {current}, and not on that of its "
            f"communicator of one rank, {communicator.device.number}"
        )
    factor = call.terms.op in (PREMUL, AVG) and call.terms.kind in REDUCTIONS
    return factor and call.terms.datatype in FLOAT8


def _launch(communicator: Communicator, entries: list[tuple[Call, int]]) -> int:
    communicator.inside += 1
    try:
        return _launched(communicator, entries)
    finally:
        communicator.inside -= 1


def _launched(communicator: Communicator, entries: list[tuple[Call, int]]) -> int:
    calls = tuple(call for call, _ in entries)
    if overlapping(calls, communicator.rank, communicator.size):
        control.violation(f"memory of calls that NCCL carries out at once overlaps: {calls}")
    to_self = [c.sends for c in calls if isinstance(c, Message) and c.peer == communicator.rank]
    if to_self.count(True) != to_self.count(False):
        return INVALID_USAGE  # a message to itself has both sides in one group
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
    return SUCCESS


def make_factor(handle: int, scalar: bytes, datatype: int) -> tuple[int, int]:
    """Make a reduction of a communicator: the sum of what was multiplied; its status and number."""
    communicator, number = _communicators[handle], next(_own_ops)
    communicator.factors[number] = datatype, np.frombuffer(scalar, DTYPES[datatype])
    return SUCCESS, number


def drop_factor(handle: int, number: int) -> int:
    """End a reduction that was made."""
    del _communicators[handle].factors[number]
    return SUCCESS
