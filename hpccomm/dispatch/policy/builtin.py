"""The tables that come with the package, and which of them is nearest to a shape."""

import math
from functools import cache
from pathlib import Path

from hpccomm.dispatch.policy import text
from hpccomm.dispatch.policy.table import Shape, Table

_TABLES = Path(__file__).parent / "measured"
_SUFFIX = ".toml"


@cache
def tables() -> tuple[Table, ...]:
    """Return the built-in tables."""
    files = sorted(
        (entry for entry in _TABLES.iterdir() if entry.name.endswith(_SUFFIX)),
        key=lambda entry: entry.name,
    )
    return tuple(text.parse(entry.read_text(encoding="utf-8")) for entry in files)


@cache
def nearest(shape: Shape) -> Table:
    """Return the built-in table whose shape is nearest. The same for equal shapes.

    What matters most comes first: how many nodes there are, what moves the data, how memory is
    shared, the library, then the number of ranks. A processor is not looked at: a table tells where
    one way overtakes another, and that differs less between processors than their speeds.
    """

    def distance(table: Table) -> tuple[float, ...]:
        other = table.shape
        return (
            (shape.nodes == 1) != (other.nodes == 1),
            shape.backend != other.backend,
            shape.memory != other.memory,
            _vendor(shape.library) != _vendor(other.library),
            abs(math.log2(shape.ranks_per_node / other.ranks_per_node)),
            abs(math.log2(shape.nodes / other.nodes)),
        )

    return min(tables(), key=distance)


def _vendor(library: str) -> str:
    """Return the name of a library without its version."""
    return " ".join(word for word in library.split() if not any(map(str.isdigit, word)))
