"""The group class that c10d holds, by PyTorch's version.

A Python class can be a whole `ProcessGroup`. From PyTorch 2.14 on it can also be a `Backend`: a
group's part for one kind of device, beside others. A result of a `Backend` reaches the program
within an object of C++ that forwards ``wait`` and ``get_future`` alone: ``is_completed`` is never
True, and the sender of a message stays unknown. So a group that has no other backend is a
`ProcessGroup`.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, ProcessGroup

from hpccomm.communicator import Communicator
from hpccomm.errors import UsageError
from hpccomm.torch.calls import GroupCalls
from hpccomm.torch.registration import NAME
from hpccomm.torch.untraced import untraced


@untraced
class GroupFacts(GroupCalls):
    """What c10d asks of a group or a backend over a communicator.

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
    _supports_time_estimate = False  # its name in PyTorch's main branch
    supports_coalescing = True
    _device_types = (torch.device("cpu"), torch.device("cuda"))

    def __init__(self, comm: Communicator, name: str, store: Any) -> None:
        super().__init__(comm.rank, comm.size)  # type: ignore[call-arg]  # c10d's class
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

    # Registered memory.

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Return whether `allocate_tensor` has memory of a device: of the host.

        C++ gives a number. It cannot call `allocate_tensor` of a Python class in PyTorch 2.14.1.
        """
        return getattr(device, "type", None) == "cpu"

    def allocate_tensor(self, size: int, *, dtype: Any, device: Any = None) -> Any:
        """Return a flat tensor in registered memory."""
        with self._lock:
            memory = self._comm.empty(size * dtype.itemsize, "u1")
        return torch.from_numpy(memory).view(dtype)


@untraced
class HpccommGroup(GroupFacts, ProcessGroup):  # type: ignore[misc]  # PyTorch brings no types
    """A group that has this backend alone."""

    def _get_backend(self, _device: Any) -> "HpccommGroup":
        """Return what serves a device."""
        return self

    get_backend = _get_backend  # from PyTorch 2.14 on


def _can_be_constructed(kind: Any) -> bool:
    try:
        kind(0, 1)
    except TypeError:
        return False
    return True


BESIDE_OTHERS = _can_be_constructed(Backend)
"""Whether there can be a `HpccommBackend`: from PyTorch 2.14 on."""

if BESIDE_OTHERS:

    class HpccommBackend(GroupFacts, Backend):  # type: ignore[misc]  # likewise
        """What a group that has others as well has for one kind of device."""


def communicator(group: Any = None) -> Communicator:
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
    return _serving(group)._comm  # noqa: SLF001 (of this package)


def duplicate(group: Any = None) -> Communicator:
    """Return a new communicator of a group's ranks, which the group ends. Collective; blocks.

    Raises
    ------
    UsageError
        If the group has another backend.
    """
    return _serving(group).duplicate()


def _serving(group: Any) -> GroupCalls:
    serving = served_by(dist.group.WORLD if group is None else group)
    if serving is None:
        raise UsageError(
            f"group is {group!r}, which has no backend {NAME!r}; make it with that one"
        )
    return serving


def served_by(group: Any) -> GroupCalls | None:
    """Return what serves a group of c10d, for whichever device; None if it has another backend."""
    for device in ("cpu", "cuda"):
        try:
            backend = group._get_backend(torch.device(device))  # noqa: SLF001 (there is no other way)
        except (AttributeError, RuntimeError):
            continue
        if isinstance(backend, GroupCalls):
            return backend
    return None
