"""The buckets of one layout: which of their gradients are given in a step, and whether the step has results.

A step has no results if gradients are missing, were not written since the last step, or are not finite. Ranks learn it
from flags, which they send with each bucket. If all is well, they send nothing else.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import or_
from time import perf_counter
from typing import Any

import numpy as np

from hpccomm.dtypes import BFLOAT16, FLOAT32
from hpccomm.errors import BufferMismatch, RankMismatch, UsageError
from hpccomm.gradients.agreement import RankGroup
from hpccomm.gradients.compression import Compressor, Exchange
from hpccomm.gradients.layout import FlatMemory, layout, registered_together, scale, views_of
from hpccomm.gradients.parameters import (
    Array,
    Bucket,
    address,
    check_known,
    is_finite,
    is_on_device,
    overlap,
    view,
)
from hpccomm.gradients.settings import CurrentScale, Model, ReductionSettings
from hpccomm.reductions import ReduceOp
from hpccomm.units import few, grouped, ranks_named

MOST = 5
"""The most gradients that a message names."""

SAMPLE = 256
"""Number of elements of a bucket that are compared. Of each gradient, at least `LEAST` are."""
LEAST = 8

MOST_URGENT = 32
"""The most buckets that can be taken out of turn."""

FLAGS = MISSING, NONFINITE, IS_WRITTEN, UNCHANGED, ELSEWHERE = range(5)
"""Flags that are sent with each bucket: a gradient is missing or not finite; one was written since the last step, has the
bits of the last result, or lies elsewhere."""


Span = tuple[float, float]
"""When something began and ended, as ``time.perf_counter`` counts."""


class Views(Mapping[str, Array]):
    """The gradients of all buckets by name, as a program sees them."""

    def __init__(self, views: Mapping[str, Array]) -> None:
        self._views = views
        self.taken = (
            False  # whether a program took one since the last results, and may have written it
        )

    def __getitem__(self, name: str) -> Array:
        self.taken = True
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class Sample:
    """Some elements of a bucket in host memory: before each reduction, they are compared with the last results.

    If the bucket is not `watched`, its gradients count as written. An example is a single rank: its results are the
    gradients that were given.
    """

    def __init__(self, flat: FlatMemory, *, watched: bool) -> None:
        bucket = flat.bucket
        most = max(LEAST, SAMPLE // len(bucket.parameters))
        self._memory = flat.memory
        self._last: Array | None = None
        # Name, place, address of the place, and part of the sample.
        self._gradients: list[tuple[str, Array, int, slice]] = []
        places, end = [np.empty(0, np.intp)], 0
        for p, offset in zip(bucket.parameters, bucket.offsets, strict=True) if watched else ():
            places.append(offset + np.linspace(0, p.size - 1, min(most, p.size)).astype(np.intp))
            begin, end = end, end + places[-1].size
            place = flat.views[p.name]
            self._gradients.append((p.name, place, address(place), slice(begin, end)))
        self._places = np.concatenate(places)

    def remember(self, in_place: Collection[str]) -> None:
        """Take the content of the bucket as results. If no gradient was given `in_place`, the bucket counts as written."""
        self._last = None
        if in_place and self._gradients:
            self._last = self._memory.take(self._places, mode="clip")  # which needs no buffer

    def compare(
        self, in_place: Collection[str], owners: Mapping[str, Any], *, written: bool
    ) -> tuple[bool, list[str], list[str]]:
        """Compare the bucket, before it is reduced, with the last results.

        Parameters
        ----------
        in_place : collection of str
            The gradients that were said to lie in their buckets.
        owners : mapping of str to object
            Objects that have their gradients in ``grad``, such as PyTorch's parameters.
        written : bool
            Whether something was written, whatever the comparison finds.

        Returns
        -------
        bool
            Whether a gradient was written.
        list of str
            The gradients that have the bits of the last result.
        list of str
            The gradients that lie in the memory of their owners, and not in the bucket.
        """
        if not self._gradients or (written and not owners):
            return True, [], []
        now, last = self._memory.take(self._places, mode="clip"), self._last
        if not owners:
            if last is None or (content := now.tobytes()) != last.tobytes():  # as in most steps
                return True, [], []
            if content.count(0) == len(content):  # zeros, quickly
                return written, [], []
        unchanged, elsewhere = [], []
        for name, place, start, part in self._gradients:
            if name not in in_place:
                continue
            alike = last is not None and now[part].tobytes() == last[part].tobytes()
            owner = owners.get(name)
            if owner is None or owner.grad is None:
                written |= not alike
                if alike and _proves(now[part]):
                    unchanged.append(name)
            elif owner.grad.data_ptr() == start or (not alike and _proves(now[part])):
                written = True  # maybe by hand
            elif _differs(name, owner, place):
                elsewhere.append(name)
        return written, unchanged, elsewhere


def _proves(x: Array) -> bool:
    """Return whether equal elements prove that they were not written. Zeros, NaN and infinities do not."""
    return bool(np.isfinite(x).all() and x.any())


def elsewhere(owners: Mapping[str, Any], views: Mapping[str, Array]) -> list[str]:
    """Return the gradients that owners have in other memory than the bucket, with other values."""
    return [
        name
        for name, owner in owners.items()
        if owner.grad is not None
        and owner.grad.data_ptr() != address(views[name])
        and _differs(name, owner, views[name])
    ]


def _differs(name: str, owner: Any, place: Array) -> bool:
    return not np.array_equal(view(owner.grad, f"the gradient of {name!r}"), place)


class BucketReduction(FlatMemory):
    """One bucket: its gradients, their reduction, and how far the present step is with it.

    Flags lie behind the gradients, as elements of the bucket's dtype. Without a compressor, one planned all-reduce
    reduces both.

    Attributes
    ----------
    divisor : int
        The number by which results must be divided.
    deferred : bool
        Whether `start` returns before the end of the reduction. Then `finish` waits for it.
    gradients, left : int
        Number of gradients, and number of those that are not ready.
    work : Work or None
        The call of a deferred reduction that is under way.
    span : (float, float) or None
        When the reduction began and ended, as ``time.perf_counter`` counts.
    wire_nbytes : int
        Bytes that this rank gave to collectives so far.
    seconds, hidden_seconds : float
        As in `BucketStatistics`.
    """

    def __init__(
        self,
        bucket: Bucket,
        memory: Array,
        group: RankGroup,
        settings: ReductionSettings,
        flags: int,
    ) -> None:
        super().__init__(bucket, memory)
        watched = group.size > 1 and not bucket.kind.on_device
        self.nbytes, self.sample = bucket.nbytes, Sample(self, watched=watched)
        self.op, self.divisor = self._operation(group, settings)
        self.gradients = self.left = len(self.views)
        self.span: Span | None = None
        self.wire_nbytes, self._given_nbytes = 0, memory.nbytes  # in all, and in a reduction
        self.seconds = self.hidden_seconds = 0.0
        self._flags: Any = memory[bucket.length :][:flags]
        # A flag grows with the number of ranks, so that an average of narrow floats over them does not become 0.
        self._mark = float(min(group.size, 256))
        # A device works by itself. On the host, a thread makes the blocking call, and needs no interpreter during it.
        self.deferred = bucket.kind.on_device
        self.work: Any = None

    def _operation(self, group: RankGroup, settings: ReductionSettings) -> tuple[ReduceOp, int]:
        """Return the operation that reduces gradients, and the number by which its result must be divided.

        For an average of floats, NCCL multiplies each contribution first. Its algorithm for NVSwitches, NVLS, cannot do
        this (NCCL 2.30, include/device.h: ncclNvlsSupported). So a device sums floats up, and the sum is divided. Only
        float16 and float8 are averaged, because their sum may overflow.
        """
        if settings.op != "average":
            return ReduceOp.SUM, 1
        dtype, on_device = self.bucket.kind
        summed = on_device and dtype in (FLOAT32, np.dtype(np.float64), BFLOAT16)
        if settings.compressor is not None or (summed and not settings.deterministic):
            return ReduceOp.SUM, group.size
        return ReduceOp.AVG, 1

    @property
    def memory_bytes(self) -> int:
        """Bytes of a compressor's state."""
        return 0

    def nonfinite(self) -> list[str]:
        """Return the gradients that have NaN or infinities. Local; waits for a device."""
        if is_finite(self.elements):
            return []
        return [name for name, place in self.views.items() if not np.isfinite(place).all()]

    def plan(self, group: RankGroup, *, deterministic: bool) -> None:
        """Plan the call. Collective; blocks."""
        how = {"deterministic": deterministic, "async_op": self.deferred}
        self._call = group.plan("all_reduce", self.memory, self.op, **how)

    def set_flags(self, flags: Sequence[bool]) -> None:
        """Write this rank's flags behind the gradients, to be reduced with them."""
        marks = [self._mark if flag else 0.0 for flag in flags]
        if self.deferred:
            self._flags.set(np.array(marks, self._flags.dtype))  # one copy
        else:
            self._flags[:] = marks

    def start(self) -> None:
        """Reduce gradients and flags. Collective; blocks, if it is not deferred."""
        work = self._call()
        self.work = work if self.deferred else None

    def finish(self) -> list[bool]:
        """Return which flags any rank has set. Blocks, if the reduction is deferred."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.wire_nbytes += self._given_nbytes
        return list((self._flags != 0).tolist())


class CompressedReduction(BucketReduction):
    """A bucket that a compressor's channel reduces among `ranks`.

    On two levels, gradients are first summed up on each `node` in full precision. One rank of the node then exchanges
    compressed gradients, and gives the result to the others. For those, `ranks` is None.
    """

    def __init__(
        self, *how: Any, compressor: Compressor, ranks: Exchange | None, node: RankGroup | None
    ) -> None:
        super().__init__(*how)
        self._channel, self._ranks = compressor.channel(self.bucket), ranks
        self._node = None if node is None or node.size == 1 else node

    @property
    def memory_bytes(self) -> int:
        """Bytes of the channel's state."""
        return 0 if self._ranks is None else self._channel.memory_bytes

    def plan(self, group: RankGroup, *, deterministic: bool) -> None:
        """Do nothing: a channel plans no calls."""

    def start(self) -> None:
        """Sum gradients up, and flags. Collective; blocks."""
        node, gradients, marks = self._node, self.elements, (self._flags != 0).astype(np.uint8)
        self._given_nbytes = 0 if node is None else gradients.nbytes
        if node is not None:
            node.reduce(gradients)
            node.reduce(marks, op=ReduceOp.MAX)
        if self._ranks is not None:
            before = self._ranks.wire_nbytes
            self._channel.reduce(gradients, self._ranks)
            self._ranks.max(marks)
            self._given_nbytes += self._ranks.wire_nbytes - before
        if node is not None:
            node.broadcast_each([gradients, marks], 0)
        self._flags[:] = marks


class Buckets:
    """The gradients of a layout: their memory, which of them are present, and whether a step has results.

    Making one is local.

    Parameters
    ----------
    model : Model
        The model on which all ranks agreed.
    scale : CurrentScale
        The factor of the loss.
    levels : (RankGroup, RankGroup or None) or None
        For a reduction on two levels: the ranks of this node, and the first ranks of all nodes. The second is None if
        this rank is not a first one.
    readiness : sequence of str, optional
        As in `ordered`.

    Attributes
    ----------
    layout : tuple of Bucket
        The buckets in the order of reductions.
    each : sequence of BucketReduction
        The reduction of each bucket, in this order.
    urgent : list of BucketReduction
        The reductions that can be taken out of turn, in the order in which the next forward pass needs them. If
        gradients lie on a device, there are none: a device takes calls in the order in which they are made.
    regions : dict of BucketKind to ndarray
        The memory of all buckets of a kind.
    """

    def __init__(
        self,
        model: Model,
        scale: CurrentScale,
        levels: tuple[RankGroup, RankGroup | None] | None = None,
        readiness: Sequence[str] | None = None,
    ) -> None:
        self.settings, self._scale = model.settings, scale
        self._group, self._owners = model.group, model.owners
        settings, compressor = self.settings, self.settings.compressor
        self.layout = layout(model.trained, settings, readiness)
        urgent = self._urgent([each.name for each in model.trained])
        flags = len(FLAGS) + len(urgent)
        memory, self.regions = registered_together(self._group, self.layout, flags)
        node, across = levels or (None, self._group)
        self._exchange = Exchange(self._group if across is None else across)
        make: Callable[..., BucketReduction] = BucketReduction
        if compressor is not None:
            ranks = None if across is None else self._exchange
            make = partial(CompressedReduction, compressor=compressor, ranks=ranks, node=node)
        places = zip(self.layout, memory, strict=True)
        self.each = [make(bucket, x, self._group, settings, flags) for bucket, x in places]
        self.urgent = [self.each[number] for number in urgent]
        self.gradients = views_of(self.each)
        self.views = Views(self.gradients)  # as programs see them
        self.nbytes = sum(each.nbytes for each in self.each)
        self._compressed = compressor is not None
        self._watched = settings.nonfinite == "raise" or (self._compressed and settings.skips)
        self.factor: float | None = None  # multiplies gradients before they are summed
        # When each gradient of this micro-step was given, by time.perf_counter, in this order.
        self.marked: dict[str, float] = {}
        self.sources: dict[str, Array] = {}  # arrays that get results
        self._in_place: set[str] = set()  # gradients that a program gave in their buckets
        self.begin()

    def _urgent(self, names: list[str]) -> list[int]:
        """Return the numbers of the urgent buckets. Names are in the order of the forward pass."""
        if len(self.layout) == 1 or any(bucket.kind.on_device for bucket in self.layout):
            return []
        place = {name: number for number, name in enumerate(names)}
        first = [min(place[each.name] for each in bucket.parameters) for bucket in self.layout]
        return sorted(range(len(first)), key=first.__getitem__)[:MOST_URGENT]

    def begin(self) -> None:
        """Forget the results of the last step."""
        # Whether each gradient was given since the last reduction. After a reduction, whether it is a result.
        self.present = dict.fromkeys(self.gradients, False)
        self._flags = [False] * len(FLAGS)  # whether any rank set each for any bucket
        self._copied = False  # an array was copied to a bucket
        self._in_place.clear()
        self.sources.clear()
        # This rank's gradients, by the flag that they have set.
        self._found: dict[int, list[str]] = {flag: [] for flag in FLAGS if flag != IS_WRITTEN}

    def source(self, name: str, grad: object, *, written: bool = False) -> Array | None:
        """Return the array of a gradient that has to be copied; None if it lies in its bucket.

        Raises
        ------
        UsageError
            If the name is unknown; if the array and its parameter do not both lie on the host or both on a device; or if
            the array is read-only and will be `written`.
        BufferMismatch
            If it has another shape or dtype than the parameter.
        """
        check_known("gradient", name, self.gradients)
        place = self.gradients[name]
        if grad is None or grad is place:
            return None
        array = fitting(name, grad, place)
        if written and not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
            raise UsageError(
                f"the gradient of {name!r} is read-only, and gets the result; give a copy, or use ready()"
            )
        if overlap(array, place):
            if address(array) == address(place) and array.strides == place.strides:
                return None  # another array over the same memory
            raise UsageError(
                f"the gradient of {name!r} overlaps its place in the bucket; "
                "give the array of `gradients`, or one that shares no memory with it"
            )
        return array

    def mark(self, name: str, array: Array | None, *, back: bool) -> None:
        """Take a gradient: copy it to its bucket, or add it to the gradient of earlier micro-steps.

        Parameters
        ----------
        name : str
            The parameter's name.
        array : ndarray or None
            The result of `source`.
        back : bool
            Whether the array gets the result.

        Raises
        ------
        UsageError
            If it was given before in this micro-step.
        """
        if name in self.marked:
            raise UsageError(f"gradient {name!r} was given before in this step; give it once")
        if array is None:
            self._in_place.add(name)
        else:
            self._copied = True
            place = self.gradients[name]
            if self.present[name]:
                place += array
            else:
                place[...] = array
            if back:
                self.sources[name] = array
        self.marked[name] = perf_counter()
        self.present[name] = True

    def mark_all(self) -> None:
        """Take all gradients in their buckets as given, at the beginning of a micro-step."""
        self._in_place.update(self.gradients)
        self.marked = dict.fromkeys(self.gradients, perf_counter())
        self.present = dict.fromkeys(self.gradients, True)

    def prepare(self, bucket: BucketReduction, unready: Sequence[bool]) -> None:
        """Prepare a bucket for its reduction, and set its flags. `unready` says which urgent buckets this rank lacks."""
        written, found = True, dict[int, list[str]]()
        if self._in_place:
            written, found[UNCHANGED], found[ELSEWHERE] = bucket.sample.compare(
                self._in_place, self._owners, written=self.views.taken or self._copied
            )
        found[MISSING] = [name for name in bucket.views if not self.present[name]]
        for name in bucket.views if self.factor == 0 else found[MISSING]:
            bucket.views[name][...] = 0  # a rank without samples may have NaN
        if self._watched:
            found[NONFINITE] = bucket.nonfinite()
        for flag, names in found.items():
            self._found[flag] += names
        factor = 1.0 if self.factor is None else self.factor
        if self._compressed:
            # Compressors see gradients of the loss itself: thresholds and unsent parts keep their unit.
            factor /= self._scale.value
            self._exchange.scale = self._scale.value
        if factor != 1:
            scale(bucket.elements, factor)
        set_here = [written if flag == IS_WRITTEN else bool(found.get(flag)) for flag in FLAGS]
        bucket.set_flags([*set_here, *unready])

    def take(self, bucket: BucketReduction) -> list[bool]:
        """Take a reduced bucket. Return which urgent buckets are unready on any rank. Blocks, if the reduction is deferred."""
        flags = bucket.finish()
        self._flags = list(map(or_, self._flags, flags))
        factor = 1 / (bucket.divisor if self._compressed else bucket.divisor * self._scale.value)
        if factor != 1:
            scale(bucket.elements, factor)
        return flags[len(FLAGS) :]

    def check(self) -> bool:
        """Check a reduced step. Return whether it has results: False if they are not finite.

        All ranks have the same flags. If all is well, this is local. Else it is collective and blocks.

        Raises
        ------
        UsageError
            On every rank, if gradients were not written; or if results are not finite, with ``nonfinite="raise"``.
        RankMismatch
            On every rank, if a gradient is missing, with ``unused="error"``.
        """
        flags, settings = self._flags, self.settings
        if flags[ELSEWHERE] or (flags[UNCHANGED] and not flags[IS_WRITTEN]):
            self._raise_unwritten()
        if flags[MISSING] and settings.unused == "zero":
            self.present = dict.fromkeys(self.present, True)
        elif flags[MISSING]:
            self._find_missing()
        if settings.nonfinite == "keep" and not settings.skips:
            return True
        bad = [name for bucket in self.each for name in bucket.nonfinite()]
        if (bad or flags[NONFINITE]) and settings.nonfinite == "raise":
            self._raise_nonfinite(bad)
        return not bad and not flags[NONFINITE]

    def _raise_unwritten(self) -> None:
        """Raise for gradients in buckets that were not written: their sum would contain old results."""
        found = self._found[ELSEWHERE] or self._found[UNCHANGED]
        ranks_of = self._ranks_of([(name, name in self._owners) for name in found])
        self._remember(())
        names = dict.fromkeys(name for name, _ in ranks_of)
        ranks = sorted({rank for ranks in ranks_of.values() for rank in ranks})
        if any(owned for _, owned in ranks_of):
            cause = (
                "zero_grad() and backward() made new tensors in .grad, which the step did not see and where no results "
                "arrive; give them, by sync({name: parameter.grad, ...}) or ready(name, parameter.grad)"
            )
        else:
            cause = (
                "they have the bits of the last results; write them in each step, or give arrays to sync() or ready(). "
                "zero() before a step says that equal ones are meant"
            )
        raise UsageError(
            "gradients that lie in buckets were not written since the last step: "
            f"{few(map(repr, names), MOST)} on {ranks_named(ranks)}; {cause}"
        )

    def _find_missing(self) -> None:
        """Learn which gradients any rank has. Raise for those that a rank lacks, with ``unused="error"``."""
        given = np.fromiter(self.present.values(), np.uint8, len(self.present))
        present: Any = self._group.all_gather(given).astype(bool)
        self.present = dict(zip(self.present, present.any(axis=0).tolist(), strict=True))
        if self.settings.unused == "error":
            columns = zip(self.present, present.T, strict=True)
            ranks_of = {name: np.flatnonzero(~x).tolist() for name, x in columns if not x.all()}
            raise RankMismatch(
                f"gradients are missing: {_named(ranks_of)}; give them, or take unused='zero' or 'skip'",
                rank=self._group.rank,
                operation="all_reduce",
                ranks=np.flatnonzero(~present.all(axis=1)).tolist(),
            )

    def _raise_nonfinite(self, bad: list[str]) -> None:
        ranks_of: dict[str, list[int]] = {name: [] for name in bad}
        ranks_of |= self._ranks_of(sorted(self._found[NONFINITE]))
        raise UsageError(
            f"gradients are NaN or infinite: {_named(ranks_of)}; nonfinite='skip' leaves such steps out"
        )

    def _ranks_of(self, found: list[Any]) -> dict[Any, list[int]]:
        """Return the ranks on which each gradient was found. Collective; blocks."""
        every = self._group.all_gather_object(found)
        return grouped((name, rank) for rank, names in enumerate(every) for name in names)

    def hand_back(self) -> None:
        """Write the results to the arrays that were given, and remember them for the next comparison."""
        for name, array in self.sources.items():
            array[...] = self.gradients[name]
        self._remember(self._in_place)

    def clear(self) -> None:
        """Set all gradients to 0."""
        for place in self.gradients.values():
            place[...] = 0
        self._remember(())

    def _remember(self, in_place: Collection[str]) -> None:
        self.views.taken = False
        self._found[UNCHANGED], self._found[ELSEWHERE] = [], []
        for bucket in self.each:
            bucket.sample.remember(in_place)

    def adopt(self, other: "Buckets") -> None:
        """Copy the gradients of another layout that this one has as well."""
        for name, place in self.gradients.items():
            if name in other.gradients and other.gradients[name].shape == place.shape:
                place[...] = other.gradients[name]
                self.present[name] = other.present[name]
                if name in other.sources:
                    self.sources[name] = other.sources[name]


def _named(ranks_of: Mapping[str, Sequence[int]]) -> str:
    """Return a text with each gradient and its ranks."""
    return "; ".join(
        f"{name!r} " + (f"on {ranks_named(ranks)}" if ranks else "in the result alone")
        for name, ranks in ranks_of.items()
    )


def fitting(name: str, grad: object, place: Array) -> Array:
    """Return an array over the memory of a gradient.

    Raises
    ------
    UsageError
        If the gradient and its place do not both lie on the host or both on a device.
    BufferMismatch
        If it has another shape or dtype.
    """
    array = view(grad, f"the gradient of {name!r}", device=is_on_device(place))
    if array.shape != place.shape or array.dtype != place.dtype:
        raise BufferMismatch(
            f"the gradient of {name!r} is {array.dtype} {array.shape}, and its parameter "
            f"{place.dtype} {place.shape}; give it the parameter's"
        )
    return array
