"""Whether all ranks have the same model and the same settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from hpccomm.errors import HpccommError, RankMismatch, UsageError
from hpccomm.gradients.layout import BucketSettings
from hpccomm.gradients.meaning import Meaning
from hpccomm.gradients.parameters import Parameter
from hpccomm.runtime.recorder import entered
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Model:
    """What must be equal on all ranks.

    Attributes
    ----------
    parameters : tuple of Parameter
        In the order of the forward pass.
    frozen : frozenset of str
        Names of those without gradients.
    settings : BucketSettings
        How the others are put in buckets.
    meaning : Meaning
        What a reduction does.
    """

    parameters: tuple[Parameter, ...]
    frozen: frozenset[str]
    settings: BucketSettings
    meaning: Meaning

    def shown(self) -> dict[str, object]:
        """Return all settings by their names."""
        return {
            each.name: getattr(part, each.name)
            for part in (self.meaning, self.settings)
            for each in fields(part)
        }

    def __post_init__(self) -> None:
        device = next((each for each in self.parameters if each.on_device), None)
        for given, what in (
            (self.meaning.compressor, "a compressor"),
            (self.settings.adaptive, "adaptive="),
        ):
            if device and given:
                raise UsageError(
                    f"{what} is for host arrays, and parameter {device.name!r} lies on a device; leave it out"
                )

    def described(self) -> dict[str, str]:
        """Return a text for each parameter and setting, by what it is, in order."""
        frozen = dict.fromkeys(self.frozen, " (frozen)")
        texts = {
            f"parameter {each.name!r}": f"{each.described}{frozen.get(each.name, '')}"
            for each in self.parameters
        }
        for group in (self.settings, self.meaning):
            texts |= {each.name: repr(getattr(group, each.name)) for each in fields(group)}
        return texts


class Described(Protocol):
    """What ranks can compare."""

    def described(self) -> dict[str, str]:
        """Return a text for each thing that must be equal on all ranks, by what it is, in order."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters and settings that must be equal on all ranks.

    Attributes
    ----------
    parameters : tuple of Parameter
        In order.
    settings : mapping of str to object
        By name. They are compared by their ``repr``.
    """

    parameters: tuple[Parameter, ...]
    settings: Mapping[str, object]

    def described(self) -> dict[str, str]:
        """Return a text for each parameter and setting, by what it is, in order."""
        texts = {f"parameter {each.name!r}": each.described for each in self.parameters}
        return texts | {name: repr(value) for name, value in self.settings.items()}


def agree(comm: "Communicator", model: Described | HpccommError, timeout: float | None) -> None:
    """Compare the models of all ranks. Collective; blocks.

    One small exchange of digests, and another one only if they differ.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    model : Described or HpccommError
        This rank's; or why it has none, which is raised here.
    timeout : float or None
        Deadline of each exchange in seconds.

    Raises
    ------
    HpccommError
        `model`, if it is an error.
    RankMismatch
        If another rank has an error, or the models differ. The message names parameters and ranks. It is
        raised on every rank, and the communicator can still be used.
    """
    entered()
    failed = isinstance(model, HpccommError)
    mine = str(model) if isinstance(model, HpccommError) else model.described()
    told = sha256(repr(mine if isinstance(mine, str) else list(mine.items())).encode()).hexdigest()
    everyone = comm.all_gather_object((not failed, told), timeout=timeout)
    if all(each == (True, everyone[0][1]) for each in everyone):
        return
    texts = comm.all_gather_object(mine, timeout=timeout)
    if isinstance(model, HpccommError):
        raise model
    for rank, text in enumerate(texts):
        if isinstance(text, str):
            raise RankMismatch(f"rank {rank} has no model: {text}", rank=comm.rank, ranks=(rank,))
    differ, ranks = differences(texts)
    raise RankMismatch(
        f"the ranks have different models: {'; '.join(differ)}; give all ranks the same",
        rank=comm.rank,
        ranks=ranks,
    )


def differences(
    texts: Sequence[dict[str, str]], most: int = 5
) -> tuple[list[str], tuple[int, ...]]:
    """Say what differs from rank 0, and on which ranks.

    Parameters
    ----------
    texts : sequence of dict
        By rank, what `Model.described` returns.
    most : int
        How many differences are told one by one.

    Returns
    -------
    list of str
        Each names a parameter or setting, and ranks.
    tuple of int
        All ranks that differ from rank 0.
    """
    first = texts[0]
    every = dict.fromkeys(what for text in texts for what in text)
    ranks: set[int] = set()
    lines = []
    for what in every:
        others: dict[str | None, list[int]] = {}
        for rank, text in enumerate(texts):
            if text.get(what) != first.get(what):
                others.setdefault(text.get(what), []).append(rank)
        ranks.update(*others.values())
        for value, where in others.items():
            lines.append(
                f"{what} is {_shown(first.get(what))} on rank 0 and {_shown(value)} on {ranks_named(where)}"
            )
    if not lines:
        for rank, text in enumerate(texts):
            place = next(
                (n for n, (a, b) in enumerate(zip(first, text, strict=True)) if a != b), None
            )
            if place is not None:
                ranks.add(rank)
                lines.append(
                    f"the order differs: number {place} is {list(first)[place]} on rank 0 and "
                    f"{list(text)[place]} on rank {rank}"
                )
    if len(lines) > most:
        lines[most:] = [f"and {len(lines) - most} more"]
    return lines, tuple(sorted(ranks))


def _shown(text: str | None) -> str:
    return "missing" if text is None else text
