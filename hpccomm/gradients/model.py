"""The model and the settings that all ranks agreed on. `steps` and `sync` use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpccomm.errors import UsageError
from hpccomm.gradients.agreement import agree, check_initial, texts
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.parameters import Arrays, Parameter, check_writable, read
from hpccomm.gradients.settings import ReductionSettings, check_known


@dataclass(frozen=True, eq=False)
class Model:
    """Parameters and settings. Another model takes the place of this one only if all ranks agree.

    Attributes
    ----------
    group : RankGroup
        The ranks that train together.
    arrays : dict of Parameter to ndarray
        The parameters in the order of the forward pass.
    settings : ReductionSettings
        Of the reductions.
    owners : dict of str to object
        Parameters that have gradients of their own.
    """

    group: RankGroup
    arrays: Arrays = field(default_factory=dict)
    settings: ReductionSettings = field(default_factory=ReductionSettings)
    owners: dict[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> list[Parameter]:
        """The parameters that have gradients."""
        return [each for each in self.arrays if each.name not in self.settings.frozen]

    def agree(self, make: Callable[[], "Model"]) -> tuple["Model", list[str]]:
        """Return another model if all ranks agree on it. Collective; blocks.

        Parameters
        ----------
        make : callable
            Returns this rank's proposal, or raises its fault.

        Returns
        -------
        Model
            What `make` returned.
        list of str
            What differs from this one, as sentences.
        """

        def checked() -> tuple[Model, dict[str, str]]:
            model = make()
            model.settings.check_for(model.arrays)
            if model.settings.initial == "broadcast":
                check_writable(self._new(model.arrays), "give a copy of it")
            return model, texts(model.arrays, model.settings.by_name)

        model = agree(self.group, checked)
        settings, new = model.settings, self._new(model.arrays)
        if settings.initial == "broadcast":
            self._broadcast(new, 0)
        elif settings.initial == "check" and self.group.size > 1:
            check_initial(self.group, new)
        before = self.settings.by_name
        changes = [
            f"{name} is {value}, and was {before[name]}"
            for name, value in settings.by_name.items()
            if value != before[name]
        ]
        changes += [f"parameter {each.name} was added" for each in new]
        changes += [
            f"parameter {each.name} was removed" for each in self.arrays if each not in model.arrays
        ]
        return model, changes

    def _new(self, arrays: Arrays) -> Arrays:
        return {each: x for each, x in arrays.items() if each not in self.arrays}

    def configured(self, changes: Mapping[str, Any]) -> "Model":
        """Return the model with other settings."""
        return replace(self, settings=self.settings.changed(changes))

    def with_parameter(self, name: str, array: Any) -> "Model":
        """Return the model with one more parameter."""
        pairs = [(each.name, x) for each, x in self.arrays.items()]
        arrays, owners = read([*pairs, (name, array)], devices=True)
        return replace(self, arrays=arrays, owners=self.owners | owners)

    def without_parameter(self, name: str) -> "Model":
        """Return the model without a parameter."""
        check_known(name, [each.name for each in self.arrays])
        arrays = {each: x for each, x in self.arrays.items() if each.name != name}
        if not arrays:
            raise UsageError(f"{name!r} is the only parameter; keep at least one")
        frozen = [each for each in self.settings.frozen if each != name]
        return replace(self, arrays=arrays).configured({"frozen": frozen})

    def broadcast(self, root: int) -> None:
        """Give all ranks the parameters of `root`. Collective; blocks."""
        if root != self.group.rank:
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
            self.group.broadcast([flat for _, flat in pairs], root)
            for array, flat in pairs:
                if flat is not array and root != self.group.rank:
                    array[...] = flat
