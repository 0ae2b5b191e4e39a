"""Counts of calls, bytes and seconds, a collective and size class each."""

from dataclasses import dataclass, replace

Key = tuple[str, str]


@dataclass(slots=True)
class Tally:
    """Sums over the calls of one collective and size class.

    Attributes
    ----------
    calls : int
        Calls that ended, failed ones included.
    nbytes : int
        Bytes of this rank's larger array, summed over the calls.
    seconds : float
        Summed over the calls: of a synchronous one from call to return, of an asynchronous one from
        call to completion. Of one that is put on a device's stream, what it took the host to do that.
    """

    calls: int = 0
    nbytes: int = 0
    seconds: float = 0.0


_CLASSES = (
    (0, "0 B"),
    (1 << 10, "to 1 KiB"),
    (1 << 16, "to 64 KiB"),
    (1 << 20, "to 1 MiB"),
    (1 << 24, "to 16 MiB"),
    (1 << 28, "to 256 MiB"),
)


def size_class(nbytes: int) -> str:
    """Return the name of the size class of `nbytes`.

    Examples
    --------
    >>> size_class(0), size_class(8), size_class(1 << 20), size_class(1 << 40)
    ('0 B', 'to 1 KiB', 'to 1 MiB', 'above 256 MiB')
    """
    return next((name for limit, name in _CLASSES if nbytes <= limit), "above 256 MiB")


class Stats:
    """The tallies of one communicator."""

    __slots__ = ("_tallies",)

    def __init__(self) -> None:
        self._tallies: dict[Key, Tally] = {}

    def tally(self, collective: str, nbytes: int) -> Tally:
        """Return the tally that calls of this kind and size are added to."""
        return self._tallies.setdefault((collective, size_class(nbytes)), Tally())

    def snapshot(self) -> dict[Key, Tally]:
        """Return a copy of those that have calls, in the order of first use."""
        return {key: replace(tally) for key, tally in list(self._tallies.items()) if tally.calls}
