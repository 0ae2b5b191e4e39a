"""The device side of a communicator that is being made: which way device arrays go."""

import logging

from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import AnyDeviceLane, RefusingLane
from hpccomm.communicator.lanes.message import ARRAYS, wire_tag
from hpccomm.contracts.device import DeviceBackend, DeviceDispatch
from hpccomm.dtypes import DType
from hpccomm.errors import BackendUnavailable
from hpccomm.memory.cuda import library
from hpccomm.runtime.engine import CallEngine

logger = logging.getLogger("hpccomm")

NCCL, AWARE, STAGED = "nccl", "mpi", "staged"

_ORDER = {"nccl": (NCCL,), "mpi": (AWARE, STAGED), "loopback": (STAGED,)}
"""The ways that are tried where the user named a backend; else all of them, in this order."""

Opened = tuple[DeviceDispatch | None, DeviceBackend | None, str]
"""One way, with what puts its calls on streams, and why it is or is not there."""


def open_device_lane(
    core: Core,
    parent: "AnyDeviceLane | None",
    left_out: tuple[int, ...],
    tell: bool,
    nccl_comm: object,
) -> AnyDeviceLane:
    """Return the lane of device arrays. Collective; blocks; the same on all ranks.

    Parameters
    ----------
    core : Core
        Of the communicator that is being made.
    parent : DeviceLane, RefusingLane or None
        That of the communicator that it is made of; None where it is made of none.
    left_out : tuple of int
        Ranks that the parent is shrunk by.
    tell : bool
        Whether to warn of a way that is slower than it could be.
    nccl_comm : object
        NCCL's communicator that the program has; None makes one.

    Raises
    ------
    BackendUnavailable
        On every rank, if the user asked for NCCL and it cannot run.
    CollectiveTimeout
        If a rank does not take part.
    """
    backend, calls, control, settings = core.backend, core.calls, core.control, core.settings
    host, device = core.lanes.host.dispatch, core.device
    if parent is not None and parent.reason:
        return RefusingLane(calls.name, parent.reason)
    mine = "" if device is not None else library.unavailable() or "it has no CUDA device"
    absent = control.objections(mine)
    if absent:
        if settings.backend == NCCL:
            raise BackendUnavailable(f"backend 'nccl' cannot run: {absent}")
        _log(calls, f"device arrays are refused: {absent}")
        return RefusingLane(calls.name, absent)
    assert device is not None
    reasons: list[str] = []

    # From here on there is a device. Hosts without one load none of what it takes.
    def nccl() -> Opened:
        from hpccomm.backends.nccl import open_nccl
        from hpccomm.dispatch.nccl import NcclDispatch

        backend_of_device, why = open_nccl(
            backend,
            control,
            calls.run_steps,
            device,
            name=calls.name,
            parent=parent.backend if parent is not None and left_out else None,
            left_out=left_out,
            settling=None if parent is None else parent.settling,
            config=settings.nccl_config,
            given=nccl_comm,
        )
        if backend_of_device is None:
            return None, None, why
        dispatch = NcclDispatch(backend_of_device, backend.topology, settings)
        return dispatch, backend_of_device, ""

    def aware() -> Opened:
        from hpccomm.dispatch.cuda_aware_probe import open_aware

        dispatch, why = open_aware(backend, control, calls, device, settings, _wire)
        return dispatch, None, why

    def staged() -> Opened:
        from hpccomm.dispatch.staged import StagedDispatch

        reason = "; ".join(reasons) or "that was asked for"
        return StagedDispatch(host, backend.messages, device, _wire, reason), None, ""

    openers = {NCCL: nccl, AWARE: aware, STAGED: staged}
    for way in _ORDER.get(settings.backend, tuple(openers)):
        dispatch, over, why = openers[way]()
        if dispatch is not None:
            best = "as asked" if settings.backend in _ORDER else "it is the best way"
            because = "; ".join((*reasons, why) if why else reasons) or best
            # A way that is slower than it could be is a warning.
            level = logging.WARNING if tell and way == STAGED and reasons else logging.INFO
            _log(calls, f"device arrays go over {dispatch.name}: {because}", level)
            from hpccomm.communicator.lanes.device import DeviceLane

            high = settings.high_priority_stream
            return DeviceLane(calls, core.check, dispatch, over, device, high_priority=high)
        reasons.append(f"{way} cannot: {why}")
    if settings.backend == NCCL:
        raise BackendUnavailable(f"backend 'nccl' cannot run: {why}")
    return RefusingLane(calls.name, "; ".join(reasons))


def _wire(tag: int, dtype: DType) -> int:
    """Return the transport's tag of an array's message."""
    return wire_tag(tag, ARRAYS, dtype)


def _log(calls: CallEngine, text: str, level: int = logging.INFO) -> None:
    if calls.backend.rank == 0:
        logger.log(level, "%s: %s", calls.name, text)
