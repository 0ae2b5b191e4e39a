"""`LocalSteps`: ranks train on their own, and average their parameters at regular intervals."""

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
"""All parameters of a dtype lie in one bucket: no computation runs during the average, so one call is best."""


@dataclass(frozen=True, slots=True)
class LocalStatistics:
    """Counts of one rank since its `LocalSteps` was made. Prints as a sentence.

    Attributes
    ----------
    steps : int
        Local steps.
    synchronizations : int
        Number of averages.
    nbytes : int
        Averaged bytes: parameters, and the padding between them.
    saved_nbytes : int
        The bytes for an average of the gradients in every step, less ``nbytes``. Below 0 if there were more synchronizations
        than steps.
    seconds : float
        Time in synchronizations. It includes waiting for late ranks.
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

    Each rank updates its parameters by its own gradients and optimiser, and calls `step` after each update. After each
    `every` steps, the ranks average the changes of their parameters. The average is the gradient of an outer optimiser,
    which is SGD with momentum. Ranks then have the same parameters. Between these times, they send nothing.

    Making one is collective and blocks: the ranks compare their models and settings. Only one thread at a time makes
    calls. All ranks must begin with the same parameters, see `broadcast_parameters`. The first synchronization compares
    them.

    Parameters
    ----------
    comm : Communicator
        The communicator over the ranks that train together.
    parameters : mapping or iterable of (str, array)
        The model, as for `GradientSync`: arrays in host memory, of real floating dtypes. They are read and written.
    every : int
        Number of local steps between synchronizations.
    outer_lr : float
        Learning rate of the outer optimiser. If it is 1 and `outer_momentum` is 0, the ranks average their parameters.
    outer_momentum : float
        At least 0 and below 1.
    nesterov : bool
        Whether the outer optimiser looks ahead along its momentum.
    timeout : float, optional
        Timeout of each call in seconds. None is the communicator's.

    Raises
    ------
    UsageError
        If an argument is wrong.
    RankMismatch
        On the other ranks, if one raises an error. On all ranks, if their parameters or settings differ. The message
        names the differences and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the timeout, or is lost.

    Notes
    -----
    The method is that of Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".
    Plain averaging is that of Stich 2019, "Local SGD Converges Fast and Communicates Little", ICLR. The anchor has the
    parameters of the last synchronization. Let d be the mean over the ranks of anchor minus parameters. The momentum
    becomes ``v = outer_momentum * v + d``, and ``outer_lr * v`` is subtracted from the anchor. With `nesterov`, it is
    ``outer_lr * (d + outer_momentum * v)``. All ranks go on from the new anchor.

    After an error during an average, this object has failed: every later step raises that error, as with `GradientSync`.

    A model of n bytes takes 2 n bytes more for the anchor and the averages, and n bytes for the momentum. For narrow
    parameters, the momentum is float32. State of the local optimiser is not averaged.

    All ranks must make the same number of calls. If they do not, one rank averages while another rank computes. The
    average then raises when its timeout passes, or when it finds that another rank has made another call.
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
        """Count a local step. Each `every`-th call synchronizes: it is collective and blocks. The others are local.

        Returns
        -------
        bool
            Whether it has synchronized. Then the parameters have new values, equal on all ranks.

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
        """Average now, and write the parameters. The next average is `every` steps later. Collective; blocks.

        Raises
        ------
        RankMismatch
            On every rank at the first synchronization, if the ranks did not begin with the same parameters. Nothing
            changes.
        CommunicationError
            If a rank does not come within the timeout, or is lost. The communicator has then failed, and the parameters
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
            If a call fails or its timeout passes.
        """
        self._sync.broadcast_parameters(root)
        copy_arrays(self._arrays, self._anchors)
        self._anchored = True
        self._since = 0

    @property
    def momentum(self) -> Mapping[str, Array]:
        """The outer momentum by parameter name, equal on all ranks. Empty without a momentum. Local.

        To save a training, synchronize, and save the parameters and these arrays. To go on, write the saved values to both
        on all ranks, and call `broadcast_parameters`.
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
