"""The gradients of one layout, and one step on them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.errors import BufferMismatch, UsageError, did_you_mean
from hpccomm.gradients.flat import FlatBucket, flat_buckets
from hpccomm.gradients.layout import Bucket
from hpccomm.gradients.parameters import host_view
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpccomm.communicator import Communicator
    from hpccomm.runtime.work import Work

Array = NDArray[Any]


class Step:
    """Where the gradients of a layout lie, which of them are there, and what is under way.

    Making one is collective and blocks: its calls are planned.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    buckets : sequence of Bucket
        Equal on all ranks.
    op : ReduceOp
        SUM or AVG.
    bucketing : bool
        Whether a whole step may reduce all buckets of a dtype by one call.
    watch : bool
        Whether to note which gradients of this rank are NaN or infinite.
    deterministic : bool
        As in `Communicator.all_reduce`.
    timeout : float or None
        Deadline of each call in seconds.

    Attributes
    ----------
    gradients : dict of str to ndarray
        Views of the buckets, by name.
    nbytes : int
        Of all buckets.
    there : dict of str to bool
        Whether a gradient was given since the last reduction; after it, whether it is a result.
    marked : list of str
        Gradients that are ready, in the order in which they became so.
    sources : dict of str to ndarray
        Arrays that get the results, by name.
    nonfinite : set of str
        This rank's gradients that were NaN or infinite, if that is watched.
    factor : float or None
        What gradients are multiplied by before they are summed.
    """

    def __init__(
        self,
        comm: "Communicator",
        buckets: Sequence[Bucket],
        op: ReduceOp,
        *,
        bucketing: bool,
        watch: bool,
        deterministic: bool,
        timeout: float | None,
    ) -> None:
        self.flats, regions = flat_buckets(comm, buckets)
        self._place = {each.name: bucket.index for bucket in buckets for each in bucket.parameters}
        self.gradients: dict[str, Array] = {
            each.name: view
            for flat in self.flats
            for each, view in zip(flat.bucket.parameters, flat.views, strict=True)
        }
        self._starts = [
            flat.plan(comm, op, deterministic=deterministic, timeout=timeout) for flat in self.flats
        ]
        self._whole: Callable[[], Any] | None = None
        together = regions if bucketing else [flat.memory for flat in self.flats]
        if len(together) == 1:  # a plan of one call is quicker
            self._whole = comm.plan(
                "all_reduce", together[0], op, deterministic=deterministic, timeout=timeout
            )
        elif together:
            with comm.planning(timeout=timeout) as plan:
                for memory in together:
                    comm.all_reduce(memory, op, deterministic=deterministic)
            self._whole = plan
        self.nbytes = sum(bucket.nbytes for bucket in buckets)
        self.there = dict.fromkeys(self.gradients, False)
        self.marked: list[str] = []
        self.nonfinite: set[str] = set()
        self._watch = watch
        self.factor: float | None = None
        self._seen: set[str] = set()
        self.sources: dict[str, Array] = {}
        self._works: list[Work] = []
        self._left = [len(bucket.parameters) for bucket in buckets]

    # What the caller gives.

    def given(self, name: str, grad: object, *, written: bool = False) -> Array | None:
        """Return the array of a gradient that has to be copied; None if it lies in its bucket.

        Raises
        ------
        UsageError
            If the name is unknown, or the array is none in host memory, or is read-only and is to be `written`.
        BufferMismatch
            If it has another shape or dtype than the parameter.
        """
        view = self.gradients.get(name)
        if view is None:
            raise UsageError(
                f"there is no gradient {name!r}; {did_you_mean(name, self.gradients, 'give the name of a parameter')}"
            )
        if grad is None or grad is view:
            return None
        array = host_view(grad, f"the gradient of {name!r}")
        if array.shape != view.shape or array.dtype != view.dtype:
            raise BufferMismatch(
                f"the gradient of {name!r} is {array.dtype} {array.shape}, and its parameter "
                f"{view.dtype} {view.shape}; give it the parameter's"
            )
        if written and not array.flags.writeable:
            raise UsageError(
                f"the gradient of {name!r} is read-only, and gets the result; give a copy, or use ready()"
            )
        if np.may_share_memory(array, view):
            if array.ctypes.data == view.ctypes.data and array.strides == view.strides:
                return None  # another array over the same memory
            raise UsageError(
                f"the gradient of {name!r} overlaps its place in the bucket; "
                "give the array of `gradients`, or one that shares no memory with it"
            )
        return array

    def mark(self, name: str, array: Array | None, *, back: bool) -> None:
        """Take a gradient: copy it to its bucket, or add it to what is there from earlier micro-steps."""
        if name in self._seen:
            raise UsageError(
                f"the gradient of {name!r} was given before in this step; give it once"
            )
        if array is not None:
            view = self.gradients[name]
            if self.there[name]:
                np.add(view, array, out=view)
            else:
                np.copyto(view, array)
            if back:
                self.sources[name] = array
        self._seen.add(name)
        self.marked.append(name)
        self.there[name] = True

    # Reducing.

    def advance(self, name: str) -> None:
        """Start the reductions that may start now that a gradient is ready. Does not block.

        A bucket starts only after those before it, so that all ranks start them in one order.
        """
        self._left[self._place[name]] -= 1
        while len(self._works) < len(self.flats) and not self._left[len(self._works)]:
            self._start()

    def start_all(self) -> None:
        """Start the reductions that have not started. What is not there counts as 0. Does not block."""
        while len(self._works) < len(self.flats):
            self._start()

    def _start(self) -> None:
        number = len(self._works)
        self._prepare(self.flats[number])
        self._works.append(self._starts[number]())

    def _prepare(self, flat: FlatBucket) -> None:
        complete = True
        for parameter, view in zip(flat.bucket.parameters, flat.views, strict=True):
            if not self.there[parameter.name]:
                view[...] = 0
                complete = False
            elif self._watch and not np.isfinite(view).all():
                self.nonfinite.add(parameter.name)
        flat.mark(complete)
        if self.factor is not None:
            flat.scale(self.factor)

    @property
    def under_way(self) -> bool:
        """Whether a reduction has started that `finish` has not seen."""
        return bool(self._works)

    def wait_for(self, name: str, timeout: float | None) -> Array:
        """Wait until the bucket of a gradient is reduced. Blocks."""
        self._works[self._place[name]].wait(timeout)
        return self.gradients[name]

    def reduce_now(self) -> None:
        """Reduce all buckets in the caller's thread. Collective; blocks."""
        for flat in self.flats:
            self._prepare(flat)
        if self._whole is not None:
            self._whole()

    def finish(self, timeout: float | None) -> None:
        """Wait until all buckets are reduced. Blocks."""
        works = self._works
        for work in works:
            work.wait(timeout)
        self._works = []

    @property
    def incomplete(self) -> bool:
        """Whether some rank lacked a gradient. It is equal on all ranks."""
        return any(flat.incomplete for flat in self.flats)

    # Between steps.

    def end_micro(self) -> None:
        """Let gradients be given again. What is there stays."""
        self._seen.clear()
        self.marked.clear()
        self._left = [len(flat.views) for flat in self.flats]

    def begin(self) -> None:
        """Forget the results of the last step."""
        self.there = dict.fromkeys(self.gradients, False)
        self.sources.clear()
        self.nonfinite.clear()

    def copy_back(self) -> None:
        """Write the results to the arrays that were given."""
        for name, array in self.sources.items():
            np.copyto(array, self.gradients[name])

    def adopt(self, other: "Step") -> None:
        """Take the gradients of another layout over, as far as this one has them."""
        for name, view in self.gradients.items():
            if name in other.gradients and other.gradients[name].shape == view.shape:
                np.copyto(view, other.gradients[name])
                self.there[name] = other.there[name]
                if name in other.sources:
                    self.sources[name] = other.sources[name]
