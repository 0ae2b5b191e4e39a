"""`GradientSync`: the object that a training loop calls, and the course of a step.

`ready` or `sync` puts a gradient in its bucket, the reducer reduces the bucket, and the end of the step checks the results
and hands them back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, Unpack
from weakref import WeakSet

import numpy as np

from hpccomm.errors import CommunicatorAborted, UsageError
from hpccomm.gradients.adaptive import BucketChoice, WarmUp
from hpccomm.gradients.agreement import RankGroup, agree, check_same
from hpccomm.gradients.buckets import Buckets
from hpccomm.gradients.layout import clip, mean_order
from hpccomm.gradients.parameters import (
    Array,
    Bucket,
    Named,
    check_known,
    check_writable,
    read,
)
from hpccomm.gradients.record import Record, Statistics
from hpccomm.gradients.reducer import Reducer, Worker
from hpccomm.gradients.settings import CurrentScale, Model, ReductionOptions, ReductionSettings
from hpccomm.runtime.recorder import entered
from hpccomm.runtime.reports import trace
from hpccomm.runtime.service import after_fork
from hpccomm.settings import check_number
from hpccomm.spelling import Hinting

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

SYNC, READY = "sync()", "ready() and wait()"
"""The calls that reduce a step."""

_trainings: "WeakSet[GradientSync]" = WeakSet()


class GradientSync(Hinting):
    """Reduces gradients over the ranks of a communicator, in buckets, while other gradients are computed.

    Making one is collective and blocks: the ranks compare their models and settings. All ranks make the same calls, by
    one thread at a time. In a step, all ranks call `sync`; or all call `ready` and then `wait`. From the first call of a
    step to its last, the communicator must carry nothing else.

    Parameters
    ----------
    comm : Communicator
        The communicator over the ranks that train together.
    parameters : mapping or iterable of (str, array)
        The model in the order of the forward pass: NumPy arrays, other arrays that share host memory, such as PyTorch
        CPU tensors, or CuPy arrays. Dtypes are real floats. `broadcast_parameters` writes to these arrays.
    log : path-like, optional
        A results file, to which rank 0 writes each step and the buckets; see :ref:`recordings
        <recordings>`. `close` ends the log, also at the end of a ``with`` block.
    timeout : float, optional
        Timeout of each reduction in seconds. None is the communicator's.
    **settings
        The fields of `ReductionSettings`.

    Raises
    ------
    UsageError, ResultsError
        If an argument is wrong, or the log cannot be written.
    RankMismatch
        On the other ranks, if one raises an error. On all ranks, if their parameters (names, shapes, dtypes, order,
        values) or settings differ. The message names the differences and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the timeout, or is lost.

    Notes
    -----
    The method is that of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    VLDB 13(12): buckets in the order of the backward pass, reduced in one order on all ranks.

    After an error during a reduction, such as a timeout or an error of a compressor, this object has failed: every later
    step raises that error. After any other error, a step is as it was before the call, unless the call says otherwise.
    """

    _buckets: Buckets
    _reducer: Reducer

    def __init__(
        self,
        comm: "Communicator",
        parameters: Named,
        *,
        log: str | PathLike[str] | None = None,
        timeout: float | None = None,
        **settings: Unpack[ReductionOptions],
    ) -> None:
        self._group = group = RankGroup(comm, timeout)
        self._model = Model(group)
        self._worker = Worker(comm.abort) if comm.background else None
        self._levels: tuple[RankGroup, RankGroup | None] | None = None
        self._record, self._scale = Record(), CurrentScale()
        self._choice: BucketChoice | None = None
        self._warm_up: WarmUp | None = None
        self._readiness: Sequence[str] | None = None  # the order of gradients in the first step
        self._ended: BaseException | None = None  # the error that each later step raises
        self._open = False  # a micro-step has begun
        self._reduced = False  # the gradients are results
        self._suspended = False  # by no_sync
        self._micro_steps = 0  # since the last reduction
        self._calls = ""  # the calls that reduced the last step
        _trainings.add(self)

        def make() -> Model:
            arrays, owners = read(parameters, devices=True)
            chosen = ReductionSettings().changed(settings)
            self._record.open_log(log, comm, chosen.by_name)
            return Model(group, arrays, chosen, owners)

        try:
            self._lay_out(self._model.agree(make)[0])
        except BaseException:
            self._discard()
            raise

    # The model and its settings.

    def configure(self, **changes: Unpack[ReductionOptions]) -> None:
        """Change settings between steps. Collective, with the same changes; blocks.

        The gradients get another layout, so take them from `gradients` again. Their values stay. A compressor loses its
        state.

        Raises
        ------
        UsageError
            If a setting is unknown or wrong, or a step is under way. The settings stay as they were.
        RankMismatch
            On the other ranks, if one raises an error. On all ranks, if the changes differ. The settings stay as they
            were.
        """
        self._change(lambda: self._model.configured(changes))

    def accumulate(self, count: int) -> None:
        """Add up this number of micro-steps before each reduction, as by `configure`. Collective; blocks."""
        self.configure(accumulate=count)

    def add(self, name: str, array: Any) -> None:
        """Add a parameter behind the others. Else this is as `configure`. Collective; blocks."""
        self._change(lambda: self._model.with_parameter(name, array))

    def remove(self, name: str) -> None:
        """Remove a parameter, which must not be the only one. Else this is as `configure`. Collective; blocks."""
        self._change(lambda: self._model.without_parameter(name))

    def _change(self, make: Callable[[], Model]) -> None:
        def checked() -> Model:
            self._check_between()
            return make()

        self._lay_out(*self._model.agree(checked))

    def _lay_out(
        self, model: Model, changes: Sequence[str] = (), readiness: Sequence[str] | None = None
    ) -> None:
        """Take a model, and put its gradients in new buckets. If this raises, nothing changes. Collective; blocks.

        Parameters
        ----------
        model : Model
            The model on which all ranks agreed.
        changes : sequence of str
            The changes of the model, for the log.
        readiness : sequence of str, optional
            As in `ordered`.
        """
        group, settings = self._group, model.settings
        if settings.hierarchical and self._levels is None:
            comm = group.comm
            node = RankGroup(comm.node_comm, group.timeout)
            across = comm.split(0 if node.rank == 0 else None, name=f"{comm.name}.leaders")
            self._levels = node, None if across is None else RankGroup(across, group.timeout)
        same = settings.loss_scale == self._scale.rule
        scale = self._scale if same else CurrentScale(settings.loss_scale)
        levels = self._levels if settings.hierarchical else None
        buckets = agree(group, lambda: (Buckets(model, scale, levels, readiness), {}))
        reducer = Reducer(group, buckets, self._worker)
        before: Buckets | None = getattr(self, "_buckets", None)
        if before is not None:
            buckets.adopt(before)
        warm_up = WarmUp(model, readiness) if settings.adaptive else None
        # There are no calls between these lines, so that an interrupt comes before or after all of them.
        self._model, self._buckets, self._reducer = model, buckets, reducer
        self._scale, self._warm_up, self._readiness = scale, warm_up, readiness
        self._record.lay_out(buckets, reducer.num_joint_calls, changes)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Give all ranks the parameters of `root`, in the arrays that this object was made with. Collective; blocks.

        Raises
        ------
        UsageError
            If `root` is not a rank, or an array is read-only.
        CommunicationError
            If a call fails or its timeout passes.
        """
        entered()
        if root != self._group.rank:
            check_writable(self._model.arrays, "give a copy of it")
        self._group.broadcast_each(self._model.arrays.values(), root)

    def check_consistency(self) -> None:
        """Compare the parameters of all ranks, and the gradients if they are reduced. Collective; blocks.

        Ranks exchange a hash of each array, of 8 bytes. So this can be done about every hundred steps. The parameters are
        those in the arrays that this object was made with.

        Raises
        ------
        UsageError
            If a step is under way.
        RankMismatch
            On every rank, if an array differs. The message names arrays, ranks, and the largest differences.
        """
        self._check_between()
        self._compare()

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

    # A step.

    def sync(self, grads: Mapping[str, Any] | None = None, *, weight: float | None = None) -> bool:
        """Reduce all gradients of a step. Collective; blocks.

        Parameters
        ----------
        grads : mapping of str to array, optional
            Gradients by name, in the shape and dtype of their parameters. If an entry is None or missing, this rank has no
            such gradient. After the reduction, the same arrays have the results. The arrays of `gradients` are not copied.
            Without `grads`, all gradients lie in `gradients`.
        weight : float, optional
            This rank's number of samples, for ``op="weighted"``; see `weigh`.

        Returns
        -------
        bool
            Whether there are results. It is False within `no_sync`, before the last micro-step of `accumulate`, and for a
            step that is left out because it is not finite.

        Raises
        ------
        UsageError
            If an argument is wrong, or gradients were marked by `ready` in this step. On every rank, if a result is NaN or
            infinite with ``nonfinite="raise"``, or if gradients that lie in `gradients` were not written since the last
            step (see :ref:`gradients-in-place`). The step is then over.
        RankMismatch
            On every rank, if any rank lacks a gradient with ``unused="error"``. The step is then over.
        CommunicationError
            If the reduction fails or its timeout passes.
        """
        self._check_alive()
        if self._open:
            raise UsageError("gradients were marked by ready() in this step; end it by wait()")
        buckets, frozen = self._buckets, self._model.settings.frozen
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

    def ready(self, name: str, grad: Any = None) -> None:
        """Mark a gradient as complete. This may start reductions, in the same order on all ranks. Does not block.

        Another thread reduces buckets one after the other, each as soon as its gradients are ready. If several buckets are
        ready on all ranks, the one that the next forward pass needs first comes first. Until `wait` returns, the bucket's
        gradients must not be read or written.

        In the first step, and in the first step after `sync`, the first call blocks: the ranks compare whether all of them
        call `ready` and `wait`. If `Communicator.background` is False, reductions begin in `wait`. If parameters lie on a
        device, buckets start in the order of their numbers, and the caller's thread reduces buckets on the host.

        Parameters
        ----------
        name : str
            The parameter's name.
        grad : array, optional
            The gradient. It is copied, or added to the gradient of earlier micro-steps. If it is None, the gradient
            already lies in `gradients`. If it is a PyTorch parameter's own ``.grad``, it gets the result in `wait`.

        Raises
        ------
        UsageError
            If the name is unknown or was ready before in this step, or the array is wrong. Nothing changes then.
        RankMismatch
            On every rank, if the ranks compare their calls in this step and another rank calls `sync`.
        """
        if name in self._model.settings.frozen:
            return
        if self._open and self._reducer.closing:
            raise UsageError(f"{name!r} is ready too late, after wait_for(); call wait() first")
        owner = self._model.owners.get(name)
        own = grad is not None and owner is not None and grad is owner.grad
        array = self._buckets.source(name, grad, written=own)
        self._begin(READY)
        self._buckets.mark(name, array, back=own)
        if self._reducing:
            self._reducer.ready(name)

    def wait(self) -> bool:
        """End a step: start the remaining reductions, and wait for all. Collective; blocks.

        Gradients that were not marked by `ready` are missing on this rank. `gradients` has the results. It returns and
        raises the same as `sync`.
        """
        self._begin(READY)
        return self._end(self._reducer.finish)

    def wait_for(self, name: str) -> Array:
        """Wait until one gradient is reduced, and return it. Blocks; local, if the rank calls `wait` later.

        So its update can begin while other buckets are under way. Buckets are reduced in the order in which the next
        forward pass needs them. No other gradient can become ready in this step. Checks for ``unused=`` and ``nonfinite=``
        are left to `wait`.

        Raises
        ------
        UsageError
            If the name is unknown or frozen, or this micro-step is not reduced.
        CommunicationError
            If the reduction fails or its timeout passes.
        """
        check_known("gradient", name, self._buckets.gradients)
        if not self._reducing:
            raise UsageError("this micro-step is not reduced; call wait()")
        self._begin(READY)
        with self._reduction():
            self._reducer.wait_for(name)
        return self._buckets.gradients[name]

    def weigh(self, samples: float) -> None:
        """Give this rank's weight in the step, before its gradients, for ``op="weighted"``. Collective; blocks.

        The result is the sum of each rank's gradient times its weight, divided by the sum of the weights. If the gradient
        of each rank is the mean over its samples, this is the mean over all samples.

        Parameters
        ----------
        samples : float
            The number of samples of this rank, at least 0. With `accumulate`, it is that of all micro-steps, and is given in
            the last one.

        Raises
        ------
        UsageError
            If the number is wrong, ``op`` is not ``"weighted"``, or a reduction has started. On every rank, if all weights
            are 0.
        """
        self._check_alive()
        op = self._model.settings.op
        if op != "weighted":
            raise UsageError(f"a weight is given, and op is {op!r}; take 'weighted'")
        if self._open and self._reducer.started:
            raise UsageError("a weight is given after a reduction has started; call weigh() first")
        samples = check_number("the weight", samples, lambda x: x >= 0, "of at least 0")
        entered()
        total = np.array([samples])
        self._group.all_reduce(total, deterministic=True)
        if total[0] == 0:
            raise UsageError("the weights of all ranks are 0; give the number of samples of each")
        self._buckets.factor = samples / float(total[0])

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add gradients up without reducing them, for a ``with`` block around whole micro-steps. Local.

        Within it, `sync` and `wait` reduce nothing. The next reduction after it reduces the sum. Nothing is divided by the
        number of micro-steps. Raises UsageError if a step is under way.
        """
        self._check_between()
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before

    @property
    def _reducing(self) -> bool:
        return not self._suspended and self._micro_steps + 1 >= self._model.settings.accumulate

    def _begin(self, calls: str) -> None:
        """Begin a step, if none is under way. If other calls reduced the last step, the ranks first compare their calls."""
        self._check_alive()
        if self._open:
            return
        buckets, reducing = self._buckets, self._reducing
        if reducing and self._model.settings.op == "weighted" and buckets.factor is None:
            raise UsageError("op is 'weighted' and this step has no weight; call weigh() first")
        entered()
        if reducing and calls != self._calls:
            differ = "the ranks reduce a step in different ways"
            self._calls = agree(self._group, lambda: (calls, {"the call": calls}), differ)
        if self._reduced:
            buckets.begin()
            self._reduced = False
        buckets.marked = {}
        self._reducer.reset()
        self._open = True

    @contextmanager
    def _reduction(self) -> Iterator[None]:
        """Count the time as waiting. After an error, no step may follow: the ranks may be in different places."""
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
        """End a micro-step, and reduce if no more micro-steps are due before. Return whether there are results."""
        buckets, record, reducing = self._buckets, self._record, self._reducing
        model, settings, warm_up = self._model, self._model.settings, self._warm_up
        if reducing:
            with self._reduction():
                reduce()
        record.micro_steps += 1
        self._open = False
        if not reducing:
            self._micro_steps += 1
            buckets.sources.clear()
            return False
        self._micro_steps, buckets.factor, self._reduced = 0, None, True
        given, has_results = sum(buckets.present.values()), False  # also if this raises
        try:
            has_results = buckets.check()
        finally:
            record.step(given, skipped=not has_results)
            if (recording := trace()) is not None:
                recording.step()
        if not has_results:
            record.skipped += 1
            buckets.clear()
        buckets.hand_back()
        if not has_results:
            self._forget()
        self._scale.step(finite=has_results)
        if settings.check_every and not record.steps % settings.check_every:
            self._compare()
        if settings.order == "ready" and self._readiness is None:
            orders = self._group.all_gather_object(list(buckets.marked))
            self._lay_out(model, readiness=mean_order(orders))
        elif self._calls == READY and warm_up and warm_up.step(buckets):
            self._choice = choice = warm_up.choose()
            sizes = {name: getattr(choice, name) for name in ("bucket_bytes", "first_bucket_bytes")}
            changed = model.configured({**sizes, "adaptive": 0})
            self._lay_out(changed, [f"adaptive buckets: {choice}"], self._readiness)
        return has_results

    def _check_alive(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _check_between(self) -> None:
        """Raise if a step is under way, or none can follow."""
        entered()
        self._check_alive()
        if self._open:
            raise UsageError("a step is under way; call wait() first")

    # The gradients.

    @property
    def gradients(self) -> Mapping[str, Array]:
        """The gradients by name: views of the buckets, in the shape and dtype of their parameters. Local.

        A gradient that is written to its view needs no copy. There are new views after `configure`, `add` and `remove`,
        after the first reduction with ``order="ready"``, and when ``adaptive=`` chooses.
        """
        return self._buckets.views

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets, in the order of reductions. Local. Each prints as a line."""
        return self._buckets.layout

    def has_gradients(self, name: str | None = None) -> bool:
        """Return whether a gradient is present. Without a name, return whether any is. Local.

        Raises UsageError if the name is unknown.
        """
        present = self._buckets.present
        if name is None:
            return any(present.values())
        if name in self._model.settings.frozen:
            return False
        check_known("gradient", name, present)
        return present[name]

    def zero(self) -> None:
        """Set all gradients to 0 and forget them. Arrays that were given do not change. Local.

        Raises UsageError if a step is under way.
        """
        self._check_between()
        self._forget()

    def _forget(self) -> None:
        """Set all gradients to 0. Then none is given, and none is a result."""
        self._buckets.begin()
        self._reduced, self._micro_steps, self._buckets.factor = False, 0, None
        self._buckets.clear()

    def clip_by_global_norm(self, limit: float) -> float:
        """Scale the gradients so that their norm over all parameters is at most `limit`. Local.

        No reduction is needed, because gradients are equal on all ranks. The arrays that `sync` was given are scaled as
        well. This is the rule of Pascanu et al. 2013, "On the difficulty of training recurrent neural networks".

        Parameters
        ----------
        limit : float
            Above 0.

        Returns
        -------
        float
            The norm before scaling: the square root of the sum of all squares. If it is infinite or NaN, nothing is scaled.

        Raises
        ------
        UsageError
            If the limit is not above 0, or the gradients are not reduced.
        """
        if not isinstance(limit, int | float | np.number) or not limit > 0:
            raise UsageError(f"limit is {limit!r}; give a number above 0")
        if not self._reduced or self._open:
            raise UsageError("the gradients are not reduced; call sync() or wait() first")
        buckets = self._buckets
        # In the order of the parameters, so that the bits do not depend on the buckets.
        names = [each.name for each in self._model.trained if buckets.present[each.name]]
        norm = clip([buckets.gradients[name] for name in names], float(limit))
        buckets.hand_back()
        return norm

    @property
    def loss_scale(self) -> float:
        """The factor by which a program multiplies the loss, or the gradients that it gives. Local.

        Results are divided by it. Without ``loss_scale=``, it is 1. It changes only at the end of a reduced step, in the
        same way on all ranks.
        """
        return self._scale.value

    @property
    def choice(self) -> BucketChoice | None:
        """The sizes of buckets that ``adaptive=`` chose, with the reason. None before the choice. Local."""
        return self._choice

    def stats(self) -> Statistics:
        """Return steps, bytes and seconds of this rank so far, in all and for each bucket. Local."""
        return self._record.statistics()

    # The end.

    def close(self) -> None:
        """End the log, and the communicator that ``hierarchical=True`` made. Idempotent.

        With ``hierarchical=True``, it is collective and blocks. No step can follow. After a failure, only the log is ended.
        Raises UsageError if a step is under way.
        """
        if self._ended is not None:
            self._record.close(self._ended)
            return
        self._check_between()
        self._ended = UsageError("this object was closed; make another one")
        if self._levels is not None and self._levels[1] is not None:
            self._levels[1].comm.finalize()
        self._record.close()

    def _discard(self) -> None:
        """Remove the log and the communicators: the training does not begin."""
        self._record.discard()
        if self._levels is not None and self._levels[1] is not None:
            self._levels[1].comm.abort()

    def __enter__(self) -> Self:
        """Return this object. At the end of the ``with`` block, `close` is called."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close. After an error, only the log is ended: other ranks may not come."""
        if error is None:
            self.close()
        else:
            self._record.close(error)


@after_fork
def _end_all() -> None:
    """End the trainings in a forked child: the parent's worker may hold their locks, and uses their memory."""
    for each in _trainings:
        each._ended = CommunicatorAborted(  # noqa: SLF001 (of this module)
            "this training belongs to the process that this one was forked from; "
            "train there, and pass the results to this process"
        )
