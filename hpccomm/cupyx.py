"""The calls of ``cupyx.distributed`` over hpccomm, for a change of import.

>>> from hpccomm.cupyx import init_process_group            # doctest: +SKIP
>>> comm = init_process_group(n_devices, rank)              # doctest: +SKIP
>>> comm.all_reduce(in_array, out_array, op="sum")          # doctest: +SKIP

Signatures and the layout of arrays follow CuPy 14.2, ``cupyx/distributed/_nccl_comm.py``.
"""

from typing import Any

import hpccomm
from hpccomm.errors import LaunchError, UsageError, did_you_mean
from hpccomm.memory.cuda.library import cupy, unavailable
from hpccomm.reductions import ReduceOp
from hpccomm.settings import check_int

_OPS = {name: ReduceOp(name) for name in ("sum", "prod", "min", "max")}


def init_process_group(
    n_devices: int,
    rank: int,
    *,
    backend: str = "nccl",
    host: str | None = None,  # noqa: ARG001 (cupyx has it)
    port: int | None = None,  # noqa: ARG001
    use_mpi: bool = False,  # noqa: ARG001
) -> "NCCLBackend":
    """Return an `NCCLBackend`. Called by all ranks that ``mpiexec`` has started; blocks.

    Parameters
    ----------
    n_devices, rank : int
        As in `NCCLBackend`.
    backend : str
        ``"nccl"``, which is all that cupyx has.
    host, port, use_mpi
        Not used: MPI starts the ranks, without a server.

    Returns
    -------
    NCCLBackend
        Its calls are collective, or messages.
    """
    if backend != "nccl":
        raise UsageError(f'backend is {backend!r}; give "nccl", or use hpccomm.new_comm')
    return NCCLBackend(n_devices, rank)


class NCCLBackend:
    """A communicator with the calls of ``cupyx.distributed.NCCLBackend``. Called by all ranks; blocks.

    As in cupyx, it is for CuPy's current device: call ``cupy.cuda.Device(number).use()`` before. Arrays go over NCCL
    where it can run, else as `hpccomm.new_comm` says. Arrays of NumPy are taken as well.
    Sparse matrices are refused. Wrong arguments are a `hpccomm.UsageError`, where cupyx raises RuntimeError or
    TypeError, or does not look.

    Parameters
    ----------
    n_devices : int
        Number of ranks, which is that of the job.
    rank : int
        Of this process, from 0 to ``n_devices - 1``. It may be another one than MPI's.
    host, port, use_mpi
        Not used: MPI starts the ranks.

    Attributes
    ----------
    comm : Communicator
        The communicator of the calls, for all that cupyx does not have.
    rank : int
        As given.

    Raises
    ------
    LaunchError
        If the job has another number of ranks.
    UsageError
        If a rank is given twice, or is out of range.
    """

    def __init__(
        self,
        n_devices: int,
        rank: int,
        host: str = "127.0.0.1",
        port: int = 13333,
        use_mpi: bool = False,
    ) -> None:
        device = None if unavailable() else cupy().cuda.runtime.getDevice()
        comm = hpccomm.new_comm(device=device, name="cupyx")
        given = comm.all_gather_object((n_devices, rank))
        ranks = [each for _, each in given]
        wrong = _misfit([each for each, _ in given], ranks, comm.size)
        if wrong is not None:
            comm.finalize()
            raise wrong
        self.rank = rank
        self.comm = comm
        if ranks != sorted(ranks):
            ordered = comm.split(0, rank, "cupyx")
            assert ordered is not None
            self.comm = ordered
            comm.finalize()

    def all_reduce(
        self, in_array: Any, out_array: Any, op: str = "sum", stream: object = None
    ) -> None:
        """Put the reduction of the arrays of all ranks into `out_array`."""
        x, out = _flat(in_array), _flat(out_array, like=in_array)
        self.comm.all_reduce(x, _op(op), out=out, stream=stream)

    def reduce(
        self, in_array: Any, out_array: Any, root: int = 0, op: str = "sum", stream: object = None
    ) -> None:
        """Put the reduction of the arrays of all ranks into the root's `out_array`."""
        x = _flat(in_array)
        out = _flat(out_array, like=in_array) if self.rank == root else None
        self.comm.reduce(x, root, _op(op), out=out, stream=stream)

    def broadcast(self, in_out_array: Any, root: int = 0, stream: object = None) -> None:
        """Overwrite the array of all ranks with the root's."""
        self.comm.broadcast(_flat(in_out_array), root, stream=stream)

    def reduce_scatter(
        self, in_array: Any, out_array: Any, count: int, op: str = "sum", stream: object = None
    ) -> None:
        """Put this rank's `count` elements of the reduction into `out_array`."""
        own = _flat(out_array, count)
        whole = _flat(in_array, count * self.comm.size)
        self.comm.reduce_scatter(whole, _op(op), out=own, stream=stream)

    def all_gather(self, in_array: Any, out_array: Any, count: int, stream: object = None) -> None:
        """Put the first `count` elements of all ranks into `out_array`, one rank after the other."""
        own = _flat(in_array, count)
        whole = _flat(out_array, count * self.comm.size).reshape(self.comm.size, count)
        self.comm.all_gather(own, out=whole, stream=stream)

    def send(self, array: Any, peer: int, stream: object = None) -> None:
        """Send an array to rank `peer`."""
        self.comm.send(_flat(array), peer, stream=stream)

    def recv(self, out_array: Any, peer: int, stream: object = None) -> None:
        """Receive an array from rank `peer`."""
        self.comm.recv(_flat(out_array), peer, stream=stream)

    def send_recv(self, in_array: Any, out_array: Any, peer: int, stream: object = None) -> None:
        """Send an array to rank `peer`, and receive one from it."""
        self.comm.send_recv(_flat(in_array), peer, _flat(out_array), peer, stream=stream)

    def scatter(self, in_array: Any, out_array: Any, root: int = 0, stream: object = None) -> None:
        """Put the root's ``in_array[rank]`` into `out_array`."""
        whole = self._rows("in_array", in_array) if self.rank == root else None
        self.comm.scatter(whole, root, out=_flat(out_array), stream=stream)

    def gather(self, in_array: Any, out_array: Any, root: int = 0, stream: object = None) -> None:
        """Put the arrays of all ranks into the root's `out_array`, by rank."""
        rows = self._rows("out_array", out_array) if self.rank == root else None
        out = None if rows is None else rows.reshape(self.comm.size, -1)
        self.comm.gather(_flat(in_array), root, out=out, stream=stream)

    def all_to_all(self, in_array: Any, out_array: Any, stream: object = None) -> None:
        """Put ``in_array[rank]`` of all ranks into `out_array`, by rank."""
        whole, out = self._rows("in_array", in_array), self._rows("out_array", out_array)
        self.comm.all_to_all(whole, out=out, stream=stream)

    def barrier(self) -> None:
        """Wait on the host until all ranks have called it."""
        self.comm.barrier()

    def stop(self) -> None:
        """Do nothing: no server runs. ``comm.finalize()`` ends the communicator, on all ranks."""

    def _rows(self, name: str, array: Any) -> Any:
        if not array.shape or array.shape[0] != self.comm.size or not array.flags.c_contiguous:
            raise UsageError(
                f"{name} has shape {array.shape}; give a C-contiguous array with {self.comm.size} rows, one a rank"
            )
        return _flat(array)


def _misfit(numbers: list[int], ranks: list[int], size: int) -> LaunchError | UsageError | None:
    """Return what is wrong with what the ranks of MPI have given, in their order."""
    if set(numbers) != {size}:
        most = max(numbers, key=str)
        return LaunchError(
            f"n_devices is {most!r}, and the job has {size} ranks; start that number: mpiexec -n {most} python ..."
        )
    if sorted(ranks, key=str) != sorted(range(size), key=str):
        return UsageError(f"rank is {ranks} by rank of MPI; give each number below {size} once")
    return None


def _op(op: str) -> ReduceOp:
    if op not in _OPS:
        advice = did_you_mean(str(op), _OPS, f"give one of {', '.join(map(repr, _OPS))}")
        raise UsageError(f"op is {op!r}; {advice}")
    return _OPS[op]


def _flat(array: Any, count: int | None = None, like: Any = None) -> Any:
    """Return the first elements of an array in the order of its memory, which is that of `like`, as a view."""
    flags = getattr(array, "flags", None)
    if flags is None or not (flags.c_contiguous or flags.f_contiguous):
        cure = (
            "cupy.ascontiguousarray(x)" if flags else "such arrays, of a sparse matrix one by one"
        )
        raise UsageError(
            f"cupyx's calls take a CuPy or NumPy array that is C- or F-contiguous, and this is {type(array).__name__}; "
            f"give {cure}"
        )
    if like is not None and not any(
        getattr(flags, order) and getattr(like.flags, order)
        for order in ("c_contiguous", "f_contiguous")
    ):
        raise UsageError(
            "one array is C-contiguous and the other one F-contiguous; give both in one order"
        )
    flat = (array if flags.c_contiguous else array.T).reshape(-1)
    if count is not None and not 0 <= check_int("count", count) <= flat.size:
        raise UsageError(
            f"count asks for {count} elements of an array with {flat.size}; give a larger array"
        )
    return flat[:count]
