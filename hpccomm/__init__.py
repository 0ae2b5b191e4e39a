"""Collective communication for MPI-launched Python, on NumPy and CuPy arrays.

>>> import hpccomm                                    # doctest: +SKIP
>>> with hpccomm.new_comm() as comm:                  # doctest: +SKIP
...     comm.all_reduce(x)                            # in place, SUM

Importing the package starts nothing: MPI, CUDA and HDF5 are loaded on first use. The names below
are therefore loaded on first use, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hpccomm import gradients as gradients
    from hpccomm.communicator import Communicator as Communicator
    from hpccomm.communicator.arrivals import Message as Message
    from hpccomm.communicator.arrivals import Received as Received
    from hpccomm.communicator.creation import new_comm as new_comm
    from hpccomm.communicator.grid import Grid as Grid
    from hpccomm.communicator.grid import Mesh as Mesh
    from hpccomm.communicator.halo import Halo as Halo
    from hpccomm.communicator.planning import Batch as Batch
    from hpccomm.communicator.planning import Plan as Plan
    from hpccomm.communicator.recording import ProgramRecorder as ProgramRecorder
    from hpccomm.communicator.turns import Counter as Counter
    from hpccomm.communicator.turns import Mutex as Mutex
    from hpccomm.communicator.windows import Window as Window
    from hpccomm.contracts.signature import Choice as Choice
    from hpccomm.contracts.transport import ANY as ANY
    from hpccomm.errors import BackendUnavailable as BackendUnavailable
    from hpccomm.errors import BufferMismatch as BufferMismatch
    from hpccomm.errors import CollectiveTimeout as CollectiveTimeout
    from hpccomm.errors import CommunicationError as CommunicationError
    from hpccomm.errors import CommunicatorAborted as CommunicatorAborted
    from hpccomm.errors import ConfigurationError as ConfigurationError
    from hpccomm.errors import HpccommError as HpccommError
    from hpccomm.errors import LaunchError as LaunchError
    from hpccomm.errors import PeerLost as PeerLost
    from hpccomm.errors import RankMismatch as RankMismatch
    from hpccomm.errors import ResultsError as ResultsError
    from hpccomm.errors import SchemaMismatch as SchemaMismatch
    from hpccomm.errors import UnsupportedDtype as UnsupportedDtype
    from hpccomm.errors import UsageError as UsageError
    from hpccomm.errors import WaitTimeout as WaitTimeout
    from hpccomm.memory.binned import binned_sum as binned_sum
    from hpccomm.memory.binned import rounded as rounded
    from hpccomm.reductions import ReduceOp as ReduceOp
    from hpccomm.reductions import WindowOp as WindowOp
    from hpccomm.reductions import loc_dtype as loc_dtype
    from hpccomm.reductions import premul_sum as premul_sum
    from hpccomm.reductions import with_index as with_index
    from hpccomm.results.recording import Lateness as Lateness
    from hpccomm.runtime.dump import dump as dump
    from hpccomm.runtime.reports import CallInfo as CallInfo
    from hpccomm.runtime.reports import Handle as Handle
    from hpccomm.runtime.reports import Tally as Tally
    from hpccomm.runtime.work import Work as Work
    from hpccomm.runtime.work import wait_all as wait_all
    from hpccomm.runtime.work import wait_any as wait_any
    from hpccomm.runtime.work import wait_some as wait_some
    from hpccomm.settings import CommOptions as CommOptions

_NAMES = {
    "communicator.creation": ("new_comm",),
    "communicator": ("Communicator",),
    "communicator.arrivals": ("Message", "Received"),
    "contracts.transport": ("ANY",),
    "communicator.planning": ("Plan", "Batch"),
    "communicator.windows": ("Window",),
    "communicator.grid": ("Grid", "Mesh"),
    "communicator.halo": ("Halo",),
    "communicator.turns": ("Counter", "Mutex"),
    "communicator.recording": ("ProgramRecorder",),
    "results.recording": ("Lateness",),
    "runtime.reports": ("CallInfo", "Handle", "Tally"),
    "contracts.signature": ("Choice",),
    "settings": ("CommOptions",),
    "reductions": ("ReduceOp", "WindowOp", "premul_sum", "loc_dtype", "with_index"),
    "memory.binned": ("binned_sum", "rounded"),
    "runtime.dump": ("dump",),
    "runtime.work": ("Work", "wait_all", "wait_any", "wait_some"),
    "errors": (
        "HpccommError",
        "ConfigurationError",
        "BackendUnavailable",
        "LaunchError",
        "UsageError",
        "BufferMismatch",
        "UnsupportedDtype",
        "CommunicationError",
        "CollectiveTimeout",
        "WaitTimeout",
        "RankMismatch",
        "PeerLost",
        "CommunicatorAborted",
        "ResultsError",
        "SchemaMismatch",
    ),
}
"""The public names, by the module that has them."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604  (the table above is the one list of names)


def __getattr__(name: str) -> object:
    if name == "gradients":  # a package, which `import hpccomm` is not to load
        return import_module("hpccomm.gradients")
    home = _HOME.get(name)
    if home is None:
        from hpccomm.spelling import advice

        said = advice(name, __all__, "MPI.")
        raise AttributeError(f"module 'hpccomm' has no attribute {name!r}{said}")
    value = getattr(import_module(f"hpccomm.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, "gradients"})
