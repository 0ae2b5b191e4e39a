"""CuPy's own NCCL calls on a communicator of their own: what hpccomm's are held against."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import hpccomm
from hpccomm.memory.cuda.identity import identify

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Call = Callable[[], object]


class BareNccl:
    """An NCCL communicator of the ranks of `mpi_comm`, made as CuPy's users make one. Collective.

    Parameters
    ----------
    mpi_comm : MPI.Intracomm
        Exchanges the unique id.
    device : int
        CUDA device of this rank.
    """

    def __init__(self, mpi_comm: "Intracomm", device: int) -> None:
        import cupy
        from cupy.cuda import nccl

        self._nccl = nccl
        unique_id = mpi_comm.bcast(nccl.get_unique_id() if mpi_comm.Get_rank() == 0 else None)
        with cupy.cuda.Device(device):
            self._comm = nccl.NcclCommunicator(mpi_comm.Get_size(), unique_id, mpi_comm.Get_rank())

    def all_reduce(self, x: Any, out: Any, stream: Any) -> Call:
        """Return the sum of float32 arrays as a call with ready arguments."""
        return partial(
            self._comm.allReduce,
            *(x.data.ptr, out.data.ptr, x.size),
            *(self._nccl.NCCL_FLOAT32, self._nccl.NCCL_SUM, stream.ptr),
        )

    def close(self) -> None:
        """Free it, after all that is under way has ended."""
        self._comm.destroy()


def shares_a_device(comm: hpccomm.Communicator) -> bool:
    """Tell whether two ranks have one GPU. Collective; blocks."""
    assert comm.device is not None
    return len(set(comm.all_gather_object(identify(comm.device).uuid))) < comm.size


def versions() -> str:
    """Return the device and the libraries that figures belong to, as text."""
    import cupy
    from cupy.cuda import nccl

    device = identify(cupy.cuda.Device().id)
    return (
        f"{device.name}, NCCL {nccl.get_version()}, CuPy {cupy.__version__}, driver {device.driver}"
    )
