"""NCCL's own collectives, each bound once to what calls of one kind have in common.

A way is two steps: what the signature asks for is looked up once, and gives a function that binds it
to a communicator; what that gives is called with addresses and a stream, and goes straight into NCCL.
What is only moved is moved as bytes, so that every dtype is.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

from hpccomm.backends.nccl import raw
from hpccomm.backends.nccl.grouping import Group
from hpccomm.backends.nccl.reducing import INT8, Ability, reduction, with_op
from hpccomm.contracts.device import Launch
from hpccomm.contracts.signature import Signature

Bind = Callable[[Any], Launch]
"""Gives the launch over a communicator."""

PINNABLE = {
    "all_reduce": ("ring", "tree"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
}
"""Algorithms that NCCL can be held to. Tree exists for all-reduce alone; what goes by messages has no
algorithm."""


def algorithms(call: Signature, ability: Ability) -> tuple[str, ...]:
    """Return the names under which NCCL does a call: its own choice first; none if it does not."""
    if _bind(call, ability) is None:
        return ()
    return ("native", *(PINNABLE.get(call.collective, ()) if call.uniform else ()))


def bind(call: Signature, ability: Ability) -> Bind:
    """Return what binds NCCL's way of a call for which there are `algorithms` to a communicator."""
    found = _bind(call, ability)
    assert found is not None, f"NCCL has no {call.name}"
    return found


def _bind(call: Signature, ability: Ability) -> Bind | None:
    maker = _MAKERS.get((call.collective, call.uniform))
    return None if maker is None else maker(call, ability)


def _reduced(method: str, call: Signature, ability: Ability) -> Bind | None:
    """Bind a reduction without a root, by CuPy's name of it."""
    how = reduction(call.op, call.dtype, ability)
    if how is None:
        return None
    count, datatype = call.counts[0] * how.width, how.datatype

    def bind(communicator: Any) -> Launch:
        run = getattr(communicator, method)

        def bound(op: int) -> Launch:
            def launch(send: int, recv: int, stream: int) -> None:
                run(send, recv, count, datatype, op, stream)

            return launch

        return with_op(communicator, how, bound)

    return bind


def _reduce(call: Signature, ability: Ability) -> Bind | None:
    how = reduction(call.op, call.dtype, ability)
    if how is None:
        return None
    count, datatype, root = call.counts[0] * how.width, how.datatype, call.root

    def bind(communicator: Any) -> Launch:
        run = communicator.reduce

        def bound(op: int) -> Launch:
            def launch(send: int, recv: int, stream: int) -> None:
                run(send, recv, count, datatype, op, root, stream)

            return launch

        return with_op(communicator, how, bound)

    return bind


def _reduce_scatter_v(call: Signature, ability: Ability) -> Bind | None:
    how = reduction(call.op, call.dtype, ability)
    if how is None:
        return None
    datatype, width, rank = how.datatype, how.width, ability.rank
    blocks = [
        (root, offset, count * width)
        for root, (offset, count) in enumerate(_blocks(call.counts, call.dtype.itemsize))
        if count
    ]

    def bind(communicator: Any) -> Launch:
        run, group = communicator.reduce, Group()

        def bound(op: int) -> Launch:
            def launch(send: int, recv: int, stream: int) -> None:
                with group:
                    for root, offset, count in blocks:
                        here = recv if root == rank else 0
                        run(send + offset, here, count, datatype, op, root, stream)

            return launch

        return with_op(communicator, how, bound)

    return bind


def _broadcast(call: Signature, _ability: Ability) -> Bind:
    nbytes, root = call.nbytes, call.root

    def bind(communicator: Any) -> Launch:
        run = communicator.broadcast

        def launch(_send: int, recv: int, stream: int) -> None:
            run(recv, recv, nbytes, INT8, root, stream)

        return launch

    return bind


def _all_gather(call: Signature, _ability: Ability) -> Bind:
    nbytes = call.counts[0] * call.dtype.itemsize

    def bind(communicator: Any) -> Launch:
        run = communicator.allGather

        def launch(send: int, recv: int, stream: int) -> None:
            run(send, recv, nbytes, INT8, stream)

        return launch

    return bind


def _all_gather_v(call: Signature, ability: Ability) -> Bind:
    """Each rank's block is broadcast, all of them in one group."""
    itemsize, rank = call.dtype.itemsize, ability.rank
    blocks = [
        (root, offset, count * itemsize)
        for root, (offset, count) in enumerate(_blocks(call.counts, itemsize))
        if count
    ]

    def bind(communicator: Any) -> Launch:
        run, group = communicator.broadcast, Group()

        def launch(send: int, recv: int, stream: int) -> None:
            with group:
                for root, offset, nbytes in blocks:
                    there = recv + offset
                    run(send if root == rank else there, there, nbytes, INT8, root, stream)

        return launch

    return bind


def _own_function(name: str, call: Signature, rooted: bool) -> Bind:
    """Return NCCL's own collective on equal blocks, which CuPy does not offer."""
    nbytes = call.counts[0] * call.dtype.itemsize
    root = (call.root,) if rooted else ()

    def bind(communicator: Any) -> Launch:
        function, check = getattr(raw.library(), name), raw.check

        def launch(send: int, recv: int, stream: int) -> None:
            # The pointer is asked for each time: it is none once the communicator is aborted.
            check(function(send, recv, nbytes, INT8, *root, communicator.comm, stream))

        return launch

    return bind


Message = tuple[int, int, int]
"""A peer, the offset of its block in bytes, and the block's bytes."""


def _messages(sends: list[Message], receives: list[Message]) -> Bind:
    """Return a call that is nothing but messages, in one group."""

    def bind(communicator: Any) -> Launch:
        send_to, receive_from, group = communicator.send, communicator.recv, Group()

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
        return _own_function("ncclAlltoAll", call, rooted=False)
    itemsize = call.dtype.itemsize
    return _messages(_listed(call.counts, itemsize), _listed(call.recv_counts, itemsize))


def _gather(call: Signature, ability: Ability) -> Bind:
    if call.uniform and "ncclGather" in ability.functions:
        return _own_function("ncclGather", call, rooted=True)
    own, at_root = _blocks_of_rooted(call, ability)
    return _messages(own, at_root)


def _scatter(call: Signature, ability: Ability) -> Bind:
    if call.uniform and "ncclScatter" in ability.functions:
        return _own_function("ncclScatter", call, rooted=True)
    own, at_root = _blocks_of_rooted(call, ability)
    return _messages(at_root, own)


def _blocks_of_rooted(call: Signature, ability: Ability) -> tuple[list[Message], list[Message]]:
    """Return the own block as a message with the root, and the root's with all, if this is it."""
    rank, root = ability.rank, call.root
    at_root = _listed(call.counts, call.dtype.itemsize)
    own = [(root, 0, nbytes) for peer, _, nbytes in at_root if peer == rank]
    if rank != root:
        return own, []
    if call.in_place:  # the root's own block is where it belongs
        return [], [block for block in at_root if block[0] != rank]
    return own, at_root


def _listed(counts: tuple[int, ...], itemsize: int) -> list[Message]:
    return [
        (peer, offset, count * itemsize)
        for peer, (offset, count) in enumerate(_blocks(counts, itemsize))
        if count
    ]


def _blocks(counts: tuple[int, ...], itemsize: int) -> list[tuple[int, int]]:
    """Return the offset in bytes and the elements of each rank's block."""
    starts = accumulate(counts, initial=0)
    return [(start * itemsize, count) for start, count in zip(starts, counts, strict=False)]


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
    ("gather", True): _gather,
    ("gather", False): _gather,
    ("scatter", True): _scatter,
    ("scatter", False): _scatter,
}
"""By collective and whether blocks are equal. There is no scan, and a barrier moves nothing."""
