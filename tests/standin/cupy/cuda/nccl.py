"""CuPy's binding of NCCL: names, arguments and errors as cupy_backends.cuda.libs.nccl has them."""

from standin import control
from standin.nccl import calls, rendezvous
from standin.nccl.library import TEXTS as _TEXTS
from standin.nccl.library import library as _library

available = True

NCCL_SUM, NCCL_AVG = 0, 4
NCCL_FLOAT32 = 7


class NcclError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"NCCL_ERROR: {_TEXTS[status]}")


def check_status(status):
    if status:
        raise NcclError(status)


def get_version():
    return control.nccl_version()


def get_unique_id():
    return rendezvous.unique_id()


def groupStart():  # CuPy's name
    check_status(_library.ncclGroupStart())


def groupEnd():
    check_status(_library.ncclGroupEnd())


class NcclCommunicator:
    _comm = 0

    def __init__(self, ndev, commId, rank, config=None):
        status, self._comm = calls.init(ndev, commId, rank)
        check_status(status)

    def __del__(self):
        self.destroy()

    @property
    def comm(self):
        return self._comm

    def destroy(self):
        comm = self._comm
        if comm:
            calls.destroy(comm)
            self._comm = 0

    def abort(self):
        if self._comm:
            calls.abort(self._comm)
            self._comm = 0

    def _told(self, attribute):
        status, value = calls.told(self._comm, attribute)
        check_status(status)
        return value

    def device_id(self):
        return self._told("device")

    def size(self):
        return self._told("size")

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        given = sendbuf, recvbuf, count, datatype, op, self._comm, stream
        check_status(_library.ncclAllReduce(*given))

    def send(self, sendbuf, count, datatype, peer, stream):
        check_status(_library.ncclSend(sendbuf, count, datatype, peer, self._comm, stream))

    def recv(self, recvbuf, count, datatype, peer, stream):
        check_status(_library.ncclRecv(recvbuf, count, datatype, peer, self._comm, stream))
