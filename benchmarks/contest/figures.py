"""Figures that a benchmark measured, handed from its process to ``bench.py`` in a file."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


def add_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add what ``bench.py`` starts a benchmark with; `default` names figures."""
    parser.add_argument(
        "figures", nargs="*", default=[default], metavar="FIGURE", help=f"such as {default!r}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")


def show(figures: Mapping[str, Figure], file: Path | None) -> None:
    """Print figures, and write them to a file."""
    for name, figure in figures.items():
        print(f"{name:44} {figure.value:9.3f}   {figure.says}", flush=True)
    if file is not None:
        file.write_text(json.dumps({name: asdict(figure) for name, figure in figures.items()}))


def read(file: Path) -> dict[str, Figure]:
    """Return the figures that a benchmark wrote."""
    return {name: Figure(**figure) for name, figure in json.loads(file.read_text()).items()}
