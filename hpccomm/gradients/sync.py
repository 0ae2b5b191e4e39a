"""`GradientSync`: what a training loop calls."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients.agreement import Model
from hpccomm.gradients.consistency import differences
from hpccomm.gradients.flat import clip
from hpccomm.gradients.layout import MIB, BucketSettings, Order, mean_order
from hpccomm.gradients.meaning import Combine, Meaning, Nonfinite, Unused
from hpccomm.gradients.model import AgreedModel, Arrays, frozen_names
from hpccomm.gradients.parameters import Named, read
from hpccomm.gradients.settling import settle_missing, settle_nonfinite
from hpccomm.gradients.statistics import Statistics
from hpccomm.gradients.step import Step

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator


class GradientSync(AgreedModel):
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
        CPU tensors, of real floating dtypes. The arrays are kept for `broadcast_parameters`.
    op : {"average", "sum", "weighted"}
        The mean over the ranks, their sum, or the mean weighted by the samples of each rank, see `weigh`.
    unused : {"zero", "skip", "error"}
        For gradients that ranks do not have: ``"zero"`` counts them as 0. So does ``"skip"``, but a gradient that
        no rank has is no result: `has_gradients` is False for it. ``"error"`` raises RankMismatch on every rank.
    nonfinite : {"keep", "skip", "raise"}
        For steps whose results are NaN or infinite somewhere. ``"skip"`` sets them to 0 on all ranks, and the step
        returns False. ``"raise"`` raises UsageError on every rank, which names the gradients, and the ranks from
        which they come. Both read all gradients once more, ``"raise"`` twice.
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
    timeout : float, optional
        Deadline of each reduction in seconds; None is the communicator's.

    Raises
    ------
    UsageError
        If an argument does not fit.
    RankMismatch
        On the other ranks in that case, and on all ranks if their parameters (names, shapes, dtypes, order) or
        settings differ. The message names them and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the deadline, or is lost.

    Notes
    -----
    The method is that of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
    VLDB 13(12): buckets in the order of the backward pass, reduced in one order on all ranks.

    After a `CommunicationError` of a reduction, other than RankMismatch, the communicator has failed, and every later
    call raises. After any other error a step is as it was before the call, unless the call says otherwise.
    """

    def __init__(
        self,
        comm: "Communicator",
        parameters: Named,
        *,
        op: Combine = "average",
        unused: Unused = "zero",
        nonfinite: Nonfinite = "keep",
        frozen: Iterable[str] = (),
        order: Order = "reverse",
        bucket_bytes: int = 25 * MIB,
        first_bucket_bytes: int = MIB,
        min_bucket_bytes: int = 64 * 1024,
        bucketing: bool = True,
        deterministic: bool = False,
        accumulate: int = 1,
        timeout: float | None = None,
    ) -> None:
        self._suspended = False
        self._closed = False  # no gradient can become ready any more
        self._reduced = False
        self._micro = 0
        self._steps = self._micro_steps = self._nbytes = 0
        self._blocked = 0.0

        def model() -> tuple[Model, Arrays]:
            arrays = read(parameters)
            if not arrays:
                raise UsageError("there are no parameters; give at least one")
            settings = BucketSettings(
                order, bucket_bytes, first_bucket_bytes, min_bucket_bytes, bucketing
            )
            meaning = Meaning(op, unused, nonfinite, deterministic, accumulate)
            return Model(tuple(arrays), frozen_names(frozen, arrays), settings, meaning), arrays

        super().__init__(comm, timeout, model)

    # A step.

    @property
    def _reducing(self) -> bool:
        return not self._suspended and self._micro + 1 >= self._model.meaning.accumulate

    def _begin(self) -> Step:
        step = self._now
        if not self._open:
            if self._reduced:
                step.begin()
                self._reduced = False
            self._open = True
        return step

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
            ``nonfinite="raise"``, if a result is NaN or infinite. The step is over then.
        RankMismatch
            On every rank, with ``unused="error"``, if a gradient is missing on any. The step is over then.
        CommunicationError
            If the reduction fails or its deadline passes.
        """
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
        self._begin()
        for name, array in given:
            step.mark(name, array, back=True)
        if self._reducing:
            begun = perf_counter()
            step.reduce_now()
            self._blocked += perf_counter() - begun
        return self._end()

    def ready(self, name: str, grad: Any = None) -> None:
        """Tell that a gradient is complete. Starts reductions, in the same order on all ranks; does not block.

        A bucket is reduced as soon as its gradients, and those of the buckets before it, are ready. Until `wait`
        returns, its gradients must be neither read nor written.

        Parameters
        ----------
        name : str
            Of the parameter.
        grad : array, optional
            Is copied; or added, if a gradient is there from earlier micro-steps. None means that the gradient lies
            in `gradients` already.

        Raises
        ------
        UsageError
            If the name is unknown, was ready before in this step, or the array does not fit. Nothing changes then.
        """
        if name in self._model.frozen:
            return
        if self._closed:
            raise UsageError(
                f"{name!r} is ready too late: wait_for() was called; call wait() first"
            )
        step = self._now
        array = step.given(name, grad)
        self._check_weighed()
        self._begin()
        step.mark(name, array, back=False)
        if self._reducing:
            step.advance(name)

    def wait(self, timeout: float | None = None) -> bool:
        """End a step: reduce what has not started, and wait for all. Collective; blocks.

        Gradients that were not marked by `ready` are missing on this rank.

        Parameters
        ----------
        timeout : float, optional
            Seconds a reduction; None is the deadline of the class.

        Returns
        -------
        bool
            As in `sync`. `gradients` has the results.

        Raises
        ------
        UsageError, RankMismatch
            As in `sync`.
        CommunicationError
            If a reduction has failed or its deadline passes.
        """
        self._check_weighed()
        step = self._begin()
        if self._reducing:
            step.start_all()
            begun = perf_counter()
            step.finish(timeout)
            self._blocked += perf_counter() - begun
        return self._end()

    def wait_for(self, name: str, timeout: float | None = None) -> NDArray[Any]:
        """Wait until one gradient is reduced, and return it. Blocks; local, if the rank calls `wait` later.

        So an update can begin while later buckets are under way. No gradient can become ready after it in this
        step. What ``unused=`` demands is done by `wait`.

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
        step = self._begin()
        self._closed = True
        step.start_all()
        begun = perf_counter()
        gradient = step.wait_for(name, timeout)
        self._blocked += perf_counter() - begun
        return gradient

    def _end(self) -> bool:
        step = self._now
        marked = list(step.marked)
        reduced = self._reducing
        step.end_micro()
        self._open = self._closed = False
        self._micro_steps += 1
        if not reduced:
            self._micro += 1
            step.sources.clear()
            return False
        self._micro, step.factor, self._reduced = 0, None, True
        self._steps += 1
        self._nbytes += step.nbytes
        meaning = self._model.meaning
        if step.incomplete:
            settle_missing(self._comm, step, meaning.unused, self._timeout)
        if meaning.nonfinite != "keep":
            skipped = settle_nonfinite(self._comm, step, meaning.nonfinite, self._timeout)
            if skipped:
                self.zero()
                return False
        step.copy_back()
        if self._model.settings.order == "ready" and self._readiness is None:
            self._readiness = mean_order(
                self._comm.all_gather_object(marked, timeout=self._timeout)
            )
            self._lay_out(self._model)
        return True

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
        if self._now.under_way:
            raise UsageError("a weight is given after a reduction has started; call weigh() first")
        if not isinstance(samples, int | float | np.number) or not isfinite(samples) or samples < 0:
            raise UsageError(f"the weight is {samples!r}; give a finite number of at least 0")
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

    # Between steps.

    def zero(self) -> None:
        """Set all gradients to 0 and forget that they are there. Local. Arrays that were given stay.

        Raises
        ------
        UsageError
            If a step is under way.
        """
        self._between_steps()
        step = self._now
        step.begin()
        self._reduced, self._micro, step.factor = False, 0, None
        for view in step.gradients.values():
            view[...] = 0

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
        self._between_steps()
        arrays = {f"parameter {each.name!r}": array for each, array in self._arrays.items()}
        if self._reduced:
            arrays |= {f"gradient {name!r}": view for name, view in self.gradients.items()}
        found = differences(self._comm, arrays, self._timeout)
        if found:
            raise RankMismatch(
                f"the ranks have drifted apart: {'; '.join(map(str, found))}; "
                "broadcast_parameters() gives all the same parameters again",
                rank=self._comm.rank,
                ranks=sorted({rank for each in found for rank in each.ranks}),
            )

    def stats(self) -> Statistics:
        """Return steps, bytes and seconds of this rank so far. Local."""
        return Statistics(self._steps, self._micro_steps, self._nbytes, self._blocked)

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
        step = self._now
        if not self._reduced or self._open:
            raise UsageError("the gradients are not reduced; call sync() or wait() first")
        # In the order of the parameters, so that the bits do not depend on the buckets.
        views = [
            step.gradients[each.name]
            for each in self._model.parameters
            if step.there.get(each.name, False)
        ]
        norm = clip(views, float(limit))
        step.copy_back()
        return norm
