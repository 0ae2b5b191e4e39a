"""PyTorch's Gloo as a contender, between the same processes. PyTorch is loaded when it is asked for."""

import fcntl
import importlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py.MPI import Intracomm

from contest.cases import ROOT, Case
from contest.contenders import Enter, Entry, plain
from contest.rounds import Call

_SIOCGIFADDR = 0x8915
"""Of ``ioctl`` on Linux: gives the IPv4 address of a network interface (netdevice(7))."""


def address(interface: str) -> str | None:
    """Return the IPv4 address of a network interface of this host, None if there is no such."""
    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


@contextmanager
def gloo(bare: Intracomm, interface: str) -> Iterator[Enter]:
    """Give Gloo as a contender, and end its process group. Collective.

    Parameters
    ----------
    bare : MPI.Intracomm
        The ranks, which become those of the process group.
    interface : str
        The network interface that ranks find each other by, such as ``"lo"`` on one node.

    Raises
    ------
    ImportError
        If there is no PyTorch.
    LookupError
        On every rank, if one has no such interface.
    """
    # Else it warns where addresses have no names, as on a virtual cluster.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    torch: Any = importlib.import_module("torch")
    group: Any = importlib.import_module("torch.distributed")
    hosts = bare.allgather(address(interface))
    if None in hosts:
        raise LookupError(f"rank {hosts.index(None)} has no interface {interface}")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    rank, ranks = bare.Get_rank(), bare.Get_size()
    store: Any = None
    if rank == 0:
        store = group.TCPStore(hosts[0], 0, ranks, is_master=True, wait_for_workers=False)
    port = bare.bcast(None if store is None else store.port)
    if store is None:
        store = group.TCPStore(hosts[0], port, ranks, is_master=False)
    group.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        yield _enter(torch, group)
    finally:
        bare.Barrier()  # the store is rank 0's
        group.destroy_process_group()


def _enter(torch: Any, group: Any) -> Enter:
    """Return Gloo's calls on tensors that share the memory of a case's arrays."""

    def enter(case: Case) -> Entry | None:
        arrays = case.arrays(plain)
        x, out = (
            None if each is None else torch.from_numpy(each) for each in (arrays.x, arrays.out)
        )
        received, sent = (
            None if each is None else list(each.chunk(case.ranks)) for each in (out, x)
        )

        def reduced(call: Callable[[Any], object]) -> Call:
            """Gloo reduces in place alone: out of place the input is copied beforehand."""
            if case.in_place or out is None:
                return lambda: call(x)
            return lambda: call(out.copy_(x))

        def exchange() -> None:
            begun = group.isend(x, (case.rank + 1) % case.ranks)
            group.recv(out, (case.rank - 1) % case.ranks)
            begun.wait()

        # Of PyTorch 2.13; the older names go on working, with a warning.
        gathered = getattr(group, "all_gather_single", None) or group.all_gather_into_tensor
        scattered = getattr(group, "reduce_scatter_single", None) or group.reduce_scatter_tensor
        calls: dict[str, Call] = {
            "all_reduce": reduced(group.all_reduce),
            "broadcast": lambda: group.broadcast(out, ROOT),
            "reduce": reduced(lambda tensor: group.reduce(tensor, ROOT)),
            "all_gather": lambda: gathered(out, x),
            "reduce_scatter": lambda: scattered(out, x),
            "all_to_all": lambda: group.all_to_all_single(out, x),
            "gather": lambda: group.gather(x, received, ROOT),
            "scatter": lambda: group.scatter(out, sent, ROOT),
            "send_recv": exchange,
        }
        call = calls.get(case.collective)
        return None if call is None else Entry(call, arrays)

    return enter
