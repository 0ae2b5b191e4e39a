"""NCCL's own collectives, which `hpccomm.dispatch.nccl` launches.

A call takes two steps. The look-up of a signature, done once, gives a function that binds it to a
communicator. The resulting launch is called with addresses and a stream, and goes straight into
NCCL. Collectives that only move data move it as bytes, so that they take every dtype.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.libnccl import NcclGroup
from hpccomm.backends.nccl.reductions import INT8, Ability, Reduction, reduction, with_op
from hpccomm.contracts.device import Launch
from hpccomm.contracts.signature import Signature
from hpccomm.memory.cuda.memory import copy
from hpccomm.memory.cuda.streams import on_device
from hpccomm.reductions import PremulSum

Bind = Callable[[Any], Launch]
"""``bind(communicator)`` gives the launch over it."""

Issue = Callable[[int], Launch]
"""``issue(op)`` gives the launch for the number of a reduction."""

PINNABLE = {
    "all_reduce": ("ring", "tree"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
}
"""Algorithms that NCCL can be held to. Tree exists for all-reduce alone. Collectives that consist of
messages have no algorithm."""


def algorithms(call: Signature, ability: Ability) -> tuple[str, ...]:
    """Return the names of NCCL's algorithms for a call, its own choice first; or none."""
    if _bind(call, ability) is None:
        return ()
    return ("native", *(PINNABLE.get(call.collective, ()) if call.uniform else ()))


def selectable(call: Signature, ability: Ability) -> bool:
    """Tell whether each call can name its algorithm, on a communicator that is pinned to none."""
    name = "".join(word.title() for word in call.collective.split("_"))
    return call.collective in PINNABLE and f"nccl{name}Config" in ability.functions


def bind(call: Signature, ability: Ability) -> Bind:
    """Return the function that binds a call to a communicator. The call must have `algorithms`."""
    bound = _bind(call, ability)
    assert bound is not None, f"NCCL has no {call.name}"
    return bound


def copying(call: Signature, device: int) -> Launch:
    """Return the launch of a call between one rank, which is a copy. NCCL is not called.

    NCCL's own way copies on the device that is current, whose default stream is another one than the
    array's, and refuses averages of float8.
    """
    if call.description.in_place == "always":
        return lambda _send, _recv, _stream: None
    _, received = call.lengths(np.zeros(1, np.int64))
    nbytes = int(received[0]) * call.dtype.itemsize

    def launch(send: int, recv: int, stream: int) -> None:
        with on_device(device):
            copy(send, recv, nbytes, stream)

    return launch


def _bind(call: Signature, ability: Ability) -> Bind | None:
    maker = _MAKERS.get((call.collective, call.uniform))
    if ability.size == 1 and isinstance(call.op, PremulSum):
        return None  # a factor changes the data
    return None if maker is None else maker(call, ability)


def _reducing(
    call: Signature, ability: Ability, over: Callable[[Any, Reduction], Issue]
) -> Bind | None:
    """Return a binder of a reduction: ``over(communicator, how)`` gives its launch by operation."""
    how = reduction(call.op, call.dtype, ability)
    if how is None:
        return None
    return lambda communicator: with_op(communicator, how, over(communicator, how))


def _reduced(method: str, call: Signature, ability: Ability) -> Bind | None:
    """Bind a reduction without a root, by CuPy's name of it."""

    def over(communicator: Any, how: Reduction) -> Issue:
        run = getattr(communicator, method)
        count, datatype = call.counts[0] * how.width, how.datatype
        return lambda op: lambda send, recv, stream: run(send, recv, count, datatype, op, stream)

    return _reducing(call, ability, over)


def _reduce(call: Signature, ability: Ability) -> Bind | None:
    root = call.root

    def over(communicator: Any, how: Reduction) -> Issue:
        run = communicator.reduce
        count, datatype = call.counts[0] * how.width, how.datatype
        return lambda op: (
            lambda send, recv, stream: run(send, recv, count, datatype, op, root, stream)
        )

    return _reducing(call, ability, over)


def _reduce_scatter_v(call: Signature, ability: Ability) -> Bind | None:
    """Each rank's block is reduced to it, all of them in one group."""
    rank, itemsize = ability.rank, call.dtype.itemsize

    def over(communicator: Any, how: Reduction) -> Issue:
        run, group, datatype = communicator.reduce, NcclGroup(), how.datatype
        size = itemsize // how.width  # of one element of the datatype
        blocks = [(root, at, nbytes // size) for root, at, nbytes in _blocks(call.counts, itemsize)]

        def issue(op: int) -> Launch:
            def launch(send: int, recv: int, stream: int) -> None:
                with group:
                    for root, offset, count in blocks:
                        here = recv if root == rank else 0
                        run(send + offset, here, count, datatype, op, root, stream)

            return launch

        return issue

    return _reducing(call, ability, over)


def _broadcast(call: Signature, _ability: Ability) -> Bind:
    nbytes, root = call.nbytes, call.root

    def bind(communicator: Any) -> Launch:
        run = communicator.broadcast
        return lambda _send, recv, stream: run(recv, recv, nbytes, INT8, root, stream)

    return bind


def _all_gather(call: Signature, _ability: Ability) -> Bind:
    nbytes = call.counts[0] * call.dtype.itemsize

    def bind(communicator: Any) -> Launch:
        run = communicator.allGather
        return lambda send, recv, stream: run(send, recv, nbytes, INT8, stream)

    return bind


def _all_gather_v(call: Signature, ability: Ability) -> Bind:
    """Each rank's block is broadcast, all of them in one group."""
    rank, blocks = ability.rank, _blocks(call.counts, call.dtype.itemsize)

    def bind(communicator: Any) -> Launch:
        run, group = communicator.broadcast, NcclGroup()

        def launch(send: int, recv: int, stream: int) -> None:
            with group:
                for root, offset, nbytes in blocks:
                    target = recv + offset
                    run(send if root == rank else target, target, nbytes, INT8, root, stream)

        return launch

    return bind


def _by_ctypes(name: str, call: Signature, *root: int) -> Bind:
    """Bind NCCL's own collective on equal blocks, which CuPy does not offer."""
    nbytes = call.counts[0] * call.dtype.itemsize

    def bind(communicator: Any) -> Launch:
        function, check = getattr(libnccl.functions(), name), libnccl.check
        # The pointer is looked up each time: it is 0 once the communicator is aborted. NCCL_CHECK_POINTERS
        # has NCCL refuse an address of 0, also where it is not used.
        return lambda send, recv, stream: check(
            function(send or recv, recv or send, nbytes, INT8, *root, communicator.comm, stream)
        )

    return bind


PeerBlock = tuple[int, int, int]
"""A peer, the offset of its block in bytes, and the block's bytes."""


def _messages(sends: list[PeerBlock], receives: list[PeerBlock]) -> Bind:
    """Bind a call that consists of messages, in one group."""

    def bind(communicator: Any) -> Launch:
        send_to, receive_from, group = communicator.send, communicator.recv, NcclGroup()

        def launch(send: int, recv: int, stream: int) -> None:
            with group:
                for peer, offset, nbytes in sends:
                    send_to(send + offset, nbytes, INT8, peer, stream)
                for peer, offset, nbytes in receives:
                    receive_from(recv + offset, nbytes, INT8, peer, stream)

        return launch

    return bind


def _all_to_all(call: Signature, ability: Ability) -> Bind:
    if call.uniform and "ncclAlltoAll" in ability.functions:
        return _by_ctypes("ncclAlltoAll", call)
    itemsize = call.dtype.itemsize
    return _messages(_blocks(call.counts, itemsize), _blocks(call.recv_counts, itemsize))


def _rooted(name: str, call: Signature, ability: Ability) -> Bind:
    """Bind a gather or a scatter, by NCCL's name of it."""
    if call.uniform and name in ability.functions:
        return _by_ctypes(name, call, call.root)
    own, at_root = _blocks_of_rooted(call, ability)
    return _messages(own, at_root) if name == "ncclGather" else _messages(at_root, own)


def _blocks_of_rooted(call: Signature, ability: Ability) -> tuple[list[PeerBlock], list[PeerBlock]]:
    """Return this rank's message with the root, and, on the root alone, its messages with all."""
    rank, root = ability.rank, call.root
    at_root = _blocks(call.counts, call.dtype.itemsize)
    own = [(root, 0, nbytes) for peer, _, nbytes in at_root if peer == rank]
    if rank != root:
        return own, []
    if call.in_place:  # the root's own block is where it belongs
        return [], [block for block in at_root if block[0] != rank]
    return own, at_root


def _blocks(counts: tuple[int, ...], itemsize: int) -> list[PeerBlock]:
    """Return the blocks of all ranks that have elements, which lie one after the other."""
    starts = accumulate(counts, initial=0)
    return [
        (peer, start * itemsize, count * itemsize)
        for peer, (start, count) in enumerate(zip(starts, counts, strict=False))
        if count
    ]


_MAKERS: dict[tuple[str, bool], Callable[[Signature, Ability], Bind | None]] = {
    ("all_reduce", True): partial(_reduced, "allReduce"),
    ("broadcast", True): _broadcast,
    ("reduce", True): _reduce,
    ("all_gather", True): _all_gather,
    ("all_gather", False): _all_gather_v,
    ("reduce_scatter", True): partial(_reduced, "reduceScatter"),
    ("reduce_scatter", False): _reduce_scatter_v,
    ("all_to_all", True): _all_to_all,
    ("all_to_all", False): _all_to_all,
    ("gather", True): partial(_rooted, "ncclGather"),
    ("gather", False): partial(_rooted, "ncclGather"),
    ("scatter", True): partial(_rooted, "ncclScatter"),
    ("scatter", False): partial(_rooted, "ncclScatter"),
}
"""By collective and whether blocks are equal. NCCL lacks a scan, and a barrier moves nothing."""
