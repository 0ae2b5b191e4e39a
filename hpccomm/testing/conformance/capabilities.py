"""The abilities that a right backend may lack, and whether a communicator's backend has them.

Cases name them in ``uses``; `case` asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

WINDOWS, SHARED_MEMORY, ARRIVALS = "windows", "shared memory", "arrivals"
"""One-sided communication (`Backend.window`), memory that the ranks of a node reach of each other
(`Transport.shared`), and messages from any sender (``Backend.arrivals``)."""


def lacks(comm: Communicator, capability: str) -> str | None:
    """Return why the backend of a communicator lacks a capability, or None if it has it.

    Collective over `comm` for `WINDOWS`, which shows only when one is made; blocks then. The same on all
    ranks.
    """
    backend = comm._core.backend  # noqa: SLF001 (the backend is under test)
    if capability == SHARED_MEMORY:
        absent = backend.collectives.shared is None
        return f"backend {backend.name!r}: Transport.shared is None" if absent else None
    if capability == ARRIVALS:
        absent = getattr(backend, "arrivals", None) is None
        return f"backend {backend.name!r}: it has no arrivals" if absent else None
    window = backend.window()
    if window is None:
        return f"backend {backend.name!r}: Backend.window returns None"
    window.free()
    return None
