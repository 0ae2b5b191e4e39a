"""Which CUDA device a rank uses."""

from hpccomm.errors import UsageError
from hpccomm.memory.cuda.library import unavailable, visible_devices

__all__ = ["choose", "visible_devices"]


def choose(requested: int | None, local_rank: int, visible: int) -> int | None:
    """Return the device of a rank, or None if there is none.

    Parameters
    ----------
    requested : int or None
        The user's ``device=``.
    local_rank : int
        The rank's number on its node. By default, devices are assigned by it round robin.
    visible : int
        Devices that the process sees.

    Raises
    ------
    UsageError
        If the requested device is not among them.
    """
    if requested is None:
        return local_rank % visible if visible else None
    if isinstance(requested, bool) or not isinstance(requested, int):
        raise UsageError(f"device is {requested!r}; give a CUDA device number or None")
    if not 0 <= requested < visible:
        fits = f"give one from 0 to {visible - 1}" if visible else f"there is none: {unavailable()}"
        raise UsageError(f"device is {requested}; {fits}")
    return requested
