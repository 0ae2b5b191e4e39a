"""The gradients of one layout, and one step on them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.dtypes import BFLOAT16, FLOAT32
from hpccomm.errors import BufferMismatch, UsageError, did_you_mean
from hpccomm.gradients.agreement import Model
from hpccomm.gradients.arrays import address, device_view, host_view, is_on_device, overlap
from hpccomm.gradients.compression.contract import Compressor
from hpccomm.gradients.compression.exchange import Ranks
from hpccomm.gradients.flat import flat_buckets
from hpccomm.gradients.layout import Bucket, by_need
from hpccomm.gradients.parameters import Kind
from hpccomm.gradients.reducer import MOST_URGENT, Reducer, Way
from hpccomm.gradients.ways import Compressed, Plain, TwoLevel
from hpccomm.gradients.worker import Worker
from hpccomm.gradients.written import FLAGS, WRITTEN, Views, Written
from hpccomm.reductions import ReduceOp

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

Array = NDArray[Any]

OWN_FLAGS = 2 + FLAGS
"""Flags that are sent with each bucket: whether a gradient is missing, whether one is not finite, and `FLAGS`."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The communicators of a reduction on two levels.

    Attributes
    ----------
    node : Communicator
        Over the ranks of this node.
    leaders : Communicator or None
        Over the ranks 0 of the nodes; None on the others.
    """

    node: "Communicator"
    leaders: "Communicator | None"


def _summed(kind: Kind) -> bool:
    """Tell whether an average is taken by a sum, and a factor afterwards.

    NCCL's averages of floats multiply each contribution first, which its algorithm over an NVSwitch, NVLS,
    cannot do (NCCL 2.30, include/device.h: ncclNvlsSupported). A sum of float16 or float8 may overflow.
    """
    return kind.on_device and kind.dtype in (FLOAT32, np.dtype(np.float64), BFLOAT16)


class Step:
    """Where the gradients of a layout lie, which of them are there, and what is under way.

    Making one is collective and blocks: its calls are planned.

    Parameters
    ----------
    comm : Communicator
        Over the ranks that train together.
    buckets : sequence of Bucket
        Equal on all ranks.
    model : Model
        Equal on all ranks.
    worker : Worker or None
        Reduces buckets while gradients are computed; None reduces all at the end.
    levels : Levels or None
        For a reduction on two levels.
    timeout : float or None
        Deadline of each call in seconds.
    owners : mapping of str to object
        As in `Written`.

    Attributes
    ----------
    gradients : dict of str to array
        Views of the buckets, by name.
    views : Views
        The same for users.
    nbytes : int
        Of all buckets.
    there : dict of str to bool
        Whether a gradient was given since the last reduction; after it, whether it is a result.
    marked : list of str
        Gradients that are ready, in the order in which they became so.
    sources : dict of str to array
        Arrays that get the results, by name.
    in_place : set of str
        Gradients that were said to lie in their buckets.
    nonfinite : set of str
        This rank's gradients that were NaN or infinite, if that is watched.
    incomplete, any_nonfinite : bool
        Whether any rank lacked a gradient, or noted one that was not finite. Equal on all ranks.
    any_written, any_as_before, any_elsewhere : bool
        What the flags of `Written` tell of any rank and bucket. Equal on all ranks.
    factor : float or None
        What gradients are multiplied by before they are summed.
    memory_bytes : int
        What compressors keep.
    reducer : Reducer
        What carries the reductions out.
    """

    def __init__(
        self,
        comm: "Communicator",
        buckets: Sequence[Bucket],
        model: Model,
        *,
        worker: Worker | None,
        levels: Levels | None,
        timeout: float | None,
        owners: Mapping[str, Any],
    ) -> None:
        meaning = model.meaning
        devices = any(bucket.kind.on_device for bucket in buckets)
        urgent = [] if devices or len(buckets) == 1 else by_need(buckets, model.parameters)
        slots = min(len(urgent), MOST_URGENT)
        compressor = meaning.compressor
        self.flats, regions = flat_buckets(
            comm, buckets, slots + OWN_FLAGS if compressor is None else 0
        )
        self.place = {each.name: bucket.index for bucket in buckets for each in bucket.parameters}
        self.gradients: dict[str, Array] = {
            each.name: view
            for flat in self.flats
            for each, view in zip(flat.bucket.parameters, flat.views, strict=True)
        }
        self.views = Views(self.gradients)
        average = meaning.op == "average"
        self.memory_bytes = 0
        divisors = dict.fromkeys((flat.bucket.kind for flat in self.flats), 1)
        self._ranks: Ranks | None = None  # among which this rank exchanges what is compressed
        self._compressing = compressor is not None
        self._together: list[Callable[[], Any]] = []
        deterministic = meaning.deterministic
        if compressor is None:
            ops = dict.fromkeys(divisors, ReduceOp.AVG if average else ReduceOp.SUM)
            for kind in ops:
                if average and not deterministic and _summed(kind):
                    ops[kind], divisors[kind] = ReduceOp.SUM, comm.size
            ways: list[Way] = [
                Plain(
                    flat, comm, ops[flat.bucket.kind], deterministic=deterministic, timeout=timeout
                )
                for flat in self.flats
            ]
            if model.settings.bucketing:
                self._together = [
                    comm.plan("all_reduce", x, op, deterministic=deterministic, timeout=timeout)
                    for x, op in zip(regions, ops.values(), strict=True)
                ]
        else:
            if average:
                divisors = dict.fromkeys(divisors, comm.size)
            ways = self._compressed(comm, compressor, levels, timeout)
        self._divisors = [divisors[flat.bucket.kind] for flat in self.flats]
        self.reducer = Reducer(ways, urgent, self._prepare, self._settle, worker)
        self.nbytes = sum(bucket.nbytes for bucket in buckets)
        self.there = dict.fromkeys(self.gradients, False)
        self.marked: list[str] = []
        self.nonfinite: set[str] = set()
        self.incomplete = self.any_nonfinite = False
        self._watch = meaning.nonfinite == "raise" or (compressor is not None and meaning.skips)
        self.factor: float | None = None
        self._unscale = 1.0
        self._seen: set[str] = set()
        self.sources: dict[str, Array] = {}
        self.in_place: set[str] = set()
        self._given = False  # an array was copied to a bucket
        # On one rank a result is what was given.
        self._written = Written(self.flats, owners) if comm.size > 1 else None
        self.any_written = self.any_as_before = self.any_elsewhere = False
        self.end_micro()

    def _compressed(
        self,
        comm: "Communicator",
        compressor: Compressor,
        levels: Levels | None,
        timeout: float | None,
    ) -> list[Way]:
        """Return ways over a compressor, among all ranks or among the nodes."""
        # All ranks make channels, so that all raise if a dtype does not fit, and those keep them that compress.
        channels = [compressor.channel(flat.bucket) for flat in self.flats]
        across = comm if levels is None else levels.leaders
        if across is None:
            among: list[Compressed | None] = [None] * len(channels)
        else:
            self._ranks = ranks = Ranks(across, timeout)
            among = [
                Compressed(flat, channel, ranks)
                for flat, channel in zip(self.flats, channels, strict=True)
            ]
            self.memory_bytes = sum(channel.memory_bytes for channel in channels)
        pairs = zip(self.flats, among, strict=True)
        if levels is None:
            return [way for _, way in pairs if way is not None]
        return [TwoLevel(flat, levels.node, way, timeout) for flat, way in pairs]

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
        read = device_view if is_on_device(view) else host_view
        array = read(grad, f"the gradient of {name!r}")
        if array.shape != view.shape or array.dtype != view.dtype:
            raise BufferMismatch(
                f"the gradient of {name!r} is {array.dtype} {array.shape}, and its parameter "
                f"{view.dtype} {view.shape}; give it the parameter's"
            )
        if written and not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"the gradient of {name!r} is read-only, and gets the result; give a copy, or use ready()"
            )
        if overlap(array, view):
            if address(array) == address(view) and array.strides == view.strides:
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
        if array is None:
            self.in_place.add(name)
        else:
            self._given = True
            view = self.gradients[name]
            if self.there[name]:
                view += array
            else:
                view[...] = array
            if back:
                self.sources[name] = array
        self._seen.add(name)
        self.marked.append(name)
        self.there[name] = True

    # Reducing.

    def advance(self, name: str) -> None:
        """Start the reductions that may start now that a gradient is ready. Does not block."""
        number = self.place[name]
        self.reducer.advance(number, self.flats[number].bucket.nbytes)

    def _prepare(self, number: int) -> list[bool]:
        """Make a bucket ready to be reduced, and return this rank's flags."""
        flat = self.flats[number]
        missing = bad = False
        written = WRITTEN
        if self._written is not None and self.in_place:
            known = self.views.taken or self._given
            written = self._written.flags(number, self.in_place, written=known)
        watch = self._watch and not flat.finite()
        for parameter, view in zip(flat.bucket.parameters, flat.views, strict=True):
            if not self.there[parameter.name]:
                view[...] = 0  # what is not there counts as 0
                missing = True
            elif self.factor == 0:
                view[...] = 0  # also NaN, from no samples
            elif watch and not np.isfinite(view).all():
                self.nonfinite.add(parameter.name)
                bad = True
        factor = 1.0 if self.factor is None else self.factor
        if self._compressing:  # thresholds, and what is kept, are in units that do not change
            factor *= self._unscale
        if factor != 1:
            flat.scale(factor)
        return [missing, bad, *written]

    def _settle(self, number: int, told: list[bool]) -> None:
        """Take note of what the ranks told of a bucket that is reduced."""
        self.incomplete |= told[0]
        self.any_nonfinite |= told[1]
        self.any_written |= told[2]
        self.any_as_before |= told[3]
        self.any_elsewhere |= told[4]
        factor = (1.0 if self._compressing else self._unscale) / self._divisors[number]
        if factor != 1:
            self.flats[number].scale(factor)

    def reduce_now(self) -> None:
        """Reduce all buckets in the caller's thread. Collective; blocks."""
        if not self._together:
            self.reducer.finish()
            return
        slots = [False] * self.reducer.slots
        for number, flat in enumerate(self.flats):
            flat.tell(self._prepare(number) + slots)
        for call in self._together:
            call()
        for number, flat in enumerate(self.flats):
            self._settle(number, flat.told())

    @property
    def together(self) -> int:
        """Calls by which `reduce_now` reduces all buckets, each of all of a kind; 0 if it takes one a bucket."""
        return len(self._together)

    # Between steps.

    def end_micro(self) -> None:
        """Let gradients be given again. What is there stays."""
        self._seen.clear()
        self.marked.clear()
        self.reducer.reset([len(flat.views) for flat in self.flats])

    def begin(self) -> None:
        """Forget the results of the last step."""
        self.in_place.clear()
        self._given = False
        if self._written is not None:
            self._written.begin()
        self.any_written = self.any_as_before = self.any_elsewhere = False
        self.there = dict.fromkeys(self.gradients, False)
        self.sources.clear()
        self.nonfinite.clear()
        self.incomplete = self.any_nonfinite = False

    def scaled(self, by: float) -> None:
        """Take gradients as those of a loss that was multiplied by this, from the next reduction on."""
        self._unscale = 1 / by
        if self._ranks is not None:
            self._ranks.scale = by

    def clear(self) -> None:
        """Set all gradients to 0."""
        for view in self.gradients.values():
            view[...] = 0
        self.results([])

    def copy_back(self) -> None:
        """Write the results to the arrays that were given."""
        for name, array in self.sources.items():
            array[...] = self.gradients[name]

    def results(self, names: Collection[str] | None = None) -> None:
        """Take these gradients in buckets for results that were not written; None are those `in_place`."""
        self.views.taken = False
        if self._written is not None:
            self._written.remember(self.in_place if names is None else names)

    def unwritten(self) -> tuple[list[str], bool]:
        """Return this rank's gradients in buckets that were not written, and whether their owners hold them."""
        if self._written is None:
            return [], False
        return self._written.elsewhere or self._written.as_before, bool(self._written.owned)

    def adopt(self, other: "Step") -> None:
        """Take the gradients of another layout over, as far as this one has them."""
        for name, view in self.gradients.items():
            if name in other.gradients and other.gradients[name].shape == view.shape:
                view[...] = other.gradients[name]
                self.there[name] = other.there[name]
                if name in other.sources:
                    self.sources[name] = other.sources[name]
