"""The settings of a gradient synchronisation, the factor of the loss, and the model that all ranks agreed on.

Ranks compare settings as texts. So each setting is first checked and converted to one type: equal settings have equal
texts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal, TypedDict

from hpccomm.errors import UsageError, did_you_mean
from hpccomm.gradients.agreement import RankGroup, agree, check_initial, texts
from hpccomm.gradients.compression import COMPRESSORS, Compressor
from hpccomm.gradients.parameters import Arrays, Parameter, check_known, check_writable, read
from hpccomm.settings import check_bool, check_choice, check_least, check_number, set_checked

LEAST_SCALE = 2.0**-40
"""The least factor of the loss."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """How the factor of the loss changes. Must be equal on all ranks.

    The rule is that of Micikevicius et al. 2018, "Mixed Precision Training", ICLR: a step whose gradients are NaN or
    infinite is left out, and the factor falls. After many finite steps in a row, it grows.

    Attributes
    ----------
    initial : float
        The first factor. If this and ``growth`` are powers of 2, multiplying and dividing by it is exact.
    growth : float
        The factor is multiplied by it after ``interval`` finite steps. At least 1.
    backoff : float
        The factor is multiplied by it after a step that is not finite, but does not fall below 2^-40. Above 0 and
        below 1.
    interval : int
        The number of finite steps in a row after which the factor grows.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for name, allowed, range_ in (
            ("initial", lambda x: x >= LEAST_SCALE, "of at least 2**-40"),
            ("growth", lambda x: x >= 1, "of at least 1"),
            ("backoff", lambda x: 0 < x < 1, "above 0 and below 1"),
        ):
            set_checked(self, **{name: check_number(name, getattr(self, name), allowed, range_)})
        set_checked(self, interval=check_least("interval", self.interval, 1))

    def after(self, scale: float, steps: int, finite: bool) -> tuple[float, int]:
        """Return the factor after a step, and the number of finite steps since the factor changed.

        Parameters
        ----------
        scale : float
            The factor of the step.
        steps : int
            Number of finite steps since the factor changed, without this step.
        finite : bool
            Whether the step's gradients were finite.
        """
        if not finite:
            return max(LEAST_SCALE, scale * self.backoff), 0
        if steps + 1 < self.interval:
            return scale, steps + 1
        grown = scale * self.growth
        return (grown if isfinite(grown) else scale), 0


class CurrentScale:
    """The present factor of the loss in a training is `value`. Without a `rule`, it stays 1."""

    def __init__(self, rule: LossScale | None = None) -> None:
        self.rule = rule
        self.value, self._finite_steps = 1.0 if rule is None else rule.initial, 0

    def step(self, *, finite: bool) -> None:
        """Change the factor as the rule says after a step."""
        if self.rule is not None:
            self.value, self._finite_steps = self.rule.after(self.value, self._finite_steps, finite)


Combine = Literal["average", "sum", "weighted"]
Unused = Literal["zero", "skip", "error"]
Nonfinite = Literal["keep", "skip", "raise"]
Initial = Literal["check", "broadcast", "ignore"]
Order = Literal["reverse", "ready", "largest"]

KIB, MIB = 1024, 1024**2

_LEAST = {"bucket_bytes": 1, "first_bucket_bytes": 1, "accumulate": 1}
"""The least values of integer settings. For all others, it is 0."""


class ReductionOptions(TypedDict, total=False):
    """Keywords of `ReductionSettings`."""

    op: Combine
    unused: Unused
    nonfinite: Nonfinite
    initial: Initial
    frozen: Collection[str]
    order: Order
    bucket_bytes: int
    first_bucket_bytes: int
    min_bucket_bytes: int
    bucketing: bool
    deterministic: bool
    accumulate: int
    adaptive: int
    check_every: int
    loss_scale: LossScale | None
    compressor: Compressor | None
    hierarchical: bool


@dataclass(frozen=True, slots=True)
class ReductionSettings:
    """What a `GradientSync` does. Must be equal on all ranks. `GradientSync` takes the same keywords.

    Attributes
    ----------
    op : {"average", "sum", "weighted"}
        The mean over the ranks, their sum, or the mean weighted by the samples of each rank, see `GradientSync.weigh`.
    unused : {"zero", "skip", "error"}
        For gradients that ranks do not have. ``"zero"`` counts them as 0. So does ``"skip"``, but if no rank has a
        gradient, it gets no result, and `GradientSync.has_gradients` is False for it. ``"error"`` raises RankMismatch
        on every rank.
    nonfinite : {"keep", "skip", "raise"}
        For steps whose results are NaN or infinite somewhere. ``"skip"`` sets them to 0 on all ranks, and the step
        returns False. ``"raise"`` raises UsageError on every rank. The error names the gradients, and the ranks that
        gave them. ``"skip"`` reads all gradients one more time, and ``"raise"`` two more times.
    initial : {"check", "broadcast", "ignore"}
        For the first values of parameters. ``"check"`` compares a hash of them, and raises RankMismatch on every rank
        if they differ: equal updates would not make them equal. ``"broadcast"`` gives all ranks the values of rank 0.
        ``"ignore"`` sends nothing, for values that are set later.
    frozen : collection of str
        Names of parameters that are not trained. A gradient that is given for one is left as it is.
    order : {"reverse", "ready", "largest"}
        ``"reverse"`` fills buckets from the last parameter to the first. ``"ready"`` does so for the first step,
        and from then on follows the order in which gradients became ready in it, averaged over the ranks.
        ``"largest"`` starts with the largest gradient.
    bucket_bytes : int
        The most bytes of gradients in a bucket. A larger gradient has a bucket of its own.
    first_bucket_bytes : int
        The most bytes in the first bucket of each dtype. A smaller one can be sent earlier.
    min_bucket_bytes : int
        If the last bucket of a dtype has fewer bytes, its gradients go into the bucket before it. That bucket may
        then exceed ``bucket_bytes``.
    bucketing : bool
        False makes one call for each gradient, for debugging.
    deterministic : bool
        True folds the ranks' gradients in rank order. So the same gradients give the same bits in each run, with any
        buckets and any order.
    accumulate : int
        The number of micro-steps that are added up before each reduction. Nothing is divided by it.
    adaptive : int
        After this number of steps by ``ready()`` and ``wait()``, ``bucket_bytes`` and ``first_bucket_bytes`` are
        chosen once from measurements of these steps; see `GradientSync.choice`. The gradients then get another layout,
        as by `GradientSync.configure`. 0 keeps the sizes. For host arrays.
    check_every : int
        The number of reduced steps between two calls of `GradientSync.check_consistency`. 0 never calls it.
    loss_scale : LossScale or None
        With a LossScale, a program multiplies the loss by `GradientSync.loss_scale`. Results are divided by it. Steps
        that are not finite are left out, as by ``nonfinite="skip"``.
    compressor : Compressor or None
        An object such as `TopK`, which sends less than the gradients; see :doc:`/how_to/gradients`. For host arrays.
    hierarchical : bool
        True sums gradients within each node without compression, and compresses only messages between nodes.

    Raises
    ------
    UsageError
        If a setting has a wrong value, or two settings exclude each other.
    """

    op: Combine = "average"
    unused: Unused = "zero"
    nonfinite: Nonfinite = "keep"
    initial: Initial = "check"
    frozen: Collection[str] = ()
    order: Order = "reverse"
    bucket_bytes: int = 25 * MIB
    first_bucket_bytes: int = MIB
    min_bucket_bytes: int = 64 * KIB
    bucketing: bool = True
    deterministic: bool = False
    accumulate: int = 1
    adaptive: int = 0
    check_every: int = 0
    loss_scale: LossScale | None = None
    compressor: Compressor | None = None
    hierarchical: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, object] = {}
        for name, kind in ReductionOptions.__annotations__.items():
            value = getattr(self, name)
            if kind in (Combine, Unused, Nonfinite, Initial, Order):
                checked[name] = check_choice(name, value, kind)
            elif kind is bool:
                checked[name] = check_bool(name, value)
            elif kind is int:
                checked[name] = check_least(name, value, _LEAST.get(name, 0))
        names = [self.frozen] if isinstance(self.frozen, str) else self.frozen
        set_checked(self, **checked, frozen=tuple(sorted(set(map(str, names)))))
        if self.loss_scale is not None and not isinstance(self.loss_scale, LossScale):
            raise UsageError(f"loss_scale is {self.loss_scale!r}; give a LossScale")
        if self.loss_scale is not None and self.nonfinite == "raise":
            raise UsageError(
                "loss_scale leaves out steps that are not finite, and nonfinite='raise' raises for them; "
                "leave one out"
            )
        if self.compressor is None:
            if self.hierarchical:
                raise UsageError("hierarchical=True works only with a compressor; give one")
            return
        if isinstance(self.compressor, type) or not callable(
            getattr(self.compressor, "channel", None)
        ):
            shown = repr(self.compressor)
            advice = "give an object with a method channel(), such as TopK()"
            compressors = [each.__name__ for each in COMPRESSORS]
            near = did_you_mean(shown.strip("'"), compressors, advice)
            raise UsageError(f"compressor is {shown}; {near}")
        if self.deterministic:
            raise UsageError(
                "deterministic=True gives the same bits with any buckets, and a compressor's results depend on them; "
                "leave one out"
            )

    @property
    def by_name(self) -> dict[str, object]:
        """The settings by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def skips(self) -> bool:
        """Whether steps that are not finite are left out."""
        return self.nonfinite == "skip" or self.loss_scale is not None

    def changed(self, changes: Mapping[str, Any]) -> "ReductionSettings":
        """Return these settings with changes.

        Raises
        ------
        UsageError
            If a setting is unknown or has a wrong value.
        """
        names = sorted(self.by_name)
        for name in changes.keys() - set(names):
            advice = did_you_mean(name, names, f"give some of {', '.join(names)}")
            raise UsageError(f"unknown setting {name!r}; {advice}")
        return replace(self, **changes)

    def check_for(self, parameters: Iterable[Parameter]) -> None:
        """Raise unless the settings fit a model.

        Raises
        ------
        UsageError
            If `frozen` names an unknown parameter; or if a parameter lies on a device, and a compressor or `adaptive`
            is for host arrays.
        """
        on_device = {each.name: each.on_device for each in parameters}
        for name in self.frozen:
            check_known("parameter", name, on_device)
        device = next((name for name in on_device if on_device[name]), None)
        for setting, what in ((self.compressor, "a compressor"), (self.adaptive, "adaptive=")):
            if device and setting:
                raise UsageError(
                    f"{what} is for host arrays, and parameter {device!r} lies on a device; leave it out"
                )


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
        The reductions' settings.
    owners : dict of str to object
        The objects that keep their gradients in ``grad``, such as PyTorch's parameters, by parameter name.
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
        """Return a new model if all ranks agree on it. Collective; blocks.

        Parameters
        ----------
        make : callable
            Returns the model that this rank proposes. If it raises an error, every rank raises one.

        Returns
        -------
        Model
            The result of `make`.
        list of str
            Its differences from this model, as sentences.
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
            self.group.broadcast_each(new.values(), 0)
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
        """Return the model with changed settings."""
        return replace(self, settings=self.settings.changed(changes))

    def with_parameter(self, name: str, array: Any) -> "Model":
        """Return the model with one more parameter."""
        pairs = [(each.name, x) for each, x in self.arrays.items()]
        arrays, owners = read([*pairs, (name, array)], devices=True)
        return replace(self, arrays=arrays, owners=self.owners | owners)

    def without_parameter(self, name: str) -> "Model":
        """Return the model without a parameter."""
        check_known("parameter", name, [each.name for each in self.arrays])
        arrays = {each: x for each, x in self.arrays.items() if each.name != name}
        if not arrays:
            raise UsageError(f"{name!r} is the only parameter; keep at least one")
        owners = {each: owner for each, owner in self.owners.items() if each != name}
        frozen = [each for each in self.settings.frozen if each != name]
        return replace(self, arrays=arrays, owners=owners).configured({"frozen": frozen})
