"""Figures that a benchmark measured, handed from its process to ``bench.py`` in a file."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value.

    Attributes
    ----------
    value : float
        What a promise bounds.
    says : str
        What stands behind it, in words and units.
    seconds : float or None
        What hpccomm took, where the value is a ratio to a peer's time.
    """

    value: float
    says: str
    seconds: float | None = None


def read(file: Path) -> dict[str, Figure]:
    """Return the figures that a benchmark wrote."""
    return {name: Figure(**figure) for name, figure in json.loads(file.read_text()).items()}
