"""What c10d calls a group.

Up to PyTorch 2.13 a Python class can only be a whole `ProcessGroup`. From 2.14 on it can be a `Backend`: what a group
has for one kind of device.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroup

from hpccomm.errors import UsageError
from hpccomm.torch.calls import GroupCalls
from hpccomm.torch.registration import NAME
from hpccomm.torch.tensors import array

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


def _backend_can_be_python() -> bool:
    try:
        Backend(0, 1)
    except TypeError:  # no constructor
        return False
    return True


BACKEND_CAN_BE_PYTHON = _backend_can_be_python()


class HpccommGroup(GroupCalls, Backend if BACKEND_CAN_BE_PYTHON else ProcessGroup):  # type: ignore[misc]  # PyTorch brings no types
    """A group of c10d over a communicator.

    Parameters
    ----------
    comm : hpccomm.Communicator
        Whose ranks they are. The group ends it.
    name : str
        c10d's for the group.
    store : torch.distributed.Store
        c10d's for the group, which lives as long.
    """

    supports_splitting = supports_shrinking = supports_time_estimate = False
    supports_coalescing = True

    def __init__(self, comm: "Communicator", name: str, store: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self._over(comm)
        self._name, self._description, self._store = name, "undefined", store

    # Facts, in the spellings of C++ and Python.

    def getBackendName(self) -> str:  # noqa: N802 (c10d's name)
        """Return the backend's name."""
        return NAME

    def getRank(self) -> int:  # noqa: N802
        """Return the rank in the group."""
        return self._comm.rank

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._comm.size

    rank, size = getRank, getSize

    def getGroupName(self) -> str:  # noqa: N802
        """Return c10d's name of the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set c10d's name of the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the group's description."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the group's description."""
        self._description = description

    def _get_backend(self, _device: Any) -> "HpccommGroup":
        """Return what serves a device. c10d asks a group of 2.13."""
        return self

    # Registered memory.

    def supports_tensor_alloc(self, device: Any = None) -> bool:
        """Return whether there is memory that makes calls faster: on the host."""
        index = getattr(device, "index", device)
        return getattr(device, "type", "cpu") == "cpu" and (index is None or index < 0)

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any = None) -> Any:
        """Return a tensor in registered memory, flat."""
        like = array(torch.empty(0, dtype=dtype))
        with self._lock:
            memory = self._comm.empty(size * like.itemsize, "u1")
        return torch.from_numpy(memory).view(dtype)


def communicator(group: Any = None) -> "Communicator":
    """Return the communicator of a group of the backend ``"hpccomm"``. Local.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup, optional
        None is the default group.

    Raises
    ------
    UsageError
        If the group has another backend.
    """
    serving = served_by(dist.group.WORLD if group is None else group)
    if serving is None:
        raise UsageError(
            f"group is {group!r}, which has no backend {NAME!r}; make it with that one"
        )
    return serving._comm  # noqa: SLF001 (of this package)


def served_by(group: Any) -> GroupCalls | None:
    """Return what serves a group of c10d, for whichever device; None if it has another backend."""
    for device in ("cpu", "cuda"):
        try:
            found = group._get_backend(torch.device(device))  # noqa: SLF001 (there is no other way)
        except (AttributeError, RuntimeError):
            continue
        if isinstance(found, GroupCalls):
            return found
    return None
