"""Device arrays that all ranks of a plan can register: where they lie, and the way that uses it."""

from dataclasses import replace
from typing import Any

from hpccomm.communicator.lanes.call import Call
from hpccomm.contracts.device import DeviceBackend, DeviceRoute
from hpccomm.memory.views import overlap


def places(call: Call, backend: DeviceBackend | None) -> list[tuple[int, int, int]]:
    """Return where a call's arrays lie in memory that can be registered; empty if one of them does not.

    Ranks must find the same. In place the larger array counts, since the own block lies elsewhere on each.
    """
    arrays: tuple[Any, Any] = (call.send, call.recv)
    there = [each for each in arrays if each is not None and each.nbytes]
    if backend is None or not there:
        return []
    whole = max(there, key=lambda each: each.nbytes)
    if all(overlap(each, whole) for each in there):
        there = [whole]
    found = [backend.place(each.pointer, each.nbytes) for each in there]
    return [each for each in found if each is not None] if all(found) else []


def on_registered(route: DeviceRoute) -> DeviceRoute:
    """Return the way of calls whose arrays are registered on all ranks."""
    assert route.registered is not None
    choice = replace(route.choice, registered=True)
    return replace(route, choice=choice, launch=route.registered(), registered=None, grouped=None)
