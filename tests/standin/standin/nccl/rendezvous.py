"""How the ranks of a new communicator find each other, by the unique id."""

import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener

from standin import control, devices
from standin.nccl.post import post

ID_BYTES = 128
INVALID_USAGE, REMOTE_ERROR = 5, 6


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
    """Return a new unique id. The process that asks for it brings the ranks together, once."""
    name = f"\0standin-root-{os.getpid()}-{secrets.token_hex(8)}"
    listener = Listener(name, "AF_UNIX", backlog=1024)
    threading.Thread(target=_bring_together, args=(listener,), daemon=True).start()
    return name.encode().ljust(ID_BYTES, b"\0")


def _bring_together(listener: Listener) -> None:
    members: dict[int, tuple[Member, Connection]] = {}
    with listener:
        while not members or len(members) < next(iter(members.values()))[0].size:
            connection = listener.accept()
            with suppress(EOFError, OSError):
                told = connection.recv()
                members[told.rank] = told, connection
    table = [members[rank][0] for rank in sorted(members)]
    for _, connection in members.values():
        with connection:
            connection.send(table)


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
    try:
        with Client(unique.rstrip(b"\0").decode(), "AF_UNIX") as connection:
            connection.send(mine)
            table = connection.recv()
    except (EOFError, OSError):
        return REMOTE_ERROR, []  # nobody is there: an id serves one communicator
    return refusal(table), table


def refusal(table: list[Member]) -> int:
    """Return the status with which NCCL refuses these ranks; 0 where it takes them."""
    gpus = {(member.host, member.device) for member in table}
    if len(gpus) < len(table) and not all(member.shares for member in table):
        return INVALID_USAGE  # Duplicate GPU detected
    return 0
