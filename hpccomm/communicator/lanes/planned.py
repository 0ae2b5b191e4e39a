"""Messages of plans on arrays in host memory, which start repeatedly.

They go over a transport of their own, each with its own tag. If the transport can bind messages to
their arrays, it does so once. The lanes and batches of plans use it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpccomm.communicator.lanes.lane import Call
from hpccomm.contracts.backend import Buffer, Start
from hpccomm.contracts.transport import DTYPES, BoundMessage, BoundSet, Steps, Transport
from hpccomm.memory.views import overlap
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.traffic import PLANNED, Repeated
from hpccomm.runtime.waiting import at_once, completed


class StepMessages:
    """The messages of one step, bound to their arrays where that pays.

    Parameters
    ----------
    calls : sequence of Call
        The messages.
    transport : Transport or None
        The plans' transport; None without one.
    """

    def __init__(self, calls: Sequence[Call], transport: Transport | None) -> None:
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.receives: list[BoundMessage] = []
        self.sends: list[BoundMessage] = []
        self.copies: list[tuple[Any, Any]] = []
        for call in calls:
            (to, origin), (outward, inward) = call.ends, call.tags
            send: Any = call.send
            recv: Any = call.recv
            if inward is not None and origin is not None:
                self.sources.append(origin)
                self.receives.append(BoundMessage(recv, origin, inward * DTYPES))
            if outward is not None and to is not None:
                self.targets.append(to)
                if inward is not None and overlap(send, recv):
                    # The received message replaces the sent one, which is sent from a copy.
                    send = np.empty_like(send)
                    self.copies.append((send, call.send))
                self.sends.append(BoundMessage(send, to, outward * DTYPES))
        self.bound, self.loose = self._bound(transport)

    def _bound(self, transport: Transport | None) -> tuple[BoundSet | None, Callable[[], Steps]]:
        """Return the messages that are bound, if there are such, and what gives the steps of the others."""
        if transport is None or not (self.receives or self.sends):
            return None, nothing
        persistent = transport.persistent

        def pays(one: BoundMessage) -> bool:
            return persistent is not None and persistent.pays(one.peer, one.data.nbytes)

        receives = [one for one in self.receives if pays(one)]
        sends = [one for one in self.sends if pays(one)]
        loose_in = [one for one in self.receives if not pays(one)]
        loose_out = [one for one in self.sends if not pays(one)]
        irecv, isend = transport.irecv, transport.isend

        def loose() -> Steps:
            requests = [irecv(*one) for one in loose_in]
            requests.extend(isend(*one) for one in loose_out)
            return completed(requests)

        if persistent is None or not (receives or sends):
            return None, loose
        return persistent.bind(receives, sends), loose if loose_in or loose_out else nothing

    @property
    def whole(self) -> tuple[BoundSet, Repeated] | None:
        """The messages, where all of them are bound and nothing is to be copied; None if there is more to do."""
        if self.bound is None or self.loose is not nothing or self.copies:
            return None
        return self.bound, Repeated(self.sources, self.targets)


def start_of(
    calls: CallEngine, messages: StepMessages, collectives: Callable[[], Steps] | None
) -> Start:
    """Return the function that starts the messages of a step, and beside them its collectives."""
    cell = calls.traffic.cell
    counts = [(cell(peer, PLANNED), 1) for peer in messages.sources]
    counts += [(cell(peer, PLANNED), 0) for peer in messages.targets]
    exchange, loose = messages.bound, messages.loose

    def start(_send: Buffer, _recv: Buffer) -> Steps:
        for each, way in counts:
            each[way] += 1
        for into, what in messages.copies:
            np.copyto(into, what)
        under_way = []
        if exchange is not None:
            exchange.start()
            # This yields False until all requests are complete, without Python code.
            under_way.append(iter(exchange.test, True))
        if loose is not nothing:
            under_way.append(loose())
        if collectives is not None:
            under_way.append(collectives())
        return under_way[0] if len(under_way) == 1 else at_once(under_way)

    return start


def nothing() -> Steps:
    """Return no steps."""
    return iter(())


def used(call: Call) -> Call:
    """Return a message with those arrays alone that it sends and receives."""
    to, origin = call.ends
    return replace(
        call, send=None if to is None else call.send, recv=None if origin is None else call.recv
    )
