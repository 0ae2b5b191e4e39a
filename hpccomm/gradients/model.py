"""The model that all ranks agreed on, and where its gradients lie."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpccomm.errors import HpccommError, UsageError, did_you_mean
from hpccomm.gradients.agreement import Model, agree
from hpccomm.gradients.consistency import check_alike
from hpccomm.gradients.layout import Bucket, BucketSettings, layout
from hpccomm.gradients.meaning import Meaning
from hpccomm.gradients.parameters import Parameter, check_writable, owners, read
from hpccomm.gradients.step import Levels, Step
from hpccomm.gradients.worker import Worker
from hpccomm.runtime.recorder import entered

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_BUCKETS = frozenset(each.name for each in fields(BucketSettings))
_MEANING = frozenset(each.name for each in fields(Meaning))

Arrays = dict[Parameter, NDArray[Any]]


class AgreedModel:
    """The model and its settings, which change only if all ranks agree.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    timeout : float or None
        Deadline of each call in seconds.
    make : callable
        Returns this rank's model and arrays, or raises what is wrong with them.
    """

    def __init__(
        self,
        comm: "Communicator",
        timeout: float | None,
        make: Callable[[], tuple[Model, Arrays]],
    ) -> None:
        self._comm = comm
        self._timeout = timeout
        self._open = False  # a micro-step has begun
        self._failed: BaseException | None = None  # what a reduction raised
        self._over = False  # closed
        self._readiness: list[str] | None = None
        self._arrays: Arrays = {}
        self._owners: dict[str, Any] = {}  # parameters that have gradients of their own
        self._model: Model
        self._step: Step | None = None
        self._worker = Worker(comm.abort) if comm.background else None
        self._levels: Levels | None = None
        try:
            self._agree(make)
        except BaseException:
            if self._levels is not None and self._levels.leaders is not None:
                self._levels.leaders.abort()  # which nobody will have
            raise

    def _agree(self, make: Callable[[], tuple[Model, Arrays]]) -> None:
        """Take another model once all ranks agree on it; until then, the present one stays."""
        made: Model | HpccommError
        arrays: Arrays = {}
        new: Arrays = {}
        try:
            self._between_steps()
            made, arrays = make()
            new = {each: x for each, x in arrays.items() if each not in self._arrays}
            if made.meaning.initial == "broadcast":
                check_writable(new)
        except HpccommError as error:
            made = error
        except Exception as error:  # noqa: BLE001 (the other ranks must hear of it)
            made = UsageError(f"{type(error).__name__}: {error}")
            made.__cause__ = error
        agree(self._comm, made, self._timeout)
        assert isinstance(made, Model)
        if made.meaning.initial == "broadcast":
            self._broadcast(new, 0)
        elif made.meaning.initial == "check" and self._comm.size > 1:
            check_alike(self._comm, {each.name: x for each, x in new.items()}, self._timeout)
        self._readiness = None
        self._lay_out(made)
        self._arrays = arrays

    def _between_steps(self) -> None:
        """Raise if a step is under way, or none can come."""
        entered()
        self._check_alive()
        if self._open:
            raise UsageError("a step is under way; call wait() first")

    def _check_alive(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._over:
            raise UsageError("this object was closed; make another one")

    def _lay_out(self, model: Model) -> None:
        trained = [each for each in model.parameters if each.name not in model.frozen]
        if model.meaning.hierarchical and self._levels is None:
            self._levels = _levels(self._comm)
        step = Step(
            self._comm,
            layout(trained, model.settings, self._readiness),
            model,
            worker=self._worker,
            levels=self._levels if model.meaning.hierarchical else None,
            timeout=self._timeout,
            owners=self._owners,
        )
        if self._step is not None:
            step.adopt(self._step)
        before = None if self._step is None else self._model
        self._model, self._step = model, step
        self._laid_out(before)

    def _laid_out(self, before: Model | None) -> None:
        """Take note of another layout, and of the model before it."""

    def configure(self, **changes: Any) -> None:
        """Change settings between steps. Collective, with the same changes; blocks.

        The gradients get another layout, so take them from `gradients` again. Their values stay. What a compressor
        keeps begins anew.

        Parameters
        ----------
        **changes
            Any of the keywords of the class but ``timeout`` and ``log``.

        Raises
        ------
        UsageError
            If a setting is unknown or does not fit, or a step is under way. The settings stay as they were.
        RankMismatch
            On the other ranks in that case, and on all ranks if the changes differ; the settings stay, too.
        """

        def model() -> tuple[Model, Arrays]:
            old, arrays = self._model, self._arrays
            for name in changes.keys() - _BUCKETS - _MEANING - {"frozen"}:
                known = sorted(_BUCKETS | _MEANING | {"frozen"})
                advice = did_you_mean(name, known, f"give some of {', '.join(known)}")
                raise UsageError(f"there is no setting {name!r}; {advice}")
            frozen = (
                old.frozen if "frozen" not in changes else frozen_names(changes["frozen"], arrays)
            )
            settings = replace(old.settings, **_only(changes, _BUCKETS))
            meaning = replace(old.meaning, **_only(changes, _MEANING))
            return Model(old.parameters, frozen, settings, meaning), arrays

        self._agree(model)

    def accumulate(self, count: int) -> None:
        """Add so many micro-steps up before each reduction, by `configure`. Collective; blocks."""
        self.configure(accumulate=count)

    def add(self, name: str, array: Any) -> None:
        """Add a parameter behind the others. Collective; blocks. The gradients get another layout.

        Raises
        ------
        UsageError
            If the name is there, the array does not fit, or a step is under way.
        RankMismatch
            On the other ranks in that case, and on all ranks if they add different ones.
        """

        def model() -> tuple[Model, Arrays]:
            made = self._with(read([*self._pairs(), (name, array)], devices=True))
            self._owners |= owners([(name, array)])
            return made

        self._agree(model)

    def remove(self, name: str) -> None:
        """Remove a parameter. Collective; blocks. The gradients get another layout.

        Raises
        ------
        UsageError
            If there is none of this name, it is the only one, or a step is under way.
        RankMismatch
            On the other ranks in that case, and on all ranks if they remove different ones.
        """

        def model() -> tuple[Model, Arrays]:
            frozen_names([name], self._arrays)
            arrays = {each: x for each, x in self._arrays.items() if each.name != name}
            if not arrays:
                raise UsageError(f"{name!r} is the only parameter; keep at least one")
            return self._with(arrays)

        self._agree(model)

    def _pairs(self) -> list[tuple[str, NDArray[Any]]]:
        return [(each.name, array) for each, array in self._arrays.items()]

    def _with(self, arrays: Arrays) -> tuple[Model, Arrays]:
        frozen = self._model.frozen & {each.name for each in arrays}
        return replace(self._model, parameters=tuple(arrays), frozen=frozen), arrays

    @property
    def gradients(self) -> Mapping[str, NDArray[Any]]:
        """The gradients by name: views of the buckets, of the shape and dtype of their parameters. Local.

        What is written to them needs no copy. They are other arrays after `configure`, `add` and `remove`, and with
        ``order="ready"`` after the first reduction.
        """
        return self._now.views

    def close(self) -> None:
        """End the communicators that ``hierarchical=True`` made. Collective then; blocks."""
        if self._over:
            return
        self._between_steps()
        self._over = True
        if self._levels is not None:
            if self._levels.leaders is not None:
                self._levels.leaders.finalize()
            self._levels = None

    def buckets(self) -> tuple[Bucket, ...]:
        """Return what lies where, in the order of the reductions. Local. Each prints as a line."""
        return tuple(flat.bucket for flat in self._now.flats)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Give all ranks the parameters of `root`, in the arrays that the class was made with. Collective; blocks.

        Raises
        ------
        UsageError
            If `root` is no rank, or an array is read-only.
        CommunicationError
            If a call fails or its deadline passes.
        """
        entered()
        if root != self._comm.rank:
            check_writable(self._arrays)
        self._broadcast(self._arrays, root)

    def _broadcast(self, parameters: Arrays, root: int) -> None:
        kinds: dict[bool, list[tuple[NDArray[Any], NDArray[Any]]]] = {}
        for parameter, array in parameters.items():
            # Another layout, such as PyTorch's channels_last, goes through a copy.
            flat = array if array.flags.c_contiguous else array.copy(order="C")
            kinds.setdefault(parameter.on_device, []).append((array, flat))
        for pairs in kinds.values():
            with self._comm.batch(timeout=self._timeout):
                for _, flat in pairs:
                    self._comm.broadcast(flat, root)
            for array, flat in pairs:
                if flat is not array and root != self._comm.rank:
                    array[...] = flat

    def has_gradients(self, name: str | None = None) -> bool:
        """Return whether a gradient is there. Local.

        Parameters
        ----------
        name : str, optional
            Of a parameter; None asks for any.

        Raises
        ------
        UsageError
            If the name is unknown.
        """
        there = self._now.there
        if name is None:
            return any(there.values())
        if name in self._model.frozen:
            return False
        self._now.given(name, None)
        return there[name]

    @property
    def _now(self) -> Step:
        assert self._step is not None
        return self._step


def _levels(comm: "Communicator") -> Levels:
    """Return communicators of this node and across nodes. Collective; blocks."""
    node = comm.node_comm
    return Levels(node, comm.split(0 if node.rank == 0 else None, name=f"{comm.name}.leaders"))


def frozen_names(names: Iterable[str], arrays: Iterable[Parameter]) -> frozenset[str]:
    """Return the names of parameters as a set.

    Raises
    ------
    UsageError
        If there is no parameter of a name.
    """
    known = [each.name for each in arrays]
    found = frozenset([names] if isinstance(names, str) else names)
    for name in found - set(known):
        raise UsageError(
            f"there is no parameter {name!r}; {did_you_mean(name, known, 'give names of parameters')}"
        )
    return found


def _only(changes: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name in names}
