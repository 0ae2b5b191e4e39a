"""Promises as data, ``promises.toml``, and the figures that are held against them."""

import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).parents[1] / "promises.toml"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, which a program hands to ``bench.py`` in a file.

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


def figures(file: Path) -> dict[str, Figure]:
    """Return the figures that a program wrote."""
    return {name: Figure(**figure) for name, figure in json.loads(file.read_text()).items()}


@dataclass(frozen=True, slots=True)
class Group:
    """Figures that one command measures, as ``promises.toml`` describes them."""

    name: str
    what: str
    program: str
    peer: str
    unit: str
    options: tuple[str, ...] = ()
    ranks: int | None = None
    cluster: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound of one figure.

    Attributes
    ----------
    group : Group
        How it is measured.
    figure : str
        Its name, by which the group's program knows it.
    kind : {"most", "least"}
        Which values keep it.
    bound : float
        In the group's unit.
    """

    group: Group
    figure: str
    kind: Literal["most", "least"]
    bound: float

    @property
    def name(self) -> str:
        """The name by which a command selects it."""
        return f"{self.group.name}: {self.figure}"

    def kept(self, value: float) -> bool:
        """Tell whether `value` keeps it; what is not a number keeps nothing."""
        return value <= self.bound if self.kind == "most" else value >= self.bound

    def worse(self, value: float, other: float, tolerance: float) -> bool:
        """Tell whether `value` is worse than `other` by more than `tolerance`, a share of it.

        Where little is better, a share of half the bound is allowed as well: what is near zero may
        differ by any factor.
        """
        if self.kind == "most":
            return not value <= other + tolerance * max(other, self.bound / 2)
        return not value >= other / (1 + tolerance)


def promises(file: Path = FILE, words: Sequence[str] = ("",)) -> Iterator[Promise]:
    """Yield what a file promises, in its order, if the name contains one of `words`."""
    for name, table in tomllib.loads(file.read_text("utf-8")).items():
        facts: dict[str, Any] = {k: v for k, v in table.items() if k not in ("most", "least")}
        if "cluster" in facts:
            facts["cluster"] = tuple(facts["cluster"])
        facts["options"] = tuple(facts.get("options", ()))
        group = Group(name, **facts)
        kinds: tuple[Literal["most", "least"], ...] = ("most", "least")
        for kind in kinds:
            for figure, bound in table.get(kind, {}).items():
                promise = Promise(group, figure, kind, float(bound))
                if any(word in promise.name for word in words):
                    yield promise
