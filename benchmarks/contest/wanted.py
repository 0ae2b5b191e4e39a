"""Names of the figures of ``side_by_side.py``: ``COLLECTIVE SIZE CONTENDER [out-of-place] MEASURE``."""

from dataclasses import dataclass

OUT_OF_PLACE = "out-of-place"
MEASURES = ("speed", "time", "added", "memcpy", "link")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A figure, taken apart."""

    collective: str
    nbytes: int
    contender: str
    apart: bool
    measure: str

    @property
    def case(self) -> tuple[str, int, bool]:
        """What is measured in one race."""
        return self.collective, self.nbytes, self.apart


def wanted(name: str) -> Wanted:
    """Read the name of a figure."""
    collective, size, contender, *rest = name.split()
    number = size.rstrip("KMG")
    measure = rest[-1] if rest else ""
    if measure not in MEASURES:
        raise SystemExit(f"{name!r} ends with no measure; give one of {', '.join(MEASURES)}")
    nbytes = int(number) * UNITS[size[len(number) :]]
    return Wanted(collective, nbytes, contender, OUT_OF_PLACE in rest, measure)
