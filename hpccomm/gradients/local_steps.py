"""`LocalSteps`: ranks train on their own, and average now and then."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hpccomm.gradients.agreement import RankGroup, agree, check_same, texts
from hpccomm.gradients.layout import copy_arrays
from hpccomm.gradients.parameters import Array, Arrays, Named, check_writable, read, wide
from hpccomm.gradients.settings import ReductionOptions
from hpccomm.gradients.sync import GradientSync
from hpccomm.gradients.updates import sgd
from hpccomm.runtime.recorder import entered
from hpccomm.settings import check_bool, check_least, check_number

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

_TOGETHER: ReductionOptions = {
    "initial": "ignore",
    "bucket_bytes": 1 << 62,
    "first_bucket_bytes": 1 << 62,
}
"""One call averages how far all parameters of a dtype have moved, since no computation overlaps it."""


@dataclass(frozen=True, slots=True)
class LocalStatistics:
    """Counts of one rank since its `LocalSteps` was made. Prints as a sentence.

    Attributes
    ----------
    steps : int
        Local steps.
    synchronizations : int
        How often the ranks averaged.
    nbytes : int
        Bytes that were averaged, with the padding between parameters.
    saved_nbytes : int
        Bytes that averaging the gradients in every step would have taken besides; below 0 if there were more
        synchronizations than steps.
    seconds : float
        Time in synchronizations, with the wait for ranks that were late.
    """

    steps: int
    synchronizations: int
    nbytes: int
    saved_nbytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.steps} local steps, {self.synchronizations} synchronizations, {self.nbytes} bytes averaged, "
            f"{self.saved_nbytes} saved, {self.seconds:.3f} s"
        )


class LocalSteps:
    """Local updates of the parameters, which the ranks average at regular intervals.

    Each rank updates its parameters by its own gradients and optimiser, and calls `step` after each update. Every
    `every` steps, the ranks average how far they have moved since the last time, and take this as the gradient of an
    outer optimiser: SGD with momentum. Ranks then have the same parameters. Between these times, nothing is sent.

    Making one is collective and blocks: the ranks compare their models and settings. Calls are made by one thread at
    a time. All ranks must begin with the same parameters, see `broadcast_parameters`; the first synchronization
    compares them.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    parameters : mapping or iterable of (str, array)
        The model: arrays in host memory of real floating dtypes, as for `GradientSync`. They are read and written.
    every : int
        Local steps between synchronizations.
    outer_lr : float
        Learning rate of the outer optimiser. With 1, and `outer_momentum` 0, the ranks average their parameters.
    outer_momentum : float
        At least 0 and below 1.
    nesterov : bool
        Whether the outer optimiser looks ahead along its momentum.
    timeout : float, optional
        Deadline of each call in seconds; None is the communicator's.

    Raises
    ------
    UsageError
        If an argument does not fit.
    RankMismatch
        On the other ranks in that case, and on all ranks if their parameters or settings differ. The message names
        them and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the deadline, or is lost.

    Notes
    -----
    Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"; plain averaging is
    Stich 2019, "Local SGD Converges Fast and Communicates Little", ICLR. With d the mean of anchor minus parameters
    over the ranks, the momentum becomes ``v = outer_momentum * v + d``, and the anchor, from which all ranks go on,
    loses ``outer_lr * v``; with `nesterov`, ``outer_lr * (d + outer_momentum * v)``.

    After an error in the midst of an average this object has failed, and every later step raises that error, as with
    `GradientSync`.

    A model of n bytes takes 2 n more for the anchor and the averages, and n for the momentum, which is float32
    for narrow parameters. State of the local optimiser is not averaged.

    All ranks must make the same number of calls. If they do not, one rank averages while another one computes: the
    averaging raises when its deadline passes, or finds that another rank has made another call.
    """

    def __init__(
        self,
        comm: "Communicator",
        parameters: Named,
        *,
        every: int,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._group = group = RankGroup(comm, timeout)

        def make() -> tuple[Arrays, dict[str, str]]:
            arrays, _ = read(parameters)
            check_writable(arrays, "give a copy")
            rate = check_number("outer_lr", outer_lr, lambda x: x > 0, "above 0")
            ahead = check_bool("nesterov", nesterov) and bool(outer_momentum > 0)
            self._outer = sgd(rate, momentum=outer_momentum, nesterov=ahead)
            settings = {"every": check_least("every", every, 1), "outer": self._outer.name}
            return arrays, texts(arrays, settings)

        arrays = agree(group, make)
        self._arrays = {each.name: array for each, array in arrays.items()}
        self._every = every
        self._sync = GradientSync(comm, self._arrays, timeout=timeout, **_TOGETHER)
        self._anchors = {name: x.copy(order="C") for name, x in self._arrays.items()}
        self._states = {
            name: {of: np.zeros(x.size, wide(x.dtype)) for of in self._outer.state}
            for name, x in self._arrays.items()
        }
        self._anchored = False  # whether all ranks are known to have the same anchor
        self._since = self._steps = 0
        self._seconds = 0.0

    def step(self) -> bool:
        """Count a local step. Each `every`-th call synchronizes, which is collective and blocks; the others are local.

        Returns
        -------
        bool
            Whether it has synchronized, so that the parameters are other ones and equal on all ranks.

        Raises
        ------
        RankMismatch, CommunicationError
            As in `synchronize`.
        """
        self._steps += 1
        self._since += 1
        if self._since < self._every:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Average now, and write the parameters. Collective; blocks. The next time is `every` steps later.

        Raises
        ------
        RankMismatch
            On every rank, the first time, if the ranks did not begin with the same parameters. Nothing changes.
        CommunicationError
            If a rank does not come within the deadline, or is lost. The communicator has failed then; the parameters
            are as they were.
        """
        entered()
        begun = perf_counter()
        if not self._anchored:
            check_same(
                self._group,
                {f"parameter {name!r}": x for name, x in self._anchors.items()},
                problem="the ranks began with different parameters",
                remedy="call broadcast_parameters() before the first step",
            )
            self._anchored = True
        for name, anchor in self._anchors.items():
            np.subtract(anchor, self._arrays[name], out=self._sync.gradients[name])
        self._sync.sync()
        for name, anchor in self._anchors.items():
            moved = self._sync.gradients[name].reshape(-1)
            self._outer(anchor.reshape(-1), moved, self._states[name], self._steps)
        copy_arrays(self._anchors, self._arrays)
        self._since = 0
        self._seconds += perf_counter() - begun

    def broadcast_parameters(self, root: int = 0) -> None:
        """Give all ranks the present parameters of `root`, and go on from there. Collective; blocks.

        The steps since the last synchronization are forgotten. The momentum stays.

        Raises
        ------
        UsageError
            If `root` is not a rank.
        CommunicationError
            If a call fails or its deadline passes.
        """
        self._sync.broadcast_parameters(root)
        copy_arrays(self._arrays, self._anchors)
        self._anchored = True
        self._since = 0

    @property
    def momentum(self) -> Mapping[str, Array]:
        """The outer momentum by name, equal on all ranks; empty without a momentum. Local.

        To save a training, synchronize, and save the parameters and these arrays. To go on, write both, equal on all
        ranks, and call `broadcast_parameters`.
        """
        states = self._states.items()
        shapes = {name: x.shape for name, x in self._anchors.items()}
        return MappingProxyType(
            {name: x.reshape(shapes[name]) for name, state in states for x in state.values()}
        )

    def stats(self) -> LocalStatistics:
        """Return steps, bytes and seconds of this rank so far. Local."""
        sent, each = self._sync.stats(), sum(bucket.nbytes for bucket in self._sync.buckets())
        saved = self._steps * each - sent.nbytes
        return LocalStatistics(self._steps, sent.steps, sent.nbytes, saved, self._seconds)
