"""How the ranks of a new communicator find each other, by the unique id."""

import os
import pickle
import secrets
import socket
import struct
import threading
from dataclasses import dataclass

from standin import control, devices
from standin.nccl.post import post, read

ID_BYTES = 128
INVALID_USAGE, REMOTE_ERROR, INVALID_ARGUMENT = 5, 6, 4

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Member:
    """What a rank tells the others of itself."""

    rank: int
    size: int
    address: str
    device: bytes
    bus: str
    host: str
    version: int
    shares: bool


def unique_id() -> bytes:
    """Return a new unique id. The process that asks for it brings the ranks together, once."""
    name = f"\0standin-root-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(name)
    listener.listen(1024)
    threading.Thread(target=_bring_together, args=(listener,), daemon=True).start()
    return name.encode().ljust(ID_BYTES, b"\0")


def _bring_together(listener: socket.socket) -> None:
    members: dict[int, tuple[Member, socket.socket]] = {}
    with listener:
        while not members or len(members) < next(iter(members.values()))[0].size:
            connection, _ = listener.accept()
            told = _receive(connection)
            if isinstance(told, Member):
                members[told.rank] = told, connection
    table = [members[rank][0] for rank in sorted(members)]
    for _, connection in members.values():
        with connection:
            _send(connection, table)


def _send(connection: socket.socket, what: object) -> None:
    data = pickle.dumps(what)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> object:
    header = read(connection, _LENGTH.size)
    data = None if header is None else read(connection, _LENGTH.unpack(header)[0])
    return None if data is None else pickle.loads(data)


def myself(rank: int, size: int, device: devices.Device) -> Member:
    """Return what this rank tells the others."""
    return Member(
        rank,
        size,
        post().address,
        device.uuid,
        device.bus,
        control.nccl_param("NCCL_HOSTID") or socket.gethostname(),
        control.nccl_version(),
        control.nccl_param("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
    )


def meet(unique: bytes, mine: Member) -> tuple[int, list[Member]]:
    """Return a status and the ranks in their order; block until all are there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            connection.connect(unique.rstrip(b"\0"))
            _send(connection, mine)
            table = _receive(connection)
        except OSError:
            return REMOTE_ERROR, []  # nobody is there: an id serves one communicator
    if not isinstance(table, list):
        return REMOTE_ERROR, []
    return refusal(table), table


def refusal(table: list[Member]) -> int:
    """Return the status with which NCCL refuses these ranks; 0 where it takes them."""
    if [member.rank for member in table] != list(range(table[0].size)):
        return INVALID_ARGUMENT
    if len({(member.size, member.version) for member in table}) > 1:
        return INVALID_USAGE
    shared = all(member.shares for member in table) and table[0].version >= 23000
    by_bus = table[0].version < 23000  # so that instances of one GPU (MIG) are refused
    gpus = {(member.host, member.bus if by_bus else member.device) for member in table}
    if len(gpus) < len(table) and not shared:
        return INVALID_USAGE  # Duplicate GPU detected
    return 0
