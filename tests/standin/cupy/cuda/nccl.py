"""CuPy's binding of NCCL: names, arguments and errors as cupy_backends.cuda.libs.nccl has them."""

from typing import Any

from standin import control
from standin.nccl import calls, rendezvous
from standin.nccl.collectives import Terms as _Terms
from standin.nccl.library import TEXTS as _TEXTS

available = True

NCCL_SUM, NCCL_AVG = 0, 4
NCCL_FLOAT32 = 7

_NAMES = (
    "SUCCESS", "UNHANDLED_CUDA_ERROR", "SYSTEM_ERROR", "INTERNAL_ERROR", "INVALID_ARGUMENT", "INVALID_USAGE",
    "REMOTE_ERROR",
)  # fmt: skip


class NcclError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"NCCL_ERROR_{_NAMES[status]}: {_TEXTS[status].decode()}")


def check_status(status: int) -> None:
    if status:
        raise NcclError(status)


def get_version() -> int:
    return control.nccl_version()


def get_unique_id() -> bytes:
    return rendezvous.unique_id()


def groupStart() -> None:  # CuPy's name
    check_status(calls.group_start())


def groupEnd() -> None:
    check_status(calls.group_end())


class NcclCommunicator:
    _comm = 0

    def __init__(self, ndev: int, commId: bytes, rank: int, config: object = None) -> None:
        status, self._comm = calls.init(ndev, commId, rank)
        check_status(status)

    def __del__(self) -> None:
        self.destroy()

    @property
    def comm(self) -> int:
        return self._comm

    def destroy(self) -> None:
        comm = self._comm
        if comm:
            calls.destroy(comm)
            self._comm = 0

    def abort(self) -> None:
        if self._comm:
            calls.abort(self._comm)
            self._comm = 0

    def _told(self, attribute: str) -> Any:
        status, value = calls.told(self._comm, attribute)
        check_status(status)
        return value

    def device_id(self) -> int:
        return self._told("device")

    def size(self) -> int:
        return self._told("size")

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream) -> None:
        terms = _Terms("all_reduce", count, datatype, op)
        check_status(calls.collective(self._comm, terms, sendbuf, recvbuf, stream))

    def send(self, sendbuf, count, datatype, peer, stream) -> None:
        check_status(calls.message(self._comm, True, sendbuf, count, datatype, peer, stream))

    def recv(self, recvbuf, count, datatype, peer, stream) -> None:
        check_status(calls.message(self._comm, False, recvbuf, count, datatype, peer, stream))
