"""Groups as c10d holds them, over communicators.

A Python class can be a whole `ProcessGroup`. From PyTorch 2.14 on it can also be a `Backend`: a
group's part for one kind of device, beside others. A result of a `Backend` reaches the program
within an object of C++ that forwards ``wait`` and ``get_future`` alone: ``is_completed`` is never
True, and the sender of a message stays unknown. So a group that has no other backend is a
`ProcessGroup`.

`GroupCalls` has the calls of c10d, in each of their spellings, for both.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from math import prod
from threading import RLock, get_ident
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroup
from torch.distributed import DistBackendError

from hpccomm.communicator import Communicator
from hpccomm.contracts.transport import ANY
from hpccomm.errors import CollectiveTimeout, HpccommError, RankMismatch, UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.recorder import entered
from hpccomm.torch.registration import NAME, untraced
from hpccomm.torch.tensors import (
    CallTerms,
    TensorCalls,
    array,
    contiguous,
    flat,
    joined,
    keep_for_stream,
    lists,
    seconds,
    sizes,
    tensors,
    terms,
)
from hpccomm.torch.work import (
    BEGINNING,
    WAITING,
    CompletedWork,
    PendingWork,
    ReceiveWork,
    as_torchs,
)

DONE = CompletedWork()
"""What synchronous calls return. c10d waits for it, or drops it."""

MESSAGE = terms((), {})
"""The terms of messages, which c10d does not state."""


CALLS_SECONDS = 5.0
"""How long the end of a group waits for calls under way."""

PAUSE_SECONDS = 1e-3
"""Seconds between two looks at these calls."""

SHORTEST_SECONDS = 1e-3
"""The deadline of a `monitored_barrier` with a timeout of 0."""


def check_equal(name: str, parts: Sequence[Any], own: Any) -> None:
    """Raise if a tensor of the root's list has another size than its own part."""
    if set(sizes(parts)) != {own.numel()}:
        raise UsageError(
            f"{name} has tensors of {sizes(parts)} elements, and the rank's own has {own.numel()}; give equal ones"
        )


@untraced
class GroupCalls:
    """What c10d calls and asks of a group or a backend over a communicator.

    Ranks are those of the group. Several threads may call, and are served one after the other.

    Parameters
    ----------
    comm : hpccomm.Communicator
        Carries the calls out. The group ends it.
    name : str
        c10d's name of the group.
    store : torch.distributed.Store
        c10d's store of the group, which lives as long.
    """

    supports_splitting = supports_shrinking = supports_time_estimate = False
    _supports_time_estimate = False  # its name in PyTorch's main branch
    supports_coalescing = True
    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def __init__(self, comm: Communicator, name: str, store: Any) -> None:
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]  # c10d's class
        self._comm, self._lock = comm, RLock()
        self._name, self._description, self._store = name, "undefined", store
        self._duplicates: list[Communicator] = []
        self._kept: dict[int, TensorCalls] = {}  # by thread

    def _issue(
        self, calls: TensorCalls, how: CallTerms, kind: type[PendingWork] = PendingWork
    ) -> CompletedWork:
        """Carry calls out together, or start them.

        Raises
        ------
        torch.distributed.DistBackendError
            If a call fails.
        HpccommError
            If an argument does not fit.
        """
        comm, issued = self._comm, calls.issued
        coalesced = self._kept and self._kept.get(get_ident())
        if coalesced:
            coalesced.extend(calls)
            return DONE
        if not issued:
            return DONE
        entered()
        with BEGINNING, self._lock:
            # Always asynchronous: c10d lets one rank wait where another one does not, and other threads call while
            # this one waits.
            if len(issued) == 1:
                ((name, arguments, keywords),) = issued
                work = getattr(comm, name)(
                    *arguments, async_op=True, timeout=how.timeout, **keywords
                )
            else:
                with comm.batch(async_op=True, timeout=how.timeout) as batch:
                    for name, arguments, keywords in issued:
                        getattr(comm, name)(*arguments, **keywords)
                work = batch.work
        if how.async_op:
            return kind(work, calls.result, calls.settles, progresses=comm.background)
        with WAITING:
            work.wait()
        for settle in calls.settles:
            settle()
        return DONE

    # Reductions.

    def _in_place(
        self, name: str, given: Any, how: CallTerms, *arguments: Any, reduced: bool
    ) -> CompletedWork:
        """Make a call for each tensor, which is its input and its output."""
        calls = TensorCalls(tensors(given))
        for each in calls.result:
            calls.add(name, calls.out(each, reduced=reduced), *arguments)
        return self._issue(calls, how)

    def _to_single(
        self, name: str, outputs: Any, inputs: Any, how: CallTerms, *arguments: Any, reduced: bool
    ) -> CompletedWork:
        """Make a call for each pair of an output and an input, whose blocks lie one behind the other."""
        calls = TensorCalls(tensors(outputs))
        for out, x in zip(calls.result, tensors(inputs), strict=True):
            into = calls.out(out, reduced=reduced).reshape(-1)
            calls.add(name, flat(x, reduced=reduced), *arguments, out=into)
        return self._issue(calls, how)

    def allreduce(self, given: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Reduce each tensor, in place. A sum of sparse ones is sparse."""
        result, how = tensors(given), terms(rest, named)
        if len(result) == 1 and result[0].is_sparse and how.op is ReduceOp.SUM and not self._kept:
            return self._sparse_sum(result[0], how, *rest, **named)
        return self._in_place("all_reduce", result, how, how.op, reduced=True)

    allreduce_coalesced = allreduce

    def _sparse_sum(self, tensor: Any, how: CallTerms, *rest: Any, **named: Any) -> CompletedWork:
        """Sum sparse tensors: each rank collects all indices and values. Blocks until their numbers are known."""
        own, calls, outs = tensor.detach().coalesce(), TensorCalls([tensor]), []
        facts = torch.tensor([own.sparse_dim(), *own.shape, len(own.values())])
        every = facts.new_empty(self._comm.size, len(facts))
        self.all_gather_single(every, facts, *rest, **named).wait()
        if every[:, :-1].ne(facts[:-1]).any():
            text = f"sparse tensors have shapes {every[:, 1:-1].tolist()}; give equal ones"
            raise as_torchs(RankMismatch(text))
        counts = every[:, -1].tolist()
        for x in own.indices().T.contiguous(), own.values().contiguous():
            outs.append(x.new_empty(sum(counts), *x.shape[1:]))
            calls.add("all_gather_v", array(x), counts, out=array(outs[-1]))

        def settle() -> None:
            whole = torch.sparse_coo_tensor(outs[0].T, outs[1], own.shape, check_invariants=False)
            with torch.no_grad():  # a detached sparse tensor has indices of its own
                tensor.copy_(whole.coalesce())
            for out in outs:
                keep_for_stream(out)

        calls.settles.append(settle)
        return self._issue(calls, how)

    def reduce(self, given: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Reduce each tensor, in place at the root."""
        how = terms(rest, named)
        return self._in_place("reduce", given, how, how.root, how.op, reduced=True)

    def reduce_scatter(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Reduce a list of tensors; each rank gets its own."""
        how, calls = terms(rest, named), TensorCalls(tensors(outputs))
        for out, parts in zip(calls.result, lists(inputs), strict=True):
            x, into = array(joined(parts), reduced=True), calls.out(out, reduced=True).reshape(-1)
            calls.add_blocks("reduce_scatter", x, sizes(parts), how.op, out=into)
        return self._issue(calls, how)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, *rest: Any, **named: Any
    ) -> CompletedWork:
        """Reduce tensors; each rank gets its block."""
        how = terms(rest, named)
        return self._to_single("reduce_scatter", outputs, inputs, how, how.op, reduced=True)

    reduce_scatter_single = _reduce_scatter_base = reduce_scatter_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Others.

    def broadcast(self, given: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Overwrite each tensor with the root's."""
        how = terms(rest, named)
        return self._in_place("broadcast", given, how, how.root, reduced=False)

    def allgather(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Collect each rank's tensor in a list. They may differ in size, as the outputs say."""
        how, calls = terms(rest, named), TensorCalls(lists(outputs))
        for parts, x in zip(calls.result, tensors(inputs), strict=True):
            calls.add_blocks("all_gather", flat(x), sizes(parts), out=calls.parts(parts, x))
        return self._issue(calls, how)

    def allgather_coalesced(
        self, outputs: Any, inputs: Any, *rest: Any, **named: Any
    ) -> CompletedWork:
        """Collect each rank's tensors in lists of them, one for each rank."""
        by_tensor = [list(each) for each in zip(*outputs, strict=True)]
        return self.allgather(by_tensor, inputs, *rest, **named)

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, *rest: Any, **named: Any
    ) -> CompletedWork:
        """Collect each rank's tensor, one behind the other."""
        return self._to_single("all_gather", outputs, inputs, terms(rest, named), reduced=False)

    all_gather_single = _allgather_base = all_gather_single_coalesced
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Collect each rank's tensor in a list of the root."""
        how, calls, into = terms(rest, named), TensorCalls(lists(outputs)), {}
        (x,) = tensors(inputs)
        if how.root == self._comm.rank:
            check_equal("outputs", calls.result[0], x)
            into = {"out": calls.parts(calls.result[0], x)}
        calls.add("gather", flat(x), how.root, **into)
        return self._issue(calls, how)

    def gather_single(self, output: Any, x: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Collect each rank's tensor in one of the root, one behind the other."""
        how, calls, into = terms(rest, named), TensorCalls([output]), {}
        if how.root == self._comm.rank:
            into = {"out": calls.out(output).reshape(-1)}
        calls.add("gather", flat(x), how.root, **into)
        return self._issue(calls, how)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Give each rank its tensor of the root's list."""
        how, calls, x = terms(rest, named), TensorCalls(tensors(outputs)), None
        (out,) = calls.result
        if how.root == self._comm.rank:
            (parts,) = lists(inputs)
            check_equal("inputs", parts, out)
            x = array(joined(parts))
        calls.add("scatter", x, how.root, out=calls.out(out).reshape(-1))
        return self._issue(calls, how)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,  # noqa: A002 (c10d's name)
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *rest: Any,
        **named: Any,
    ) -> CompletedWork:
        """Send each rank its rows, and receive rows of each."""
        how, size, calls = terms(rest, named), self._comm.size, TensorCalls([output])
        x, into = flat(input), calls.out(output).reshape(-1)
        sent, taken = list(input_split_sizes or ()), list(output_split_sizes or ())
        if not (sent or taken):
            calls.add("all_to_all", x, out=into)
        else:
            sent = sent or [len(input) // size] * size
            taken = taken or [len(output) // size] * size
            counts = [
                [rows * prod(tensor.shape[1:]) for rows in each]
                for tensor, each in ((input, sent), (output, taken))
            ]
            calls.add("all_to_all_v", x, *counts, out=into)
        return self._issue(calls, how)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> CompletedWork:
        """Send each rank a tensor, and receive one of each. Any sizes."""
        how, calls, parts = terms(rest, named), TensorCalls(tensors(outputs)), tensors(inputs)
        into = calls.parts(calls.result, parts[0])
        calls.add("all_to_all_v", array(joined(parts)), sizes(parts), sizes(calls.result), out=into)
        return self._issue(calls, how)

    # Messages.

    def send(self, given: Any, dst: int, tag: int = 0) -> CompletedWork:
        """Send a tensor."""
        calls = TensorCalls(tensors(given))
        (x,) = calls.result
        calls.add("send", array(contiguous(x)), dst, 0 if x.is_cuda else tag)
        return self._issue(calls, MESSAGE)

    def recv(self, given: Any, src: int, tag: int = 0) -> CompletedWork:
        """Receive a tensor."""
        calls = TensorCalls(tensors(given))
        (out,) = calls.result
        calls.add("recv", calls.out(out), src, 0 if out.is_cuda else tag)
        return self._issue(calls, MESSAGE)

    def recv_anysource(self, given: Any, tag: int = 0) -> CompletedWork:
        """Receive a tensor from any rank."""
        if get_ident() in self._kept:
            raise UsageError(
                "a receive from any rank cannot be coalesced; begin it before or after"
            )
        calls = TensorCalls(tensors(given))
        calls.add("recv", calls.out(*calls.result), ANY, tag, return_src=True)
        return self._issue(calls, MESSAGE, ReceiveWork)

    # Calls together.

    def start_coalescing(self, *_: Any) -> None:
        """Keep this thread's calls from now on, to issue them together."""
        if get_ident() in self._kept:
            raise UsageError("coalescing within coalescing; end the outer one first")
        self._kept[get_ident()] = TensorCalls()

    def end_coalescing(self, *_: Any) -> CompletedWork:
        """Issue them."""
        return self._issue(self._kept.pop(get_ident(), TensorCalls()), MESSAGE)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # Waiting for all.

    def barrier(self, *rest: Any, **named: Any) -> CompletedWork:
        """Wait until each rank has called it; on a device, also for the work of the current stream."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return self._issue(TensorCalls().add("barrier"), terms(rest, named))

    def monitored_barrier(self, how: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until each rank has called it; the error says who has not come."""
        timeout = getattr(how, "timeout", how)
        # Zero is a deadline here, as on Gloo.
        limit = SHORTEST_SECONDS if timeout == timedelta(0) else seconds(timeout)
        try:
            self._issue(
                TensorCalls().add("barrier"), MESSAGE._replace(timeout=limit, async_op=False)
            )
        except DistBackendError as error:
            if not isinstance(cause := error.__cause__, CollectiveTimeout):
                raise
            who = f"Rank{'s' if len(cause.ranks) > 1 else ''} {', '.join(map(str, cause.ranks)) or '?'}"
            text = f"{who} failed to pass monitoredBarrier. Rank {self._comm.rank} timed out in monitoredBarrier: {error}"
            raise DistBackendError(text) from cause

    # Groups and ends.

    def group(self, ranks: Sequence[int], timeout: float | None) -> Communicator:
        """Return a communicator of some ranks, in their order. Called by its members alone; blocks."""
        others = [rank for rank in range(self._comm.size) if rank not in ranks]
        with self._lock, BEGINNING:
            comm = self._comm.shrink(others) if others else self._comm.dup()
        if timeout is not None:
            comm.set_timeout(timeout)
        return comm

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of later calls. Local."""
        self._comm.set_timeout(timeout.total_seconds())

    def duplicate(self) -> Communicator:
        """Return another communicator of the same ranks, which ends with the group. Collective; blocks."""
        with self._lock, BEGINNING:
            self._duplicates.append(self._comm.dup())
        return self._duplicates[-1]

    def shutdown(self) -> None:
        """End the group's communicators. Local; raises nothing. Calls under way have `CALLS_SECONDS` to end."""
        for comm in (*self._duplicates, self._comm):
            _end(comm)

    def abort(self) -> None:
        """End what is under way. Local."""
        for comm in (*self._duplicates, self._comm):
            comm.abort()

    # Facts, in the spellings of C++ and Python.

    def getBackendName(self) -> str:  # noqa: N802 (c10d's name)
        """Return the backend's name."""
        return NAME

    def getRank(self) -> int:  # noqa: N802
        """Return the rank in the group."""
        return self._comm.rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._comm.size

    rank, size = getRank, getSize

    def getGroupName(self) -> str:  # noqa: N802
        """Return c10d's name of the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set c10d's name of the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the group's description."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the group's description."""
        self._description = description

    # Registered memory.

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Return whether `allocate_tensor` has memory of a device: of the host.

        C++ gives a number. It cannot call `allocate_tensor` of a Python class in PyTorch 2.14.1.
        """
        return getattr(device, "type", None) == "cpu"

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any = None) -> Any:
        """Return a flat tensor in registered memory."""
        with self._lock:
            memory = self._comm.empty(size * dtype.itemsize, "u1")
        return torch.from_numpy(memory).view(dtype)


def _end(comm: Communicator) -> None:
    """End a communicator without the other ranks, for which c10d's users do not wait here."""
    calls, until = comm._core.calls, monotonic() + CALLS_SECONDS  # noqa: SLF001 (of hpccomm)
    while calls.under_way and calls.gate.error is None and monotonic() < until:
        calls.progress.turn()
        sleep(PAUSE_SECONDS)
    if calls.closed:
        return
    if calls.under_way or calls.gate.error is not None:
        comm.abort()
        with suppress(HpccommError):
            comm.finalize()  # local now
        return
    for each in (comm._node, comm):  # noqa: SLF001
        if each is not None:
            each._core.depart()  # noqa: SLF001


@untraced
class HpccommGroup(GroupCalls, ProcessGroup):  # type: ignore[misc]  # PyTorch brings no types
    """A group that has this backend alone."""

    def _get_backend(self, _device: Any) -> "HpccommGroup":
        """Return what serves a device."""
        return self

    get_backend = _get_backend  # from PyTorch 2.14 on


def _can_be_constructed(kind: Any) -> bool:
    try:
        kind(0, 1)
    except TypeError:
        return False
    return True


BESIDE_OTHERS = _can_be_constructed(Backend)
"""Whether there can be a `HpccommBackend`: from PyTorch 2.14 on."""

if BESIDE_OTHERS:

    class HpccommBackend(GroupCalls, Backend):  # type: ignore[misc]  # likewise
        """What a group that has others as well has for one kind of device."""


def communicator(group: Any = None) -> Communicator:
    """Return the communicator of a group of the backend ``"hpccomm"``. Local.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        None is the default group.

    Raises
    ------
    UsageError
        If the group has another backend.
    """
    return _serving(group)._comm  # noqa: SLF001 (of this package)


def duplicate(group: Any = None) -> Communicator:
    """Return a new communicator of a group's ranks, which the group ends. Collective; blocks.

    Raises
    ------
    UsageError
        If the group has another backend.
    """
    return _serving(group).duplicate()


def _serving(group: Any) -> GroupCalls:
    serving = served_by(dist.group.WORLD if group is None else group)
    if serving is None:
        raise UsageError(
            f"group is {group!r}, which has no backend {NAME!r}; make it with that one"
        )
    return serving


def served_by(group: Any) -> GroupCalls | None:
    """Return what serves a group of c10d, on the host or a device; None if it has another backend."""
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))  # noqa: SLF001 (there is no other way)
        except (AttributeError, RuntimeError):
            continue
        if isinstance(backend, GroupCalls):
            return backend
    return None
