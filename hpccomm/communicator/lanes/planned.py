"""Messages of plans on arrays in host memory, which start repeatedly.

They go over a transport of their own, each with its own tag. If the transport can bind messages to
their arrays, it does so once. The host lane uses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import numpy as np

from hpccomm.communicator.lanes.lane import Call
from hpccomm.communicator.lanes.message import BLOCKS, HaloPart, Pairs, Parts
from hpccomm.contracts.backend import Buffer, Start
from hpccomm.contracts.fingerprint import of_message
from hpccomm.contracts.transport import DTYPES, BoundMessage, BoundSet, Steps, Transport
from hpccomm.memory.views import overlap
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.traffic import PLANNED, Repeated
from hpccomm.schedules.algorithms.partition import offsets


def exchange_of(
    calls: Sequence[Call], transport: Transport | None, parts: Parts
) -> tuple[Sequence[BoundSet], Repeated]:
    """Return the messages of one plan, bound to their arrays where that pays, and their numbers.

    They are one `BoundSet` after the other.

    Parameters
    ----------
    calls : sequence of Call
        The messages. Their arrays need not be C-contiguous.
    transport : Transport or None
        The plans' transport; None without one.
    parts : sequence of HaloPart, optional
        One after the other. None is one.
    """
    persistent = None if transport is None else transport.persistent
    strides = persistent is not None and persistent.strides
    left, phases, sources, targets = iter(calls), list[BoundSet](), list[int](), list[int]()

    def pays(one: BoundMessage) -> bool:
        if persistent is None:
            return False
        return not one.data.flags.c_contiguous or persistent.pays(one.peer, one.data.nbytes)

    for count, first, last in parts or [HaloPart(len(calls), (), ())]:
        before, after = [*first], list[tuple[Any, Any]]()
        receives: list[BoundMessage] = []
        sends: list[BoundMessage] = []
        for call in islice(left, count):
            if call.packing is not None:
                call = call.packing.as_it_lies(call)
            (to, origin), (outward, inward) = call.ends, call.tags
            send: Any = call.send
            recv: Any = call.recv
            if inward is not None and origin is not None:
                if not (strides or recv.flags.c_contiguous):
                    recv = np.empty_like(recv, order="C")
                    after.append((call.recv, recv))
                receives.append(BoundMessage(recv, origin, inward * DTYPES))
            if outward is not None and to is not None:
                strided = not (strides or send.flags.c_contiguous)
                resolved = call.prepared.resolved
                # What is received may also replace what is sent, which is sent from a copy.
                replaced = inward is not None and overlap(send, recv)
                if strided or replaced or (resolved is not None and resolved.call.in_place):
                    send = np.empty_like(send, order="C")
                    before.append((send, call.send))
                sends.append(BoundMessage(send, to, outward * DTYPES))
        exchanges = []
        bound = [one for one in receives if pays(one)], [one for one in sends if pays(one)]
        if persistent is not None and any(bound):
            exchanges.append(persistent.bind(*bound))
        if transport is not None:
            exchanges += [transport.irecv_again(*one) for one in receives if not pays(one)]
            exchanges += [transport.isend_again(*one) for one in sends if not pays(one)]
        phases.append(_phase(before, exchanges, [*after, *last]))
        sources += [one.peer for one in receives]
        targets += [one.peer for one in sends]
    return phases, Repeated(sources, targets)


def _phase(before: Pairs, exchanges: Sequence[BoundSet], after: Pairs) -> BoundSet:
    """Return messages that are exchanged together, with the copies before and after them."""
    if len(exchanges) == 1 and not (before or after):
        return exchanges[0]
    # A face has an axis of length 1, with which a copy takes four times as long.
    first, last = ([(a.squeeze(), b.squeeze()) for a, b in pairs] for pairs in (before, after))
    under_way: list[BoundSet] = []

    def start() -> None:
        for into, what in first:
            into[...] = what
        under_way[:] = exchanges
        for each in exchanges:
            each.start()

    def test() -> bool:
        under_way[:] = [each for each in under_way if not each.test()]
        if under_way:
            return False
        for into, what in last:
            into[...] = what
        return True

    return BoundSet(start, exchanges[0].test if len(exchanges) == 1 and not after else test)


def blocks(call: Call) -> Iterator[Call]:
    """Yield what an exchange with neighbors sends to each of them and receives, as messages."""
    resolved = call.prepared.resolved
    assert resolved is not None
    what, send, recv = resolved.call, cast("Any", call.send), cast("Any", call.recv)
    sends, receives = what.counts, what.recv_counts
    each = zip(what.peers, offsets(sends), sends, offsets(receives), receives, strict=True)
    for peer, start, sent, into, taken in each:
        if peer >= 0:  # and a rank
            label = of_message(what.name, what.nbytes, (peer, peer), BLOCKS, None)
            one = replace(call, prepared=replace(call.prepared, label=label))
            yield replace(one, send=send[start : start + sent], recv=recv[into : into + taken])


def start_of(calls: CallEngine, phases: Sequence[BoundSet], numbers: Repeated) -> Start:
    """Return the function that starts an exchange."""
    cell = calls.traffic.cell
    counts = [(cell(peer, PLANNED), 1) for peer in numbers.came.elements()]
    counts += [(cell(peer, PLANNED), 0) for peer in numbers.went.elements()]

    def start(_send: Buffer, _recv: Buffer) -> Steps:
        for each, way in counts:
            each[way] += 1
        return in_turn()

    def in_turn() -> Steps:
        for each in phases:
            each.start()
            # This yields False until all requests are complete, without Python code.
            yield from iter(each.test, True)

    return start
