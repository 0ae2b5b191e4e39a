"""Making a communicator over a backend: node group and self-check included."""

from functools import partial

import numpy as np

from hpccomm.backends.control import Control
from hpccomm.communicator.communicator import Communicator
from hpccomm.communicator.devices import Devices
from hpccomm.communicator.opening import open_devices
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch import HostDispatch
from hpccomm.dispatch.policy import AUTO, Tables
from hpccomm.errors import CommunicationError
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.engine import CallEngine
from hpccomm.settings import Settings


def make(
    backend: Backend,
    name: str,
    settings: Settings,
    device: int | None,
    parent: Devices | str | None = None,
    left_out: tuple[int, ...] = (),
    *,
    tables: Tables,
) -> Communicator:
    """Return the communicator over `backend`, with that of its node. Collective; blocks.

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
    parent : Devices, str or None
        The device side of the communicator that it is made of, or why that has none; None where it is
        made of none.
    left_out : tuple of int
        Ranks that the parent is shrunk by.
    tables : policy.Tables
        What ``"auto"`` goes by.

    Raises
    ------
    BackendUnavailable
        On every rank, if the settings ask for what cannot run here.
    """
    calls = CallEngine(name, backend, settings)
    if backend.size == 1:  # it is that of its node
        return _over(backend, calls, settings, device, tables, None, parent, left_out)
    with calls.beside_watchdog("making the node's communicator"):
        of_node = backend.group(backend.topology.neighbours(backend.rank), 0)
    node_calls = CallEngine(f"{name}.node", of_node, settings)
    node_comm = _over(of_node, node_calls, settings, device, tables, None, None, (), tell=False)
    try:
        return _over(backend, calls, settings, device, tables, node_comm, parent, left_out)
    except BaseException:
        node_comm.abort()  # which nobody will have
        raise


def _over(
    backend: Backend,
    calls: CallEngine,
    settings: Settings,
    device: int | None,
    tables: Tables,
    node_comm: Communicator | None,
    parent: Devices | str | None,
    left_out: tuple[int, ...],
    *,
    tell: bool = True,
) -> Communicator:
    if settings.shared_memory == "off":  # calls, messages and `empty` find none to use
        backend.collectives.shared = backend.messages.shared = None
    control = Control(backend.collectives, calls.drive)
    path = HostDispatch(backend, settings, tables)
    devices = open_devices(
        backend, calls, control, settings, path, device, parent, left_out, tell=tell
    )
    comm = Communicator(
        backend,
        calls,
        control,
        settings,
        device,
        node_comm,
        path,
        devices,
        partial(make, tables=tables),
    )
    if settings.self_check:
        _check(backend, calls, path)
        if isinstance(devices, Devices):
            _check_devices(backend, calls, control, devices)
    return comm


def _check(backend: Backend, calls: CallEngine, path: HostDispatch) -> None:
    """Reduce a few numbers on each way that there is, and look at the results."""
    expected = np.arange(4.0) * backend.size + sum(range(backend.size))
    call = Signature("all_reduce", expected.dtype, (4,), op=ReduceOp.SUM, in_place=True)
    # The library's, messages, and memory that is shared: of one node, or within several.
    ways = {
        AUTO,
        "recursive_doubling",
        "shm" if backend.topology.num_nodes == 1 else "hierarchical",
    }
    for algorithm in sorted(ways & {AUTO, *path.applicable(call, False)}):
        x = np.arange(4.0) + backend.rank
        way = path.decide(call, algorithm, False)
        if way.run is None:
            calls.drive("self-check", way.start(x, x))
        else:
            with calls.beside_watchdog("self-check"):
                way.run(x, x)
        if not np.array_equal(x, expected):
            raise CommunicationError(
                f"self-check of communicator {calls.name!r}: {way.choice.algorithm} all_reduce "
                f"over {backend.name} gave {x.tolist()} and {expected.tolist()} is right; "
                "this MPI installation does not compute correctly between these ranks",
                communicator=calls.name,
                rank=backend.rank,
                operation="self-check",
            )


def _check_devices(backend: Backend, calls: CallEngine, control: Control, devices: Devices) -> None:
    """Reduce a few numbers on the way of device arrays, and look at the result."""
    expected = np.arange(4.0) * backend.size + sum(range(backend.size))
    given = np.arange(4.0) + backend.rank
    call = Signature("all_reduce", expected.dtype, (4,), op=ReduceOp.SUM, in_place=True)
    way = devices.path.decide(call, AUTO, False)
    got = devices.tried(way, given, control)
    if not np.array_equal(got, expected):
        raise CommunicationError(
            f"self-check of communicator {calls.name!r}: {way.choice.algorithm} all_reduce of device "
            f"arrays over {way.choice.backend} gave {got.tolist()} and {expected.tolist()} is right; "
            "this installation does not compute correctly between these devices",
            communicator=calls.name,
            rank=backend.rank,
            operation="self-check",
        )
