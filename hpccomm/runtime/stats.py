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


_LIMITS = {
    0: "0 B",
    10: "to 1 KiB",
    16: "to 64 KiB",
    20: "to 1 MiB",
    24: "to 16 MiB",
    28: "to 256 MiB",
}
"""Powers of two, but for 0: the largest sizes of the classes."""

_NAMES = tuple(
    next((name for power, name in _LIMITS.items() if bits <= power and power), "above 256 MiB")
    for bits in range(64)
)
"""By the bits of the size before: every asynchronous call looks here."""


def size_class(nbytes: int) -> str:
    """Return the name of the size class of `nbytes`.

    Examples
    --------
    >>> size_class(0), size_class(8), size_class(1 << 20), size_class(1 << 40)
    ('0 B', 'to 1 KiB', 'to 1 MiB', 'above 256 MiB')
    """
    return _NAMES[(nbytes - 1).bit_length()] if nbytes else _LIMITS[0]


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
