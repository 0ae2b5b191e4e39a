"""Names of the figures of ``side_by_side.py``: ``COLLECTIVE SIZE CONTENDER [out-of-place] MEASURE``."""

from dataclasses import dataclass

from hpccomm.units import size as bytes_of

OUT_OF_PLACE = "out-of-place"
MEASURES = ("speed", "time", "added", "memcpy", "link")


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
    measure = rest[-1] if rest else ""
    if measure not in MEASURES:
        raise SystemExit(f"{name!r} ends with no measure; give one of {', '.join(MEASURES)}")
    return Wanted(collective, bytes_of(size), contender, OUT_OF_PLACE in rest, measure)
