"""What programs on GPUs share: where they run, their verdicts, and CuPy's own NCCL calls beside hpccomm's."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import hpccomm
from contest.rounds import Call
from contest.verdicts import Verdicts
from hpccomm.backends.nccl import libnccl
from hpccomm.memory.cuda.library import driver_library, identify, visible_devices
from hpccomm.testing import run_ranks


def check(title: str, parts: Mapping[str, Callable[[Verdicts], object]]) -> None:
    """Check parts by name, print the verdicts, and end this process: status 1 if one fails."""
    verdicts = Verdicts(shown=True)
    print(f"# {title}; {versions()}")
    for name, part in parts.items():
        with verdicts.part(name):
            part(verdicts)
    sys.exit(verdicts.failed)


def one_rank(
    part: Callable[[hpccomm.Communicator, Verdicts], None],
) -> Callable[[Verdicts], None]:
    """Return a part that runs on a communicator of one rank over NCCL, in this process."""
    return lambda verdicts: run_ranks(1, part, verdicts, backend="nccl")[0]


@contextmanager
def ranks(timeout: float = 60.0, **options: Any) -> Iterator[tuple[hpccomm.Communicator, Verdicts]]:
    """Give the communicator of a job over NCCL, and its verdicts; then end this process: status 1 if one fails."""
    how = hpccomm.CommOptions(**options)
    with hpccomm.new_comm("nccl", timeout=timeout, options=how) as comm:
        assert comm.device is not None
        of = comm.all_gather_object(identify(comm.device).uuid)
        excuse = "ranks share a GPU" if len(set(of)) < comm.size else ""
        verdicts = Verdicts(shown=comm.rank == 0, excuse=excuse)
        verdicts.say(f"# ranks: {comm.size}{excuse and ', which share a GPU'}; {versions()}")
        yield comm, verdicts
    sys.exit(verdicts.failed)


@contextmanager
def on_stream(comm: hpccomm.Communicator) -> Iterator[Any]:
    """Give a stream of the communicator's device, which is current meanwhile."""
    import cupy

    with cupy.cuda.Device(comm.device), cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream


def captured(stream: Any, call: Call, mode: str = "ThreadLocal") -> Any:
    """Return a graph that holds a call."""
    from cupy.cuda import runtime

    stream.synchronize()
    stream.begin_capture(getattr(runtime, f"streamCaptureMode{mode}"))
    try:
        call()
    except Exception:
        with suppress(Exception):  # the first error says more
            stream.end_capture()
        raise
    return stream.end_capture()


class BareNccl:
    """An NCCL communicator of the ranks of another one, made as CuPy's users make one. Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks, with a device each.
    """

    def __init__(self, comm: hpccomm.Communicator) -> None:
        import cupy
        from cupy.cuda import nccl

        self._nccl = nccl
        unique_id = comm.broadcast_object(nccl.get_unique_id() if comm.rank == 0 else None)
        with cupy.cuda.Device(comm.device):
            self._comm = nccl.NcclCommunicator(comm.size, unique_id, comm.rank)

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


def contexts_on(expected: list[int], verdicts: Verdicts) -> None:
    """Say whether this process has a context on those devices alone: each takes hundreds of MiB."""
    driver: Any = driver_library()
    if driver is None:
        verdicts.note("contexts: there is no driver to ask")
        return
    found = []
    for device in range(visible_devices()):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        found += [device] if active.value else []
    verdicts.limit(found == expected, f"contexts on devices {found}, used are {expected}")


def versions() -> str:
    """Return the device and the libraries that figures belong to, as text."""
    import cupy

    device, nccl = identify(cupy.cuda.Device().id), libnccl.version()
    return f"{device.name}, NCCL {nccl}, CuPy {cupy.__version__}, driver {device.driver}"
