"""Making a communicator over a backend: node group and self-check included."""

from functools import partial

import numpy as np

from hpccomm.backends.control import Control
from hpccomm.communicator.communicator import Communicator
from hpccomm.communicator.core import Core
from hpccomm.communicator.lanes import AnyDeviceLane, Check, HostLane, Lanes, RefusingLane
from hpccomm.communicator.opening import open_device_lane
from hpccomm.communicator.shrinking import grouped, own_ranks
from hpccomm.contracts.backend import Backend
from hpccomm.dispatch.host import HostDispatch
from hpccomm.dispatch.policy import Tables
from hpccomm.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    CommunicationError,
    HpccommError,
    PeerLost,
)
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.recorder import site_of, user_frame
from hpccomm.settings import Settings

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
        What it goes by.
    device : int or None
        CUDA device of this rank.
    parent : DeviceLane, RefusingLane or None
        The lane of device arrays of the communicator that it is made of; None where it is made of none.
    left_out : tuple of int
        Ranks that the parent is shrunk by.
    tables : policy.Tables
        What ``"auto"`` goes by.
    of_node : bool
        Whether it is made as that of its node, which has no other one.
    nccl : object
        NCCL's communicator that the program has of these ranks; None makes one.

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
                group = grouped(backend, backend.topology.neighbours(backend.rank), 0)
            lane = None if nccl is None else RefusingLane(name, NODE)
            try:
                with own_ranks(calls):
                    node_comm = make(
                        group, f"{name}.node", settings, device, lane, tables=tables, of_node=True
                    )
            except HpccommError as error:
                if not isinstance(
                    error, CollectiveTimeout | PeerLost
                ):  # the other nodes find these
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
        if settings.self_check:
            _check(core)
        calls.opened()
        core.made, core.site = True, None if of_node else site_of(user_frame())
        return Communicator(core, partial(make, tables=tables), node_comm)
    except BaseException:
        if node_comm is not None:
            node_comm.abort()  # which nobody will have
        raise


def _check(core: Core) -> None:
    """Reduce a few numbers on each way that there is, and look at the results.

    The ranks agree on what they found, so that none makes calls, or ends, while another is at it.
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
