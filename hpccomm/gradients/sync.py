"""`GradientSync`: what a training loop calls."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients.agreement import Model
from hpccomm.gradients.compression.contract import Compressor
from hpccomm.gradients.layout import MIB, BucketSettings, Order
from hpccomm.gradients.log import Log, log_path
from hpccomm.gradients.loss_scale import LossScale
from hpccomm.gradients.meaning import Combine, Initial, Meaning, Nonfinite, Unused
from hpccomm.gradients.model import Arrays, frozen_names
from hpccomm.gradients.parameters import Named, owners, pairs_of, read
from hpccomm.gradients.reduced import ReducedGradients
from hpccomm.gradients.step import Step
from hpccomm.runtime.recorder import entered
from hpccomm.units import ranks_named

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


SYNC, READY = "sync()", "ready() and wait()"
"""Ways to reduce a step."""


class GradientSync(ReducedGradients):
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
    op : {"average", "sum", "weighted"}
        The mean over the ranks, their sum, or the mean weighted by the samples of each rank, see `weigh`.
    unused : {"zero", "skip", "error"}
        For gradients that ranks do not have: ``"zero"`` counts them as 0. So does ``"skip"``, but a gradient that
        no rank has is no result: `has_gradients` is False for it. ``"error"`` raises RankMismatch on every rank.
    nonfinite : {"keep", "skip", "raise"}
        For steps whose results are NaN or infinite somewhere. ``"skip"`` sets them to 0 on all ranks, and the step
        returns False. ``"raise"`` raises UsageError on every rank, which names the gradients, and the ranks from
        which they come. Both read all gradients once more, ``"raise"`` twice.
    initial : {"check", "broadcast", "ignore"}
        For the values that the parameters begin with. ``"check"`` compares a hash of them, and raises RankMismatch on
        every rank if they differ: updates alike would keep them apart. ``"broadcast"`` gives all ranks those of rank 0.
        ``"ignore"`` sends nothing, for values that are set later.
    frozen : iterable of str
        Names of parameters without gradients. Gradients given for them are left as they are.
    order : {"reverse", "ready", "largest"}
        In which order buckets are filled, see `BucketSettings`.
    bucket_bytes, first_bucket_bytes, min_bucket_bytes : int
        Sizes of buckets in bytes, see `BucketSettings`.
    bucketing : bool
        False reduces each gradient by a call of its own, for debugging.
    deterministic : bool
        The same gradients give the same bits, whatever the buckets, the order and the run.
    accumulate : int
        Micro-steps that are added up before each reduction. Nothing is divided by their number.
    adaptive : int
        After so many steps by `ready` and `wait`, the sizes of buckets are chosen from what was measured; see `choice`.
        The gradients get another layout then, as by `configure`. 0 keeps the sizes. For host arrays.
    check_every : int
        After so many reduced steps each, `check_consistency` is called; 0 never does.
    loss_scale : LossScale, optional
        Gradients are those of the loss times `loss_scale <GradientSync.loss_scale>`, and results are divided by it.
        Steps that are not finite are left out, as by ``nonfinite="skip"``.
    compressor : Compressor, optional
        Sends less than the gradients, such as `TopK`; see :doc:`compression`. For host arrays.
    hierarchical : bool
        Gradients are summed up within each node as they are, and only what goes between nodes is compressed.
    log : path-like, optional
        A results file, to which rank 0 writes each step and what lies in which bucket; see
        :ref:`trainings <trainings>`. `close` ends the log, also at the end of a ``with`` block.
    timeout : float, optional
        Deadline of each reduction in seconds; None is the communicator's.

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

    def __init__(
        self,
        comm: "Communicator",
        parameters: Named,
        *,
        op: Combine = "average",
        unused: Unused = "zero",
        nonfinite: Nonfinite = "keep",
        initial: Initial = "check",
        frozen: Iterable[str] = (),
        order: Order = "reverse",
        bucket_bytes: int = 25 * MIB,
        first_bucket_bytes: int = MIB,
        min_bucket_bytes: int = 64 * 1024,
        bucketing: bool = True,
        deterministic: bool = False,
        accumulate: int = 1,
        adaptive: int = 0,
        check_every: int = 0,
        loss_scale: LossScale | None = None,
        compressor: Compressor | None = None,
        hierarchical: bool = False,
        log: str | PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> None:

        def model() -> tuple[Model, Arrays]:
            pairs = pairs_of(parameters)
            arrays = read(pairs, devices=True)
            self._owners |= owners(pairs)
            if not arrays:
                raise UsageError("there are no parameters; give at least one")
            settings = BucketSettings(
                order=order,
                bucket_bytes=bucket_bytes,
                first_bucket_bytes=first_bucket_bytes,
                min_bucket_bytes=min_bucket_bytes,
                bucketing=bucketing,
                adaptive=adaptive,
            )
            meaning = Meaning(
                op=op,
                unused=unused,
                nonfinite=nonfinite,
                initial=initial,
                deterministic=deterministic,
                accumulate=accumulate,
                check_every=check_every,
                loss_scale=loss_scale,
                compressor=compressor,
                hierarchical=hierarchical,
            )
            model = Model(tuple(arrays), frozen_names(frozen, arrays), settings, meaning)
            place = log_path(log)
            if place is not None and comm.rank == 0:
                self._log = Log(place, comm.size, model.shown())
            return model, arrays

        try:
            super().__init__(comm, timeout, model)
        except BaseException:
            if self._log is not None:
                self._log.discard()
            raise

    # A step.

    def _begin(self, way: str) -> Step:
        """Begin a step, if none is under way; after another way of reducing, the ranks compare theirs first."""
        self._check_alive()
        step = self._now
        if not self._open:
            entered()
            if way != self._way and self._reducing:
                self._compare_ways(way)
            if self._reduced:
                step.begin()
                self._reduced = False
            self._open = True
        return step

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Take note of what a reduction raises: nobody knows how far it came on which rank."""
        try:
            yield
        except BaseException as error:
            self._failed = error
            raise

    def _compare_ways(self, way: str) -> None:
        ways = self._comm.all_gather_object(way, timeout=self._timeout)
        other = [rank for rank, each in enumerate(ways) if each != ways[0]]
        if other:
            raise RankMismatch(
                f"rank 0 calls {ways[0]}, and {ranks_named(other)} {ways[other[0]]}; do it in one way on all ranks",
                rank=self._comm.rank,
                ranks=other,
            )
        self._way = way

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
        step, frozen = self._now, self._model.frozen
        given: list[tuple[str, NDArray[Any] | None]]
        if grads is None:
            given = [(name, None) for name in step.gradients]
        else:
            given = [
                (name, step.given(name, grad, written=True))
                for name, grad in grads.items()
                if grad is not None and name not in frozen
            ]
        if weight is not None:
            self.weigh(weight)
        self._check_weighed()
        self._begin(SYNC)
        for name, array in given:
            step.mark(name, array, back=True)
        if self._reducing:
            begun = perf_counter()
            with self._failing():
                step.reduce_now()
            if step.together:
                self._record.together(begun)
            else:
                self._record.waited.append((begun, perf_counter()))
                self._record.one_by_one()
        return self._end()

    def ready(self, name: str, grad: Any = None) -> None:
        """Tell that a gradient is complete. Starts reductions, in the same order on all ranks; does not block.

        Buckets are reduced one after the other in another thread, each as soon as its gradients are ready. Where
        several wait that are ready on all ranks, the one comes first that the next forward pass needs first. Until
        `wait` returns, the bucket's gradients must be neither read nor written.

        In the first step, and in the first one after `sync`, the first call compares this way with that of the other
        ranks, and blocks. Where `Communicator.background` is False, reductions begin in `wait`. Where parameters lie on
        a device, buckets start in the order of their numbers, and buckets on the host are reduced by the caller's thread.

        Parameters
        ----------
        name : str
            Of the parameter.
        grad : array, optional
            Is copied; or added, if a gradient is there from earlier micro-steps. None means that the gradient lies
            in `gradients` already. A PyTorch parameter's own ``.grad`` gets the result in `wait` as well.

        Raises
        ------
        UsageError
            If the name is unknown, was ready before in this step, or the array does not fit. Nothing changes then.
        RankMismatch
            On every rank, if another rank calls `sync` where all compare their ways.
        """
        if name in self._model.frozen:
            return
        if self._closed:
            raise UsageError(
                f"{name!r} is ready too late: wait_for() was called; call wait() first"
            )
        step = self._now
        owner = self._owners.get(name)
        own = grad is not None and owner is not None and grad is owner.grad
        array = step.given(name, grad, written=own)
        self._check_weighed()
        self._begin(READY)
        step.mark(name, array, back=own)
        if self._reducing:
            if self._warm_up is not None:
                self._warm_up.ready(name)
            step.advance(name)

    def wait(self) -> bool:
        """End a step: reduce what has not started, and wait for all. Collective; blocks.

        Gradients that were not marked by `ready` are missing on this rank.

        Returns
        -------
        bool
            As in `sync`. `gradients` has the results.

        Raises
        ------
        UsageError, RankMismatch
            As in `sync`. The step is over then.
        CommunicationError
            If a reduction has failed or its deadline passes.
        """
        self._check_weighed()
        step = self._begin(READY)
        if self._reducing:
            begun = perf_counter()
            with self._failing():
                step.reducer.finish()
            self._record.waited.append((begun, perf_counter()))
            self._record.one_by_one()
            if self._warm_up is not None and self._warm_up.step(step.reducer.spans):
                measured = self._warm_up.measured()
                self._warm_up = None
                return self._end(measured)
        return self._end()

    def wait_for(self, name: str) -> NDArray[Any]:
        """Wait until one gradient is reduced, and return it. Blocks; local, if the rank calls `wait` later.

        So an update can begin while other buckets are under way. Those that the next forward pass needs first come
        first. No gradient can become ready after it in this step. What ``unused=`` and ``nonfinite=`` demand is done
        by `wait`.

        Raises
        ------
        UsageError
            If the name is unknown or frozen, or this micro-step is not reduced.
        CommunicationError
            If the reduction has failed or its deadline passes.
        """
        self._now.given(name, None)
        if not self._reducing:
            raise UsageError("this micro-step is not reduced; call wait()")
        self._check_weighed()
        step = self._begin(READY)
        self._closed = True
        begun = perf_counter()
        step.reducer.close()
        with self._failing():
            step.reducer.wait_for(step.place[name])
        self._record.waited.append((begun, perf_counter()))
        return step.gradients[name]

    # What a reduction means.

    def weigh(self, samples: float) -> None:
        """Give this rank's weight in the step, before its gradients, for ``op="weighted"``. Collective; blocks.

        The result is the sum of each rank's gradient times its weight, divided by the sum of the weights. With each
        gradient the mean over the samples of its rank, this is the mean over all samples.

        Parameters
        ----------
        samples : float
            Of this rank, at least 0. With `accumulate`, those of all micro-steps; call it in the last one.

        Raises
        ------
        UsageError
            If the number does not fit, ``op`` is another, or a reduction has started; on every rank, if all
            weights are 0.
        """
        if self._model.meaning.op != "weighted":
            raise UsageError(
                f"a weight is given, and op is {self._model.meaning.op!r}; take 'weighted'"
            )
        if self._now.reducer.under_way:
            raise UsageError("a weight is given after a reduction has started; call weigh() first")
        if not isinstance(samples, int | float | np.number) or not isfinite(samples) or samples < 0:
            raise UsageError(f"the weight is {samples!r}; give a finite number of at least 0")
        entered()
        weight = float(samples)
        total = float(
            self._comm.all_reduce(np.array([weight]), timeout=self._timeout, deterministic=True)[0]
        )
        if total == 0:
            raise UsageError("the weights of all ranks are 0; give the number of samples of each")
        self._now.factor = weight / total

    def _check_weighed(self) -> None:
        if self._model.meaning.op == "weighted" and self._reducing and self._now.factor is None:
            raise UsageError("op is 'weighted' and this step has no weight; call weigh() first")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add gradients up without reducing them, for a ``with`` block around whole micro-steps. Local.

        Within it, `sync` and `wait` reduce nothing. The next reduction after it is of the sum. Nothing is divided
        by the number of micro-steps.

        Raises
        ------
        UsageError
            If a step is under way.
        """
        self._between_steps()
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before
