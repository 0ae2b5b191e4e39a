"""How the ranks of a new communicator find each other, by the unique id."""

import pickle
import secrets
import socket
import threading
from typing import NamedTuple

from standin import control, devices
from standin.nccl.post import post


class Member(NamedTuple):
    """What a rank tells the others of itself."""

    rank: int
    size: int
    address: str
    gpu: tuple[str, bytes]
    shares: bool


def unique_id() -> bytes:
    """Return a new unique id: an address and a mailbox of this process, which brings the ranks together once."""
    name = f"{post().address}/{secrets.token_hex(8)}"
    threading.Thread(target=_bring_together, args=(name,), daemon=True).start()
    return name.encode().ljust(128, b"\0")


def _bring_together(name: str) -> None:
    members: list[Member] = []
    while not members or len(members) < members[0].size:
        members.append(pickle.loads(post().box(name).take("come")))
    table = pickle.dumps(sorted(members))
    for member in members:
        post().send(member.address, (name, member.rank), "all", table)


def myself(rank: int, size: int, device: devices.Device) -> Member:
    """Return what this rank tells the others."""
    host = control.nccl_param("NCCL_HOSTID") or socket.gethostname()
    shares = control.nccl_param("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    shares = shares and control.nccl_version() >= 23000
    return Member(rank, size, post().address, (host, device.uuid), shares)


def meet(unique: bytes, mine: Member) -> tuple[str, list[Member]]:
    """Return a name for all ranks, and them in their order; block until all are there."""
    name = unique.rstrip(b"\0").decode()
    post().send(name.rpartition("/")[0], name, "come", pickle.dumps(mine))
    return name.lstrip("\0"), pickle.loads(post().box((name, mine.rank)).take("all"))
