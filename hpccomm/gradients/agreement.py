"""Whether all ranks have the same model and the same settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from hpccomm.errors import HpccommError, RankMismatch, UsageError
from hpccomm.gradients.parameters import Arrays
from hpccomm.runtime.recorder import entered
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

SettingsT = TypeVar("SettingsT")

MOST = 5
"""Differences that a message names."""


def by_name(settings: Any) -> dict[str, object]:
    """Return settings, a mapping or a dataclass, by their names."""
    if isinstance(settings, Mapping):
        return dict(settings)
    return {each.name: getattr(settings, each.name) for each in fields(settings)}


def agree(
    comm: "Communicator", make: Callable[[], tuple[Arrays, SettingsT]], timeout: float | None
) -> tuple[Arrays, SettingsT]:
    """Return this rank's model and settings, if all ranks have the same. Collective; blocks.

    One small exchange of digests, and another one only if they differ.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    make : callable
        Returns this rank's arrays by parameter, and its settings: a mapping, or a dataclass. They are compared by
        their ``repr``. Or it raises what is wrong with them.
    timeout : float or None
        Deadline of each exchange in seconds.

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
        error = raised if isinstance(raised, HpccommError) else _other(raised)
        own = str(error)
    digest = sha256(repr(own if error else list(own.items())).encode()).hexdigest()  # type: ignore[union-attr]
    everyone = comm.all_gather_object((error is None, digest), timeout=timeout)
    if all(each == (True, everyone[0][1]) for each in everyone):
        return arrays, settings
    texts = comm.all_gather_object(own, timeout=timeout)
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if isinstance(text, str):
            raise RankMismatch(f"rank {rank} has no model: {text}", rank=comm.rank, ranks=(rank,))
    differ, ranks = _differences(texts)
    raise RankMismatch(
        f"the ranks have different models: {'; '.join(differ)}; give all ranks the same",
        rank=comm.rank,
        ranks=ranks,
    )


def _other(raised: Exception) -> UsageError:
    error = UsageError(f"{type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error


def _differences(texts: Sequence[dict[str, str]]) -> tuple[list[str], list[int]]:
    """Say what differs from rank 0, and on which ranks."""
    first = texts[0]
    every = dict.fromkeys(what for text in texts for what in text)
    ranks: set[int] = set()
    lines = []
    for what in every:
        others: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            if text.get(what) != first.get(what):
                others.setdefault(text.get(what, "missing"), []).append(rank)
        ranks.update(*others.values())
        for value, where in others.items():
            lines.append(
                f"{what} is {first.get(what, 'missing')} on rank 0 and {value} on {ranks_named(where)}"
            )
    if not lines:
        for rank, text in enumerate(texts):
            for place, (one, other) in enumerate(zip(first, text, strict=True)):
                if one != other:
                    ranks.add(rank)
                    lines.append(
                        f"the order differs: number {place} is {one} on rank 0 and {other} on rank {rank}"
                    )
                    break
    if len(lines) > MOST:
        lines[MOST:] = [f"and {len(lines) - MOST} more"]
    return lines, sorted(ranks)
