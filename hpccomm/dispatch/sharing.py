"""How the ranks of a node reach each other's memory: by the system's limits and the settings.

`algorithms` and windows ask it; it is agreed when a communicator is made.
"""

from typing import NamedTuple

from hpccomm.contracts.backend import Backend
from hpccomm.errors import ConfigurationError
from hpccomm.settings import Settings


class Sharing(NamedTuple):
    """How the ranks of a node reach each other's memory.

    Attributes
    ----------
    plain : bool
        Whether plain arrays are reached.
    room : int
        Bytes that a rank may have for staging.
    how : str
        The same in words.
    """

    plain: bool
    room: int
    how: str


def sharing(backend: Backend, settings: Settings) -> Sharing | None:
    """Return how the ranks of a node share memory; None if they do not. The same on all ranks.

    Raises
    ------
    ConfigurationError
        If the settings request a form that is not allowed here.
    """
    shared, asked = backend.collectives.shared, settings.shared_memory
    if shared is None or asked == "off":
        return None
    if asked == "pages" and not shared.plain:
        raise ConfigurationError(
            f"shared_memory is 'pages', and ranks cannot reach each other's pages: {shared.how}; "
            "allow it, or give 'auto' or 'staging'"
        )
    plain = shared.plain and asked != "staging"
    others = shared.how
    if not plain:
        others = f"through a staging buffer ({'as asked' if shared.plain else shared.how})"
    how = f"ranks of a node map each other's arrays of comm.empty; plain ones: {others}"
    return Sharing(plain, shared.share(settings.shared_memory_room), how)


def memory_way(found: Sharing | None) -> str:
    """Return how plain arrays are reached, as `policy.Shape` names it."""
    if found is None:
        return "off"
    return "pages" if found.plain else "staging"
