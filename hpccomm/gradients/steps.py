"""The steps of a training: from the first given gradient to the results. `GradientSync` calls it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from hpccomm.errors import CommunicatorAborted, UsageError
from hpccomm.gradients.adaptive import BucketChoice, WarmUp
from hpccomm.gradients.agreement import agree, check_same
from hpccomm.gradients.arrays import Array
from hpccomm.gradients.buckets import FLAGS, Buckets, gradient_of
from hpccomm.gradients.checks import check_number
from hpccomm.gradients.compression.contract import Channel
from hpccomm.gradients.flat import clip
from hpccomm.gradients.group import RankGroup
from hpccomm.gradients.layout import layout, mean_order, ordered, urgent_buckets
from hpccomm.gradients.loss_scale import CurrentScale
from hpccomm.gradients.model import Model
from hpccomm.gradients.outcome import is_skipped
from hpccomm.gradients.record import Record
from hpccomm.gradients.reducer import Reducer, Worker
from hpccomm.runtime.lifetime import after_fork
from hpccomm.runtime.recorder import entered
from hpccomm.runtime.reports import trace

if TYPE_CHECKING:
    from hpccomm.gradients.log import Log

SYNC, READY = "sync()", "ready() and wait()"
"""Ways to reduce a step."""

_trainings: "WeakSet[TrainingSteps]" = WeakSet()


class TrainingSteps:
    """Steps on the buckets of a model.

    Parameters
    ----------
    model : Model
        Without parameters.

    Attributes
    ----------
    model : Model
        What all ranks agreed on, after `lay_out`.
    buckets : Buckets
        The gradients, after `lay_out`.
    record : Record
        What steps cost.
    scale : CurrentScale
        The factor of the loss.
    log : Log or None
        Where steps are written down.
    choice : BucketChoice or None
        The sizes of buckets that were chosen.
    ended : BaseException or None
        Why no step can follow.
    """

    buckets: Buckets

    def __init__(self, model: Model) -> None:
        self._group, self.model, comm = model.group, model, model.group.comm
        self._worker = Worker(comm.abort) if comm.background else None
        self._levels: tuple[RankGroup, RankGroup | None] | None = None
        self.record, self.scale = Record(), CurrentScale()
        self.log: Log | None = None
        self.choice: BucketChoice | None = None
        self._warm_up: WarmUp | None = None
        self._readiness: Sequence[str] | None = None  # the order of gradients in the first step
        self.ended: BaseException | None = None
        self._open = False  # a micro-step has begun
        self._complete = False  # no gradient can become ready any more
        self._reduced = False  # the gradients are results
        self._suspended = False  # by no_sync
        self._micro_steps = 0  # since the last reduction
        self._way = ""  # in which the last step was reduced
        _trainings.add(self)

    def lay_out(
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
        before: Buckets | None = getattr(self, "buckets", None)
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
        same = settings.loss_scale == self.scale.rule
        scale = self.scale if same else CurrentScale(settings.loss_scale)
        _rescale(buckets, reducer, scale)
        # No calls between these, so that an interrupt comes before all or after all.
        self.model, self.buckets, self._reducer = model, buckets, reducer
        self.scale, self._warm_up, self._readiness = scale, warm_up, readiness
        self.record.lay_out(buckets, reducer)
        if self.log is not None:
            for change in changes:
                self.log.note(self.record.steps, change)
            self.log.layout(self.record.steps, parts)

    # Between steps.

    def check_between(self) -> None:
        """Raise if a step is under way, or none can follow."""
        entered()
        self._check_alive()
        if self._open:
            raise UsageError("a step is under way; call wait() first")

    def _check_alive(self) -> None:
        if self.ended is not None:
            raise self.ended

    def zero(self) -> None:
        """Do what `GradientSync.zero` does."""
        self.check_between()
        self.buckets.begin()
        self._reduced, self._micro_steps, self.buckets.factor = False, 0, None
        self.buckets.clear()

    def check_consistency(self) -> None:
        """Do what `GradientSync.check_consistency` does."""
        self.check_between()
        arrays = {f"parameter {each.name!r}": x for each, x in self.model.arrays.items()}
        if self._reduced:
            arrays |= {f"gradient {name!r}": x for name, x in self.buckets.gradients.items()}
        check_same(
            self._group,
            arrays,
            problem="the ranks have drifted apart",
            remedy="broadcast_parameters() gives all the same parameters again",
        )

    def clip_by_global_norm(self, limit: float) -> float:
        """Do what `GradientSync.clip_by_global_norm` does."""
        if not isinstance(limit, int | float | np.number) or not limit > 0:
            raise UsageError(f"limit is {limit!r}; give a number above 0")
        if not self._reduced or self._open:
            raise UsageError("the gradients are not reduced; call sync() or wait() first")
        buckets = self.buckets
        # In the order of the parameters, so that the bits do not depend on the buckets.
        names = [each.name for each in self.model.trained if buckets.present[each.name]]
        norm = clip([buckets.gradients[name] for name in names], float(limit))
        buckets.copy_back()
        buckets.accept()
        return norm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do what `GradientSync.no_sync` does."""
        self.check_between()
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before

    def close(self) -> None:
        """Do what `GradientSync.close` does."""
        if self.ended is not None:
            self.end_log(self.ended)
            return
        self.check_between()
        self.ended = UsageError("this object was closed; make another one")
        if self._levels is not None and self._levels[1] is not None:
            self._levels[1].comm.finalize()
        if self.log is not None:
            self.log.close()

    def end_log(self, error: BaseException) -> None:
        """End the log, if there is one, with an error."""
        if self.log is not None:
            self.log.close(f"failed: {type(error).__name__}: {' '.join(str(error).split())}")

    def discard(self) -> None:
        """Remove the log and the communicators: the training does not begin."""
        if self.log is not None:
            self.log.discard()
        if self._levels is not None and self._levels[1] is not None:
            self._levels[1].comm.abort()

    # A step.

    @property
    def _reducing(self) -> bool:
        return not self._suspended and self._micro_steps + 1 >= self.model.settings.accumulate

    def weigh(self, samples: float) -> None:
        """Do what `GradientSync.weigh` does."""
        op = self.model.settings.op
        if op != "weighted":
            raise UsageError(f"a weight is given, and op is {op!r}; take 'weighted'")
        if self._reducer.started:
            raise UsageError("a weight is given after a reduction has started; call weigh() first")
        samples = check_number("the weight", samples, lambda x: x >= 0, "of at least 0")
        entered()
        total = np.array([samples])
        self._group.reduce(total, deterministic=True)
        if total[0] == 0:
            raise UsageError("the weights of all ranks are 0; give the number of samples of each")
        self.buckets.factor = samples / float(total[0])

    def _begin(self, way: str) -> None:
        """Begin a step, if none is under way; after another way of reducing, the ranks compare theirs first."""
        self._check_alive()
        weighted = self.model.settings.op == "weighted"
        if weighted and self._reducing and self.buckets.factor is None:
            raise UsageError("op is 'weighted' and this step has no weight; call weigh() first")
        if not self._open:
            entered()
            if way != self._way and self._reducing:
                differ = "the ranks reduce a step in different ways"
                self._way = agree(self._group, lambda: (way, {"the call": way}), differ)
            if self._reduced:
                self.buckets.begin()
                self._reduced = False
            self._open = True

    def sync(self, grads: Mapping[str, Any] | None, weight: float | None) -> bool:
        """Do what `GradientSync.sync` does."""
        self._check_alive()
        if self._open:
            raise UsageError("gradients were marked by ready() in this step; end it by wait()")
        buckets, frozen = self.buckets, self.model.settings.frozen
        given = [
            (name, buckets.source(name, grad, written=True))
            for name, grad in (grads or {}).items()
            if grad is not None and name not in frozen
        ]
        if weight is not None:
            self.weigh(weight)
        self._begin(SYNC)
        if grads is None:
            buckets.mark_all()
        for name, array in given:
            buckets.mark(name, array, back=True)
        return self._end(self._reducer.reduce_all)

    def ready(self, name: str, grad: Any) -> None:
        """Do what `GradientSync.ready` does."""
        if name in self.model.settings.frozen:
            return
        if self._complete:
            raise UsageError(f"{name!r} is ready too late, after wait_for(); call wait() first")
        owner = self.model.owners.get(name)
        own = grad is not None and owner is not None and grad is owner.grad
        array = self.buckets.source(name, grad, written=own)
        self._begin(READY)
        self.buckets.mark(name, array, back=own)
        if self._reducing:
            self._reducer.ready(name)

    def wait(self) -> bool:
        """Do what `GradientSync.wait` does."""
        self._begin(READY)
        return self._end(self._reducer.finish)

    def wait_for(self, name: str) -> Array:
        """Do what `GradientSync.wait_for` does."""
        view = gradient_of(name, self.buckets.gradients)
        if not self._reducing:
            raise UsageError("this micro-step is not reduced; call wait()")
        self._begin(READY)
        self._complete = True
        self._reducer.close()
        with self._reduction():
            self._reducer.wait_for(self.buckets.bucket_of[name])
        return view

    @contextmanager
    def _reduction(self) -> Iterator[None]:
        """Count a wait. No step may follow its error: its progress on the ranks is unknown."""
        begun = perf_counter()
        try:
            yield
        except BaseException as error:
            self.ended = error
            raise
        self.record.waited.append((begun, perf_counter()))
        if (recording := trace()) is not None:
            recording.rejoined(begun)

    def _end(self, reduce: Callable[[], None]) -> bool:
        """Reduce, unless more micro-steps are due before, and end the micro-step. Return whether there are results."""
        group, model, warm_up = self._group, self.model, self._warm_up
        buckets, record, settings = self.buckets, self.record, model.settings
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
            if self.log is not None:
                self.log.step(*record.last(skipped=skipped))
            if (recording := trace()) is not None:
                recording.step()
        if skipped:
            record.skipped += 1
            buckets.clear()
        buckets.copy_back()
        if skipped:
            self.zero()
        else:
            buckets.accept()
        if settings.loss_scale is not None:
            self.scale.step(finite=not skipped)
            _rescale(buckets, self._reducer, self.scale)
        if settings.check_every and not record.steps % settings.check_every:
            self.check_consistency()
        if settings.order == "ready" and self._readiness is None:
            self.lay_out(model, readiness=mean_order(group.exchange(list(marked))))
        elif self._way == READY and warm_up is not None and warm_up.step(marked, spans):
            self.choice = choice = warm_up.choose(group, settings)
            sizes = {name: getattr(choice, name) for name in ("bucket_bytes", "first_bucket_bytes")}
            changed = model.configured({**sizes, "adaptive": 0})
            self.lay_out(changed, [f"adaptive buckets: {choice}"], self._readiness)
        return not skipped


def _rescale(buckets: Buckets, reducer: Reducer, scale: CurrentScale) -> None:
    buckets.loss_scale = scale.value
    if reducer.ranks is not None:
        reducer.ranks.scale = scale.value


@after_fork
def _end_all() -> None:
    """End the trainings of a forked child: the worker of its parent may hold their locks, and uses their memory."""
    for each in _trainings:
        each.ended = CommunicatorAborted(
            "this training belongs to the process that this one was forked from; "
            "train there, and pass the results to this process"
        )
