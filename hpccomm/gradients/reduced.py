"""The end of a step, and what is done with its results."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients.adaptive import Choice, Measurements, choose, merge
from hpccomm.gradients.agreement import Model
from hpccomm.gradients.consistency import differences, listed, ranks_of
from hpccomm.gradients.flat import clip
from hpccomm.gradients.layout import mean_order, ordered
from hpccomm.gradients.log import changes
from hpccomm.gradients.model import AgreedModel, Arrays
from hpccomm.gradients.record import Record
from hpccomm.gradients.settling import settle_missing, settle_nonfinite, settle_written
from hpccomm.gradients.statistics import Statistics
from hpccomm.gradients.warm_up import WarmUp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator
    from hpccomm.gradients.log import Log


class ReducedGradients(AgreedModel):
    """Gradients that are there, or are results: they are compared, clipped, counted and forgotten."""

    def __init__(
        self,
        comm: "Communicator",
        timeout: float | None,
        make: Callable[[], tuple[Model, Arrays]],
    ) -> None:
        self._suspended = False  # by no_sync
        self._closed = False  # no gradient can become ready any more
        self._reduced = False
        self._micro = 0  # micro-steps since the last reduction
        self._way = ""  # in which the last step was reduced
        self._scale, self._finite_steps = 1.0, 0  # of the loss, and since it changed
        self._record = Record()
        self._log: Log | None = None
        self._choice: Choice | None = None
        self._warm_up: WarmUp | None = None
        super().__init__(comm, timeout, make)

    @property
    def _reducing(self) -> bool:
        return not self._suspended and self._micro + 1 >= self._model.meaning.accumulate

    def _laid_out(self, before: Model | None) -> None:
        model, step = self._model, self._now
        self._record.lay_out(step)
        rule = model.meaning.loss_scale
        if before is None or before.meaning.loss_scale != rule:
            self._scale, self._finite_steps = (1.0 if rule is None else rule.initial), 0
        step.scaled(self._scale)
        buckets = self.buckets()
        if self._log is not None:
            for change in [] if before is None else changes(before, model):
                self._log.note(self._record.steps, change)
            self._log.layout(self._record.steps, buckets)
        self._warm_up = None
        if model.settings.adaptive:
            trained = [each for each in model.parameters if each.name not in model.frozen]
            filled = ordered(trained, model.settings.order, self._readiness)
            self._warm_up = WarmUp(filled, buckets, model.settings.adaptive)

    def _end(self, measured: Measurements | None = None) -> bool:
        step, record = self._now, self._record
        marked = list(step.marked)
        reduced = self._reducing
        step.end_micro()
        self._open = self._closed = False
        record.micro_steps += 1
        if not reduced:
            self._micro += 1
            step.sources.clear()
            return False
        self._micro, step.factor, self._reduced = 0, None, True
        record.end(sum(step.there.values()))
        meaning = self._model.meaning
        skipped = True  # also if this raises
        try:
            settle_written(self._comm, step, self._timeout)
            if step.incomplete:
                settle_missing(self._comm, step, meaning.unused, self._timeout)
            skipped = (meaning.nonfinite != "keep" or meaning.skips) and settle_nonfinite(
                self._comm, step, meaning.nonfinite, self._timeout
            )
        finally:
            if self._log is not None:
                self._log.step(*record.last(skipped=skipped))
        if skipped:
            record.skip()
            step.clear()
            step.copy_back()
            self.zero()
        else:
            step.copy_back()
            step.results()
        if meaning.loss_scale is not None:
            self._scale, self._finite_steps = meaning.loss_scale.after(
                self._scale, self._finite_steps, not skipped
            )
            step.scaled(self._scale)
        if meaning.check_every and not record.steps % meaning.check_every:
            self.check_consistency()
        if self._model.settings.order == "ready" and self._readiness is None:
            self._readiness = mean_order(
                self._comm.all_gather_object(marked, timeout=self._timeout)
            )
            self._lay_out(self._model)
        elif measured is not None:
            self._adapt(measured)
        return not skipped

    def _adapt(self, mine: Measurements) -> None:
        """Choose the sizes of buckets from what all ranks measured. Collective; blocks."""
        comm, model = self._comm, self._model
        measured = merge(comm.all_gather_object(mine, timeout=self._timeout))
        # Rank 0 chooses, because other processors may round differently.
        choice = choose(measured, model.settings) if comm.rank == 0 else None
        choice = comm.broadcast_object(choice, timeout=self._timeout)
        assert choice is not None
        settings = replace(
            model.settings,
            bucket_bytes=choice.bucket_bytes,
            first_bucket_bytes=choice.first_bucket_bytes,
            adaptive=0,
        )
        self._choice = choice
        if self._log is not None:
            self._log.note(self._record.steps, f"adaptive buckets: {choice}")
        self._lay_out(replace(model, settings=settings))

    @property
    def choice(self) -> Choice | None:
        """The sizes of buckets that ``adaptive=`` chose, with the reason; None if it has not chosen yet. Local."""
        return self._choice

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss by, or the gradients of this rank, before they are given. Local.

        Results are divided by it. It is 1 without ``loss_scale=``, and changes only at the end of a reduced step, on all
        ranks alike.
        """
        return self._scale

    def close(self) -> None:
        """End the log, and the communicators that ``hierarchical=True`` made. Collective then; blocks; idempotent.

        No step can follow. After a failure, only the log is ended.

        Raises
        ------
        UsageError
            If a step is under way.
        """
        if self._failed is not None:
            self._fail_log(self._failed)
            return
        super().close()
        if self._log is not None:
            self._log.close()

    def _fail_log(self, error: BaseException) -> None:
        if self._log is not None:
            self._log.close(f"failed: {type(error).__name__}: {' '.join(str(error).split())}")

    def __enter__(self) -> Self:
        """Return itself; `close` is called at the end of the ``with`` block."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close. After an error, only the log is closed: other ranks may not come."""
        if error is None:
            self.close()
        else:
            self._fail_log(error)

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
        step.clear()

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
                f"the ranks have drifted apart: {listed(found)}; "
                "broadcast_parameters() gives all the same parameters again",
                rank=self._comm.rank,
                ranks=ranks_of(found),
            )

    def stats(self) -> Statistics:
        """Return steps, bytes and seconds of this rank so far, also by bucket. Local."""
        return self._record.statistics()

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
        step.results()
        return norm
