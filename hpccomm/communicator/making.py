"""Makes a communicator over a backend, with its node's communicator and a self-check.

`creation` calls it for the first one, `groups` for further ones.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.backends.control import Control
from hpccomm.calls.core import Core
from hpccomm.calls.lanes import AnyDeviceLane, Check, HostLane, Lanes, RefusingLane
from hpccomm.calls.lanes.lane import ARRAYS, wire_tag
from hpccomm.calls.on_host import HostDispatch
from hpccomm.calls.policy import Tables
from hpccomm.communicator.communicator import Communicator
from hpccomm.communicator.groups import grouped, own_ranks
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.device import DeviceBackend, DeviceDispatch
from hpccomm.dtypes import DType
from hpccomm.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    CommunicationError,
    HpccommError,
    PeerLost,
)
from hpccomm.memory.cuda import library
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.recorder import user_site
from hpccomm.settings import Settings

if TYPE_CHECKING:
    from hpccomm.calls.staged import StagedDispatch

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
        Ranks that the parent loses.
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
    if isinstance(parent, RefusingLane):
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
        from hpccomm.calls.on_device import NcclDispatch

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
        dispatch = NcclDispatch(backend_of_device, backend.topology, settings, through_host())
        return dispatch, backend_of_device, ""

    def aware() -> Opened:
        from hpccomm.calls.cuda_aware import open_aware

        dispatch, why = open_aware(backend, control, calls, device, settings, through_host())
        return dispatch, None, why

    def through_host(reason: str = "") -> "StagedDispatch":
        from hpccomm.calls.staged import StagedDispatch

        return StagedDispatch(host, backend.messages, device, _wire, reason)

    def staged() -> Opened:
        return through_host("; ".join(reasons) or "that was asked for"), None, ""

    openers = {NCCL: nccl, AWARE: aware, STAGED: staged}
    for way in _ORDER.get(settings.backend, tuple(openers)):
        dispatch, over, why = openers[way]()
        if dispatch is not None:
            best = "as asked" if settings.backend in _ORDER else "it is the best way"
            because = "; ".join((*reasons, why) if why else reasons) or best
            # A way that is slower than it could be is a warning.
            level = logging.WARNING if tell and way == STAGED and reasons else logging.INFO
            _log(calls, f"device arrays go over {dispatch.name}: {because}", level)
            from hpccomm.calls.lanes.device import DeviceLane

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


NODE = "new_comm had nccl=, which is not the node's; comm.split(comm.node) takes them"


def make(
    backend: Backend,
    name: str,
    settings: Settings,
    device: int | None,
    parent: "AnyDeviceLane | None" = None,
    left_out: tuple[int, ...] = (),
    *,
    tables: Tables,
    of_node: bool = False,
    nccl: object = None,
) -> Communicator:
    """Return the communicator over `backend`, with that of its node if there are several. Collective; blocks.

    Parameters
    ----------
    backend : Backend
        Its ranks.
    name : str
        Its name.
    settings : Settings
        Its settings.
    device : int or None
        CUDA device of this rank.
    parent : DeviceLane, RefusingLane or None
        The parent communicator's device lane; None without a parent.
    left_out : tuple of int
        Ranks that the parent loses.
    tables : policy.Tables
        The tables of ``"auto"``.
    of_node : bool
        Whether it is its node's communicator.
    nccl : object
        The program's NCCL communicator of these ranks; None makes one.

    Raises
    ------
    BackendUnavailable
        On every rank, if the settings ask for what cannot run here.
    """
    calls = CallEngine(name, backend, settings)
    control = Control(backend.collectives, calls.run_steps)
    node_comm: Communicator | None = None
    try:
        if backend.topology.num_nodes > 1 and not of_node:
            with calls.beside_watchdog("making the node's communicator", ordered=True):
                group = grouped(backend, backend.topology.neighbors(backend.rank), 0)
            lane = parent if nccl is None else RefusingLane(name, NODE)
            try:
                with own_ranks(calls):
                    node_comm = make(
                        group, f"{name}.node", settings, device, lane, tables=tables, of_node=True
                    )
            except HpccommError as error:
                # The other nodes find a deadline or a loss by themselves.
                if not isinstance(error, CollectiveTimeout | PeerLost):
                    control.all_gather(str(error).encode())
                raise
            if why := max(control.all_gather(b"")):
                raise BackendUnavailable(f"on another node: {why.decode()}")
        if settings.shared_memory == "off":  # calls, messages and `empty` find none to use
            backend.collectives.shared = backend.messages.shared = None
        check = Check(calls, control, settings.check)
        host = HostLane(calls, check, HostDispatch(backend, settings, tables), backend)
        lanes = Lanes(host, RefusingLane(name, "it is being made"))
        core = Core(backend, calls, control, check, settings, lanes, device)
        lanes.device = open_device_lane(core, parent, left_out, not of_node, nccl)
        # What is made of another one has its ways, which were tried.
        if settings.self_check and parent is None:
            _check(core)
        calls.opened()
        core.made, core.site = True, None if of_node else user_site()
        return Communicator(core, partial(make, tables=tables), node_comm)
    except BaseException:
        if node_comm is not None:
            node_comm.abort()  # which no caller will get
        raise


def _check(core: Core) -> None:
    """Reduce a few numbers on each way that there is, and look at the results.

    The ranks agree on the outcome, so that none makes calls, or ends, during another's check.
    """
    backend, name, wrong = core.backend, core.calls.name, ""
    expected = np.arange(4.0) * backend.size + sum(range(backend.size))
    mine = np.arange(4.0) + backend.rank
    for lane in (core.lanes.host, core.lanes.device):
        for choice, result in lane.tried(mine, core.control):
            if not wrong and not np.array_equal(result, expected):
                wrong = (
                    f"{choice.algorithm} all_reduce of {lane.memory} arrays over {choice.backend} gave "
                    f"{result.tolist()} and {expected.tolist()} is right"
                )
    wrong = core.control.objections(wrong)
    if wrong:
        raise CommunicationError(
            f"self-check of communicator {name!r}: {wrong}; this installation does not compute correctly "
            "between these ranks",
            communicator=name,
            rank=backend.rank,
            operation="self-check",
        )
