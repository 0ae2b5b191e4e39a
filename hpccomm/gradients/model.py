"""The model and the settings that all ranks agreed on."""

from collections.abc import Callable, Mapping
from typing import Any

from hpccomm.errors import UsageError
from hpccomm.gradients.agreement import agree, by_name, check_initial
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import Arrays, Parameter, check_writable, read
from hpccomm.gradients.settings import ReductionSettings, check_known

Proposal = tuple[Arrays, ReductionSettings]


class Model:
    """Parameters and settings, which change only if all ranks agree.

    Parameters
    ----------
    group : RankGroup
        The ranks that train together.

    Attributes
    ----------
    arrays : dict of Parameter to ndarray
        The parameters in the order of the forward pass.
    settings : ReductionSettings
        Of the reductions.
    owners : dict of str to object
        Parameters that have gradients of their own.
    """

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.arrays: Arrays = {}
        self.settings = ReductionSettings()
        self.owners: dict[str, Any] = {}

    @property
    def trained(self) -> list[Parameter]:
        """The parameters that have gradients."""
        return [each for each in self.arrays if each.name not in self.settings.frozen]

    def agree(self, make: Callable[[], Proposal]) -> list[str]:
        """Take another model once all ranks agree on it; until then, the present one stays. Collective; blocks.

        Parameters
        ----------
        make : callable
            Returns what this rank proposes, or raises what is wrong with it.

        Returns
        -------
        list of str
            What has changed, as sentences.
        """

        def checked() -> Proposal:
            arrays, settings = make()
            settings.check_for(arrays)
            if settings.initial == "broadcast":
                check_writable(self._new(arrays), "give a copy of it")
            return arrays, settings

        arrays, settings = agree(self._group, checked)
        new = self._new(arrays)
        if settings.initial == "broadcast":
            self._broadcast(new, 0)
        elif settings.initial == "check" and self._group.size > 1:
            check_initial(self._group, new)
        old, before = self.arrays, by_name(self.settings)
        self.arrays, self.settings = arrays, settings
        changes = [
            f"{name} is {value}, and was {before[name]}"
            for name, value in by_name(settings).items()
            if value != before[name]
        ]
        changes += [f"parameter {each.name} was added" for each in new]
        changes += [f"parameter {each.name} was removed" for each in old if each not in arrays]
        return changes

    def _new(self, arrays: Arrays) -> Arrays:
        return {each: x for each, x in arrays.items() if each not in self.arrays}

    def configured(self, changes: Mapping[str, Any]) -> Proposal:
        """Return the model with other settings."""
        return self.arrays, self.settings.changed(changes)

    def with_parameter(self, name: str, array: Any) -> Proposal:
        """Return the model with one more parameter."""
        pairs = [(each.name, x) for each, x in self.arrays.items()]
        arrays, owners = read([*pairs, (name, array)], devices=True)
        self.owners |= owners
        return arrays, self.settings

    def without_parameter(self, name: str) -> Proposal:
        """Return the model without a parameter."""
        check_known(name, [each.name for each in self.arrays])
        arrays = {each: x for each, x in self.arrays.items() if each.name != name}
        if not arrays:
            raise UsageError(f"{name!r} is the only parameter; keep at least one")
        frozen = [each for each in self.settings.frozen if each != name]
        return arrays, self.settings.changed({"frozen": frozen})

    def broadcast(self, root: int) -> None:
        """Give all ranks the parameters of `root`. Collective; blocks."""
        if root != self._group.rank:
            check_writable(self.arrays, "give a copy of it")
        self._broadcast(self.arrays, root)

    def _broadcast(self, arrays: Arrays, root: int) -> None:
        for on_device in sorted({each.on_device for each in arrays}):
            # Another layout, such as PyTorch's channels_last, goes through a copy.
            pairs = [
                (x, x if x.flags.c_contiguous else x.copy(order="C"))
                for each, x in arrays.items()
                if each.on_device == on_device
            ]
            self._group.broadcast([flat for _, flat in pairs], root)
            for array, flat in pairs:
                if flat is not array and root != self._group.rank:
                    array[...] = flat
