"""How the ranks of a new communicator find each other, by the unique id."""

import pickle
import secrets
import socket
import threading
from dataclasses import dataclass

from standin import control, devices
from standin.nccl.post import post

ID_BYTES = 128
INVALID_USAGE = 5


@dataclass(frozen=True)
class Member:
    """What a rank tells the others of itself."""

    rank: int
    size: int
    address: str
    device: bytes
    host: str
    shares: bool


def unique_id() -> bytes:
    """Return a new unique id: an address and a mailbox of this process, which brings the ranks together once."""
    name = f"{post().address}/{secrets.token_hex(8)}"
    threading.Thread(target=_bring_together, args=(name,), daemon=True).start()
    return name.encode().ljust(ID_BYTES, b"\0")


def _bring_together(name: str) -> None:
    members: dict[int, Member] = {}
    while not members or len(members) < next(iter(members.values())).size:
        told = pickle.loads(post().box(name).take("come", _never))
        members[told.rank] = told
    table = pickle.dumps([members[rank] for rank in sorted(members)])
    for rank, member in members.items():
        post().send(member.address, (name, rank), "all", table)


def _never() -> bool:
    return False


def myself(rank: int, size: int, device: devices.Device) -> Member:
    """Return what this rank tells the others."""
    return Member(
        rank,
        size,
        post().address,
        device.uuid,
        control.nccl_param("NCCL_HOSTID") or socket.gethostname(),
        control.nccl_param("NCCL_MULTI_RANK_GPU_ENABLE") == "1" and control.nccl_version() >= 23000,
    )


def meet(unique: bytes, mine: Member) -> tuple[int, list[Member]]:
    """Return a status and the ranks in their order; block until all are there."""
    name = unique.rstrip(b"\0").decode()
    post().send(name.rpartition("/")[0], name, "come", pickle.dumps(mine))
    table = pickle.loads(post().box((name, mine.rank)).take("all", _never))
    return refusal(table), table


def refusal(table: list[Member]) -> int:
    """Return the status with which NCCL refuses these ranks; 0 where it takes them."""
    gpus = {(member.host, member.device) for member in table}
    if len(gpus) < len(table) and not all(member.shares for member in table):
        return INVALID_USAGE  # Duplicate GPU detected
    return 0
