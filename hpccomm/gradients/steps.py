"""The course of a step: how it begins, and ends with missing, unwritten, NaN or infinite gradients; and what is laid out.

`GradientSync` is made of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from weakref import WeakSet

import numpy as np

from hpccomm.errors import CommunicatorAborted, RankMismatch, UsageError
from hpccomm.gradients.adaptive import BucketChoice, WarmUp
from hpccomm.gradients.agreement import Model, agree, check_same
from hpccomm.gradients.buckets import (
    ELSEWHERE,
    FLAGS,
    IS_WRITTEN,
    MISSING,
    NONFINITE,
    UNCHANGED,
    Buckets,
)
from hpccomm.gradients.group import Channel, RankGroup
from hpccomm.gradients.layout import (
    CurrentScale,
    ReductionSettings,
    layout,
    mean_order,
    ordered,
    urgent_buckets,
)
from hpccomm.gradients.record import Log, Record
from hpccomm.gradients.reducer import Reducer, Worker
from hpccomm.runtime.recorder import entered
from hpccomm.runtime.reports import trace
from hpccomm.runtime.service import after_fork
from hpccomm.units import few, ranks_named

SYNC, READY = "sync()", "ready() and wait()"
"""Ways to reduce a step."""

_trainings: "WeakSet[TrainingSteps]" = WeakSet()


class TrainingSteps:
    """The part of `GradientSync` that its calls share: the present model, its buckets, and where in a step it is.

    Parameters
    ----------
    group : RankGroup
        The ranks that train together.
    """

    _buckets: Buckets
    _reducer: Reducer
    _log: Log | None

    def __init__(self, group: RankGroup) -> None:
        self._group, self._model = group, Model(group)
        self._worker = Worker(group.comm.abort) if group.comm.background else None
        self._levels: tuple[RankGroup, RankGroup | None] | None = None
        self._record, self._scale = Record(), CurrentScale()
        self._log = None
        self._choice: BucketChoice | None = None
        self._warm_up: WarmUp | None = None
        self._readiness: Sequence[str] | None = None  # the order of gradients in the first step
        self._ended: BaseException | None = None  # why no step can follow
        self._open = False  # a micro-step has begun
        self._complete = False  # no gradient can become ready any more
        self._reduced = False  # the gradients are results
        self._suspended = False  # by no_sync
        self._micro_steps = 0  # since the last reduction
        self._way = ""  # in which the last step was reduced
        _trainings.add(self)

    def _lay_out(
        self, model: Model, changes: Sequence[str] = (), readiness: Sequence[str] | None = None
    ) -> None:
        """Take a model, and put its gradients in new buckets. If this raises, all stays. Collective; blocks.

        Parameters
        ----------
        model : Model
            What all ranks agreed on.
        changes : sequence of str
            What has changed in the model, for the log.
        readiness : sequence of str, optional
            As in `ordered`.
        """
        group, settings = self._group, model.settings
        before: Buckets | None = getattr(self, "_buckets", None)
        if settings.hierarchical and self._levels is None:
            comm = group.comm
            node = RankGroup(comm.node_comm, group.timeout)
            across = comm.split(0 if node.rank == 0 else None, name=f"{comm.name}.leaders")
            self._levels = node, None if across is None else RankGroup(across, group.timeout)
        filled = ordered(model.trained, settings.order, readiness)
        parts = layout(model.trained, settings, readiness)
        urgent = urgent_buckets(parts, model.trained)
        flags, compressor = len(FLAGS) + len(urgent), settings.compressor

        def make() -> tuple[tuple[Buckets, list[Channel]], dict[str, str]]:
            channels = [compressor.channel(each) for each in parts if compressor is not None]
            return (Buckets(group, parts, settings, model.owners, flags), channels), {}

        buckets, channels = agree(group, make)
        levels = self._levels if settings.hierarchical else None
        reducer = Reducer(group, buckets, settings, urgent, channels, self._worker, levels)
        if before is not None:
            buckets.adopt(before)
        warm_up = WarmUp(filled, parts, settings.adaptive) if settings.adaptive else None
        same = settings.loss_scale == self._scale.rule
        scale = self._scale if same else CurrentScale(settings.loss_scale)
        _rescale(buckets, reducer, scale)
        # No calls between these, so that an interrupt comes before all or after all.
        self._model, self._buckets, self._reducer = model, buckets, reducer
        self._scale, self._warm_up, self._readiness = scale, warm_up, readiness
        self._record.lay_out(buckets, reducer)
        if self._log is not None:
            for change in changes:
                self._log.note(self._record.steps, change)
            self._log.layout(self._record.steps, parts)

    # Between steps.

    def _check_between(self) -> None:
        """Raise if a step is under way, or none can follow."""
        entered()
        self._check_alive()
        if self._open:
            raise UsageError("a step is under way; call wait() first")

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _forget(self) -> None:
        """Set all gradients to 0: none is given, and none is a result."""
        self._buckets.begin()
        self._reduced, self._micro_steps, self._buckets.factor = False, 0, None
        self._buckets.clear()

    def _compare(self) -> None:
        """Compare the parameters of all ranks, and the gradients if they are reduced. Collective; blocks."""
        arrays = {f"parameter {each.name!r}": x for each, x in self._model.arrays.items()}
        if self._reduced:
            arrays |= {f"gradient {name!r}": x for name, x in self._buckets.gradients.items()}
        check_same(
            self._group,
            arrays,
            problem="the ranks have drifted apart",
            remedy="broadcast_parameters() gives all the same parameters again",
        )

    def _end_log(self, error: BaseException) -> None:
        """End the log, if there is one, with an error."""
        if self._log is not None:
            self._log.close(f"failed: {type(error).__name__}: {' '.join(str(error).split())}")

    def _discard(self) -> None:
        """Remove the log and the communicators: the training does not begin."""
        if self._log is not None:
            self._log.discard()
        if self._levels is not None and self._levels[1] is not None:
            self._levels[1].comm.abort()

    # A step.

    @property
    def _reducing(self) -> bool:
        return not self._suspended and self._micro_steps + 1 >= self._model.settings.accumulate

    def _begin(self, way: str) -> None:
        """Begin a step, if none is under way; after another way of reducing, the ranks compare theirs first."""
        self._check_alive()
        weighted = self._model.settings.op == "weighted"
        if weighted and self._reducing and self._buckets.factor is None:
            raise UsageError("op is 'weighted' and this step has no weight; call weigh() first")
        if not self._open:
            entered()
            if way != self._way and self._reducing:
                differ = "the ranks reduce a step in different ways"
                self._way = agree(self._group, lambda: (way, {"the call": way}), differ)
            if self._reduced:
                self._buckets.begin()
                self._reduced = False
            self._open = True

    @contextmanager
    def _reduction(self) -> Iterator[None]:
        """Count a wait. No step may follow its error: its progress on the ranks is unknown."""
        begun = perf_counter()
        try:
            yield
        except BaseException as error:
            self._ended = error
            raise
        self._record.waited.append((begun, perf_counter()))
        if (recording := trace()) is not None:
            recording.rejoined(begun)

    def _end(self, reduce: Callable[[], None]) -> bool:
        """Reduce, unless more micro-steps are due before, and end the micro-step. Return whether there are results."""
        group, model, warm_up = self._group, self._model, self._warm_up
        buckets, record, settings = self._buckets, self._record, model.settings
        reduced, marked, spans = self._reducing, buckets.marked, self._reducer.spans
        if reduced:
            with self._reduction():
                reduce()
            record.step()
        else:
            self._micro_steps += 1
            buckets.sources.clear()
        record.micro_steps += 1
        buckets.marked = {}  # they may be given again
        self._reducer.reset()
        self._open = self._complete = False
        if not reduced:
            return False
        self._micro_steps, buckets.factor, self._reduced = 0, None, True
        skipped = True  # also if this raises
        try:
            skipped = is_skipped(group, buckets, settings)
        finally:
            if self._log is not None:
                self._log.step(*record.last(skipped=skipped))
            if (recording := trace()) is not None:
                recording.step()
        if skipped:
            record.skipped += 1
            buckets.clear()
        buckets.copy_back()
        if skipped:
            self._forget()
        else:
            buckets.accept()
        if settings.loss_scale is not None:
            self._scale.step(finite=not skipped)
            _rescale(buckets, self._reducer, self._scale)
        if settings.check_every and not record.steps % settings.check_every:
            self._compare()
        if settings.order == "ready" and self._readiness is None:
            self._lay_out(model, readiness=mean_order(group.exchange(list(marked))))
        elif self._way == READY and warm_up is not None and warm_up.step(marked, spans):
            self._choice = choice = warm_up.choose(group, settings)
            sizes = {name: getattr(choice, name) for name in ("bucket_bytes", "first_bucket_bytes")}
            changed = model.configured({**sizes, "adaptive": 0})
            self._lay_out(changed, [f"adaptive buckets: {choice}"], self._readiness)
        return not skipped


def _rescale(buckets: Buckets, reducer: Reducer, scale: CurrentScale) -> None:
    buckets.loss_scale = scale.value
    if reducer.ranks is not None:
        reducer.ranks.scale = scale.value


@after_fork
def _end_all() -> None:
    """End the trainings of a forked child: the worker of its parent may hold their locks, and uses their memory."""
    for each in _trainings:
        each._ended = CommunicatorAborted(  # noqa: SLF001 (of this module)
            "this training belongs to the process that this one was forked from; "
            "train there, and pass the results to this process"
        )


MOST = 5
"""Gradients that a message names."""


def is_skipped(group: RankGroup, buckets: Buckets, settings: ReductionSettings) -> bool:
    """Check a reduced step, and return whether it has no results because they are not finite.

    All ranks have the same flags, so that nothing is sent if all is well. Else collective; blocks.

    Raises
    ------
    UsageError
        On every rank, if gradients were not written; or if results are not finite, with ``nonfinite="raise"``.
    RankMismatch
        On every rank, if a gradient is missing, with ``unused="error"``.
    """
    flags = buckets.any_flags
    if flags[ELSEWHERE] or (flags[UNCHANGED] and not flags[IS_WRITTEN]):
        _raise_unwritten(group, buckets)
    if flags[MISSING]:
        if settings.unused == "zero":
            buckets.present = dict.fromkeys(buckets.present, True)
        else:
            _fill_missing(group, buckets, settings.unused == "error")
    if settings.nonfinite == "keep" and not settings.skips:
        return False
    bad = [
        name
        for flat in buckets.flats
        if not flat.is_finite()
        for name, view in flat.views.items()
        if not np.isfinite(view).all()
    ]
    if not bad and not flags[NONFINITE]:
        return False
    if settings.nonfinite == "raise":
        _raise_nonfinite(group, buckets, bad)
    return True


def _raise_unwritten(group: RankGroup, buckets: Buckets) -> None:
    """Raise for gradients in buckets: their sum would silently contain old results."""
    every = group.exchange(buckets.unwritten())
    buckets.accept([])
    names = list(dict.fromkeys(name for unwritten, _ in every for name in unwritten))
    ranks = [rank for rank, (unwritten, _) in enumerate(every) if unwritten]
    if any(owned for _, owned in every):
        cause = (
            "zero_grad() and backward() made new tensors in .grad, which the step did not see and where no results "
            "arrive; give them, by sync({name: parameter.grad, ...}) or ready(name, parameter.grad)"
        )
    else:
        cause = (
            "they have the bits of the last results; write them in each step, or give arrays to sync() or ready(). "
            "zero() before a step says that equal ones are meant"
        )
    raise UsageError(
        "gradients that lie in buckets were not written since the last step: "
        f"{few(map(repr, names), MOST)} on {ranks_named(ranks)}; {cause}"
    )


def _fill_missing(group: RankGroup, buckets: Buckets, fail: bool) -> None:
    """Find the missing gradients of all ranks."""
    own = np.fromiter(buckets.present.values(), np.uint8, len(buckets.present))
    present: Any = group.gather(own).astype(bool)
    buckets.present = dict(zip(buckets.present, present.any(axis=0).tolist(), strict=True))
    if fail:
        missing = [
            f"{name!r} on {ranks_named(np.flatnonzero(~column).tolist())}"
            for name, column in zip(buckets.present, present.T, strict=True)
            if not column.all()
        ]
        raise RankMismatch(
            f"gradients are missing: {'; '.join(missing)}; give them, or take unused='zero' or 'skip'",
            rank=group.rank,
            operation="all_reduce",
            ranks=np.flatnonzero(~present.all(axis=1)).tolist(),
        )


def _raise_nonfinite(group: RankGroup, buckets: Buckets, bad: list[str]) -> None:
    every = group.exchange(sorted(buckets.nonfinite))
    lines = []
    for name in dict.fromkeys([*bad, *(name for names in every for name in names)]):
        ranks = [rank for rank, names in enumerate(every) if name in names]
        where = f"on {ranks_named(ranks)}" if ranks else "in the result alone"
        lines.append(f"{name!r} {where}")
    raise UsageError(
        f"gradients are NaN or infinite: {'; '.join(lines)}; nonfinite='skip' leaves such steps out"
    )
