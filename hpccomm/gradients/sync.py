"""`GradientSync`: the object that a training loop calls, and the course of a step.

A gradient goes one way: `ready` or `sync` puts it in its bucket, the reducer reduces the bucket, and the end of the step
checks the results and hands them back.
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
    """Gradients that are reduced over the ranks of a communicator, in buckets, while others are computed.

    Making one is collective and blocks: the ranks compare their models and settings. Calls are made by one thread
    at a time, the same ones on all ranks. In a step, each rank either calls `sync` or calls `ready` and then `wait`;
    all ranks must do it in the same way. Between these calls, the communicator must carry nothing else.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    parameters : mapping or iterable of (str, array)
        The model in the order of the forward pass: NumPy arrays or others that share host memory, such as PyTorch
        CPU tensors; or CuPy arrays. Dtypes are real floats. The arrays are kept for `broadcast_parameters`.
    log : path-like, optional
        A results file, to which rank 0 writes each step and the buckets; see :ref:`recordings
        <recordings>`. `close` ends the log, also at the end of a ``with`` block.
    timeout : float, optional
        Deadline of each reduction in seconds; None is the communicator's.
    **settings
        The fields of `ReductionSettings`.

    Raises
    ------
    UsageError, ResultsError
        If an argument does not fit, or the log cannot be written.
    RankMismatch
        On the other ranks in that case, and on all ranks if their parameters (names, shapes, dtypes, order, values) or
        settings differ. The message names them and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the deadline, or is lost.

    Notes
    -----
    The method is that of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    VLDB 13(12): buckets in the order of the backward pass, reduced in one order on all ranks.

    After an error in the midst of a reduction, such as a deadline that passed or an error of a compressor, this object
    has failed, and every later step raises that error. After any other error a step is as it was before the call,
    unless the call says otherwise.
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
        self._ended: BaseException | None = None  # why no step can follow
        self._open = False  # a micro-step has begun
        self._reduced = False  # the gradients are results
        self._suspended = False  # by no_sync
        self._micro_steps = 0  # since the last reduction
        self._calls = ""  # that reduced the last step
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

        The gradients get another layout, so take them from `gradients` again. Their values stay. What a compressor
        keeps begins anew.

        Raises
        ------
        UsageError
            If a setting is unknown or does not fit, or a step is under way. The settings stay as they were.
        RankMismatch
            On the other ranks in that case, and on all ranks if the changes differ; the settings stay, too.
        """
        self._change(lambda: self._model.configured(changes))

    def accumulate(self, count: int) -> None:
        """Add up this number of micro-steps before each reduction, by `configure`. Collective; blocks."""
        self.configure(accumulate=count)

    def add(self, name: str, array: Any) -> None:
        """Add a parameter behind the others. Collective; blocks. As `configure` in all else."""
        self._change(lambda: self._model.with_parameter(name, array))

    def remove(self, name: str) -> None:
        """Remove a parameter, but not the only one. Collective; blocks. As `configure` in all else."""
        self._change(lambda: self._model.without_parameter(name))

    def _change(self, make: Callable[[], Model]) -> None:
        def checked() -> Model:
            self._check_between()
            return make()

        self._lay_out(*self._model.agree(checked))

    def _lay_out(
        self, model: Model, changes: Sequence[str] = (), readiness: Sequence[str] | None = None
    ) -> None:
        """Take a model, and put its gradients in new buckets. If this raises, all stays. Collective; blocks.

        Parameters
        ----------
        model : Model
            The model on which all ranks agreed.
        changes : sequence of str
            Changes of the model, for the log.
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
        # No calls between these, so that an interrupt comes before all or after all.
        self._model, self._buckets, self._reducer = model, buckets, reducer
        self._scale, self._warm_up, self._readiness = scale, warm_up, readiness
        self._record.lay_out(buckets, reducer.num_joint_calls, changes)

    def broadcast_parameters(self, root: int = 0) -> None:
        """Give all ranks the parameters of `root`, in the arrays that the class was made with. Collective; blocks.

        Raises
        ------
        UsageError
            If `root` is not a rank, or an array is read-only.
        CommunicationError
            If a call fails or its deadline passes.
        """
        entered()
        if root != self._group.rank:
            check_writable(self._model.arrays, "give a copy of it")
        self._group.broadcast_each(self._model.arrays.values(), root)

    def check_consistency(self) -> None:
        """Compare the parameters of all ranks, and the gradients if they are reduced. Collective; blocks.

        Ranks exchange 8 bytes an array, a hash of its bits, so this can be done every hundred steps or so. Parameters
        are those in the arrays that the class was made with.

        Raises
        ------
        UsageError
            If a step is under way.
        RankMismatch
            On every rank, if an array differs. The message says which, on which ranks, and by how much.
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
            Gradients by name, of the shape and dtype of their parameters. None as an array, or no entry, means that
            this rank has no such gradient. After the reduction, the same arrays have the results. An array that is
            the one in `gradients` is not copied. None means that all gradients lie in `gradients`.
        weight : float, optional
            This rank's number of samples, for ``op="weighted"``; see `weigh`.

        Returns
        -------
        bool
            Whether there are results: False within `no_sync`, for the first micro-steps of `accumulate`, and for a
            step that ``nonfinite="skip"`` leaves out.

        Raises
        ------
        UsageError
            If an argument does not fit, or gradients were marked by `ready` in this step. On every rank, with
            ``nonfinite="raise"``, if a result is NaN or infinite; and if gradients that lie in `gradients` were not
            written since the last step (see :ref:`gradients-in-place`). The step is over then.
        RankMismatch
            On every rank, with ``unused="error"``, if a gradient is missing on any. The step is over then.
        CommunicationError
            If the reduction fails or its deadline passes.
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
        """Mark a gradient as complete. Starts reductions, in the same order on all ranks; does not block.

        Buckets are reduced one after the other in another thread, each as soon as its gradients are
        ready. Of several buckets ready on all ranks, the one that the next forward pass needs first
        comes first. Until `wait` returns, the bucket's gradients must not be read or written.

        In the first step, and in the first one after `sync`, the first call blocks: the ranks compare whether all of
        them call `ready` and `wait`. Where `Communicator.background` is False, reductions begin in `wait`. Where parameters lie on
        a device, buckets start in the order of their numbers, and buckets on the host are reduced by the caller's thread.

        Parameters
        ----------
        name : str
            The parameter's name.
        grad : array, optional
            Is copied; or added, if there is a gradient of earlier micro-steps. None means that the gradient lies
            in `gradients` already. A PyTorch parameter's own ``.grad`` gets the result in `wait` as well.

        Raises
        ------
        UsageError
            If the name is unknown, was ready before in this step, or the array does not fit. Nothing changes then.
        RankMismatch
            On every rank, if another rank calls `sync` in a step in which the ranks compare their calls.
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
        """End a step: reduce what has not started, and wait for all. Collective; blocks.

        Gradients that were not marked by `ready` are missing on this rank. Returns and raises what `sync` does;
        `gradients` has the results.
        """
        self._begin(READY)
        return self._end(self._reducer.finish)

    def wait_for(self, name: str) -> Array:
        """Wait until one gradient is reduced, and return it. Blocks; local, if the rank calls `wait` later.

        So an update can begin while other buckets are under way. The buckets that the next forward pass needs first come
        first. No gradient can become ready after it in this step. `wait` does what ``unused=`` and ``nonfinite=``
        demand.

        Raises
        ------
        UsageError
            If the name is unknown or frozen, or this micro-step is not reduced.
        CommunicationError
            If the reduction has failed or its deadline passes.
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

        The result is the sum of each rank's gradient times its weight, divided by the sum of the weights. With each
        gradient the mean over the samples of its rank, this is the mean over all samples.

        Parameters
        ----------
        samples : float
            Of this rank, at least 0. With `accumulate`, of all micro-steps; call it in the last one.

        Raises
        ------
        UsageError
            If the number does not fit, ``op`` is another, or a reduction has started; on every rank, if all
            weights are 0.
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

        Within it, `sync` and `wait` reduce nothing. The next reduction after it is of the sum. Nothing is divided
        by the number of micro-steps. Raises UsageError if a step is under way.
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
        """Begin a step, if none is under way. If other calls reduced the last one, the ranks compare their calls first."""
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
        """The gradients by name: views of the buckets, of the shape and dtype of their parameters. Local.

        Gradients written to them need no copy. They are other arrays after `configure`, `add` and
        `remove`, and with ``order="ready"`` after the first reduction.
        """
        return self._buckets.views

    def buckets(self) -> tuple[Bucket, ...]:
        """Return the layout, in the order of the reductions. Local. Each prints as a line."""
        return self._buckets.layout

    def has_gradients(self, name: str | None = None) -> bool:
        """Return whether a gradient is present, of any parameter if `name` is None. Local.

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
        """Set all gradients to 0 and forget them. Local. Arrays that were given stay.

        Raises UsageError if a step is under way.
        """
        self._check_between()
        self._forget()

    def _forget(self) -> None:
        """Set all gradients to 0: none is given, and none is a result."""
        self._buckets.begin()
        self._reduced, self._micro_steps, self._buckets.factor = False, 0, None
        self._buckets.clear()

    def clip_by_global_norm(self, limit: float) -> float:
        """Scale the gradients so that their norm over all parameters is at most `limit`. Local.

        Results are equal on all ranks, so that no reduction is needed. The arrays that `sync` was given are scaled
        as well. This is the rule of Pascanu et al. 2013, "On the difficulty of training recurrent neural networks".

        Parameters
        ----------
        limit : float
            Above 0.

        Returns
        -------
        float
            The norm before: the square root of the sum of all squares. If it is infinite or NaN, nothing is scaled.

        Raises
        ------
        UsageError
            If the limit does not fit, or the gradients are not reduced.
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
        """The factor of the loss, or of this rank's gradients before they are given. Local.

        Results are divided by it. It is 1 without ``loss_scale=``, and changes only at the end of a reduced step, on all
        ranks alike.
        """
        return self._scale.value

    @property
    def choice(self) -> BucketChoice | None:
        """The sizes of buckets that ``adaptive=`` chose, with the reason; None before. Local."""
        return self._choice

    def stats(self) -> Statistics:
        """Return steps, bytes and seconds of this rank so far, also by bucket. Local."""
        return self._record.statistics()

    # The end.

    def close(self) -> None:
        """End the log, and the communicators that ``hierarchical=True`` made. Collective then; blocks; idempotent.

        No step can follow. After a failure, only the log is ended. Raises UsageError if a step is under way.
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
        """Return itself; `close` is called at the end of the ``with`` block."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close. After an error, only the log is closed: other ranks may not come."""
        if error is None:
            self.close()
        else:
            self._record.close(error)


@after_fork
def _end_all() -> None:
    """End the trainings of a forked child: the worker of its parent may hold their locks, and uses their memory."""
    for each in _trainings:
        each._ended = CommunicatorAborted(  # noqa: SLF001 (of this module)
            "this training belongs to the process that this one was forked from; "
            "train there, and pass the results to this process"
        )
