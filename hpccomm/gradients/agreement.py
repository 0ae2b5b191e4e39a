"""Whether all ranks have the same model and the same settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import Any, TypeVar

from hpccomm.errors import HpccommError, RankMismatch, UsageError
from hpccomm.gradients.group import Group
from hpccomm.gradients.parameters import Arrays
from hpccomm.runtime.recorder import entered
from hpccomm.units import ranks_named

SettingsT = TypeVar("SettingsT")

MOST = 5
"""Differences that a message names."""


def by_name(settings: Any) -> dict[str, object]:
    """Return settings, a mapping or a dataclass, by their names."""
    if isinstance(settings, Mapping):
        return dict(settings)
    return {each.name: getattr(settings, each.name) for each in fields(settings)}


def agree(group: Group, make: Callable[[], tuple[Arrays, SettingsT]]) -> tuple[Arrays, SettingsT]:
    """Return this rank's model and settings, if all ranks have the same. Collective; blocks.

    One small exchange of digests, and another one only if they differ.

    Parameters
    ----------
    group : Group
        The ranks that train together.
    make : callable
        Returns this rank's arrays by parameter, and its settings: a mapping, or a dataclass. They are compared by
        their ``repr``. Or it raises what is wrong with them.

    Raises
    ------
    HpccommError
        What `make` raises.
    RankMismatch
        If it raises on another rank, or the models or settings differ. The message names parameters and ranks. It
        is raised on every rank, and the communicator can still be used.
    """
    entered()
    error: HpccommError | None = None
    own: dict[str, str] | str
    try:
        arrays, settings = make()
        own = {f"parameter {each.name!r}": each.described for each in arrays}
        own |= {name: repr(value) for name, value in by_name(settings).items()}
    except Exception as raised:  # noqa: BLE001 (the other ranks must hear of it)
        error = UsageError(f"{type(raised).__name__}: {raised}")
        error.__cause__ = raised
        if isinstance(raised, HpccommError):
            error = raised
        own = str(error)
    digest = sha256(repr(own if error else list(own.items())).encode()).hexdigest()  # type: ignore[union-attr]
    everyone = group.exchange((error is None, digest))
    if all(each == (True, everyone[0][1]) for each in everyone):
        return arrays, settings
    texts = group.exchange(own)
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if isinstance(text, str):
            raise RankMismatch(f"rank {rank} has no model: {text}", rank=group.rank, ranks=(rank,))
    differ, ranks = _differences(texts)
    raise RankMismatch(
        f"the ranks have different models: {'; '.join(differ)}; give all ranks the same",
        rank=group.rank,
        ranks=ranks,
    )


def _differences(texts: Sequence[dict[str, str]]) -> tuple[list[str], list[int]]:
    """Return what differs from rank 0, in words, and on which ranks."""
    first = texts[0]
    ranks: set[int] = set()
    lines = []
    for what in dict.fromkeys(what for text in texts for what in text):
        others: dict[str, list[int]] = {}
        own = first.get(what, "missing")
        for rank, text in enumerate(texts):
            if text.get(what, "missing") != own:
                others.setdefault(text.get(what, "missing"), []).append(rank)
        ranks.update(*others.values())
        lines += [
            f"{what} is {own} on rank 0 and {value} on {ranks_named(where)}"
            for value, where in others.items()
        ]
    for rank, text in enumerate(() if lines else texts):
        pairs = enumerate(zip(first, text, strict=True))
        for number, (one, other) in [(n, pair) for n, pair in pairs if pair[0] != pair[1]][:1]:
            ranks.add(rank)
            place = f"number {number} is {one} on rank 0 and {other} on rank {rank}"
            lines.append(f"the order differs: {place}")
    if len(lines) > MOST:
        lines[MOST:] = [f"and {len(lines) - MOST} more"]
    return lines, sorted(ranks)
