"""`ShardedOptimizer`: each rank keeps only the optimiser's state for its part of the model.

A `Shard` is a bucket of which each rank updates an equal part.
"""

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hpccomm.dtypes import FLOAT32, is_narrow
from hpccomm.errors import UsageError
from hpccomm.gradients.agreement import RankGroup, agree, check_initial, texts
from hpccomm.gradients.buckets import elsewhere, fitting
from hpccomm.gradients.layout import ALIGNMENT, FlatMemory, copy_arrays, layout, views_of
from hpccomm.gradients.parameters import (
    Array,
    Arrays,
    Bucket,
    Named,
    check_known,
    check_writable,
    read,
    wide,
)
from hpccomm.gradients.settings import KIB, MIB, Initial, ReductionSettings
from hpccomm.gradients.updates import Update, name_of
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.recorder import entered
from hpccomm.settings import check_bool, check_choice

if TYPE_CHECKING:
    from hpccomm.communicator import Communicator

UpdateRule = Callable[[Array, Array, dict[str, Array], int], object]
StateOf = Mapping[str, Any] | Callable[[Array], Mapping[str, Array]]

MASTER = "master"
"""The name, in the state, of the float32 copy of parameters."""


class Shard:
    """A bucket of parameters and the same bucket of gradients, in registered memory, with this rank's part of both.

    Parameters
    ----------
    group : RankGroup
        The ranks that share the bucket.
    bucket : Bucket
        The places of arrays. Padding follows, so that all ranks have parts of one length, which begin at cache lines.
    masters : bool
        Whether narrow parameters are updated in float32.

    Attributes
    ----------
    parameters, gradients : FlatMemory
        The whole bucket. Padding is 0.
    values : ndarray, 1-D
        The elements that this rank updates: its part of the parameters, or their float32 masters.
    state : dict of str to ndarray
        Arrays of the length and order of `values`.
    reduce, collect : callable
        The calls that `begin` has planned.
    """

    def __init__(self, group: RankGroup, bucket: Bucket, *, masters: bool) -> None:
        self._group = group
        unit = group.size * (ALIGNMENT // bucket.dtype.itemsize)
        length = max(1, -(-bucket.length // unit)) * unit
        memory = [group.comm.empty(length, bucket.dtype) for _ in range(2)]
        for each in memory:
            each[:] = 0  # the padding, too, which is reduced
        self.parameters, self.gradients = (FlatMemory(bucket, each) for each in memory)
        part = length // group.size
        own = slice(group.rank * part, (group.rank + 1) * part)
        self._parameters, self._gradients = self.parameters.memory[own], self.gradients.memory[own]
        self._padding = np.flatnonzero(bucket.padding(length)[own])
        self._masters = masters and is_narrow(bucket.dtype)
        self.values = np.zeros(part, FLOAT32) if self._masters else self._parameters
        self.state: dict[str, Array] = {}

    def begin(self, state: StateOf, settings: ReductionSettings, *, async_op: bool) -> None:
        """Make the state, and plan the calls of steps. A callable makes state from the parameters. Collective; blocks."""
        self.take_masters()
        self.state = _state(state, self.values)
        if self._masters and MASTER in self.state:
            raise UsageError(f"an array of state is named {MASTER!r}; with masters=True, rename it")
        self._clear_padding()
        group, gradients = self._group, self.gradients.memory
        op = ReduceOp.AVG if settings.op == "average" else ReduceOp.SUM
        how = {"deterministic": settings.deterministic, "async_op": async_op}
        self.reduce = group.plan("reduce_scatter", gradients, op, out=self._gradients, **how)
        parts = self.parameters.memory.reshape(group.size, -1)
        self.collect = group.plan("all_gather", self._parameters, out=parts, async_op=async_op)

    def take_masters(self) -> None:
        """Set the masters to the parameters. Local."""
        if self._masters:
            self.values[:] = self._parameters

    def update(self, rule: UpdateRule, step: int) -> None:
        """Update this rank's part by its reduced gradients. Local."""
        rule(self.values, self._gradients.astype(self.values.dtype, copy=False), self.state, step)
        self._clear_padding()
        if self._masters:
            self._parameters[:] = self.values

    def _clear_padding(self) -> None:
        # A rule may make NaN of padding, by 0/0. It must not spread, or cause warnings in all later steps.
        for each in (self.values, self._gradients, *self.state.values()):
            each[self._padding] = 0

    def arrays(self) -> dict[str, Array]:
        """Return this rank's part of the state by name, with the masters. Local."""
        return {MASTER: self.values, **self.state} if self._masters else self.state


def _state(state: StateOf, values: Array) -> dict[str, Array]:
    if not callable(state):
        default = wide(values.dtype)
        return {
            name: np.zeros(values.size, default if each is None else each)
            for name, each in state.items()
        }
    arrays = dict(state(values))
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.shape != values.shape:
            raise UsageError(
                f"the state {name!r} is {getattr(array, 'shape', type(array).__name__)}; "
                f"return an array of the shape {values.shape} of the shard"
            )
        if np.may_share_memory(array, values) or not array.flags.writeable:
            raise UsageError(f"the state {name!r} is not an array of its own; return a copy")
    return arrays


Combine = Literal["average", "sum"]
Saved = dict[str, Any]


class ShardedOptimizer:
    """An optimiser whose state is divided among the ranks: stage 1 of ZeRO.

    In a step, each rank gets an equal part of the reduced gradients, and updates this part of the parameters. Then all
    ranks collect the updated parts. The state, such as the moments of Adam, exists only once in the whole job. A step
    sends as many bytes as an all-reduce.

    Making one is collective and blocks: the ranks compare their models and settings. All ranks make the same calls, by
    one thread at a time.

    Parameters
    ----------
    comm : Communicator
        The communicator over the ranks that train together.
    parameters : mapping or iterable of (str, array)
        The model, as for `GradientSync`: arrays in host memory, of real floating dtypes. They are copied.
    update : Update or callable
        `sgd`, `adam`, or a function ``update(parameter, gradient, state, step)``. The function gets flat arrays of one
        length, and writes the parameter and the arrays in the dict `state`. `step` counts from 1. It must be elementwise,
        because each call has one part of the model. It must be the same on all ranks, which compare names, not code.
    state : mapping of str to dtype, or callable, optional
        The dtype of each array of state, by name. Arrays begin as zeros. A dtype of None is that of the parameters, or
        float32 if that is narrower. A callable is an elementwise function of the flat parameters, which returns the arrays
        by name. The default is the state that an `Update` needs. For other functions, there is none.
    op : {"average", "sum"}
        The reduction of the ranks' gradients.
    initial : {"check", "broadcast", "ignore"}
        For the first values of parameters, as in `ReductionSettings`.
    bucket_bytes, min_bucket_bytes : int
        Sizes in bytes, see `ReductionSettings`. While one bucket is updated, others are sent.
    masters : bool
        Whether this rank also keeps a float32 copy of its part of narrow parameters, such as float16, and updates this
        copy. Gradients and state are then float32 for the update.
    write_back : bool
        Whether steps copy the results to the arrays in `parameters`. False saves this copy, and keeps no reference to the
        arrays: a program then trains on the views in `ShardedOptimizer.parameters`.
    deterministic : bool
        Whether the ranks' gradients are folded in rank order, so that the same gradients give the same bits.
    timeout : float, optional
        Timeout of each call in seconds. None is the communicator's.

    Raises
    ------
    UsageError
        If an argument is wrong.
    RankMismatch
        On the other ranks, if one raises an error. On all ranks, if their parameters, first values or settings differ.
        The message names the differences and the ranks. The communicator can still be used.
    CommunicationError
        If a rank does not come within the timeout, or is lost.

    Notes
    -----
    Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC20.
    """

    def __init__(
        self,
        comm: "Communicator",
        parameters: Named,
        update: Update | UpdateRule,
        *,
        state: StateOf | None = None,
        op: Combine = "average",
        initial: Initial = "check",
        bucket_bytes: int = 25 * MIB,
        min_bucket_bytes: int = 64 * KIB,
        masters: bool = False,
        write_back: bool = True,
        deterministic: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._group, self._update = RankGroup(comm, timeout), update
        self._steps = 0
        self._blocked = 0.0
        if state is None:
            state = dict(update.state) if isinstance(update, Update) else {}

        def make() -> tuple[Arrays, dict[str, str]]:
            if not callable(update):
                raise UsageError(f"update is {update!r}; give sgd(...), adam(...) or a function")
            arrays, self._owners = read(parameters)
            if check_bool("write_back", write_back):
                check_writable(arrays, "give a copy, or take write_back=False")
            check_choice("op", op, Combine)
            self._settings = ReductionSettings(
                op=op,
                initial=initial,
                bucket_bytes=bucket_bytes,
                first_bucket_bytes=bucket_bytes,
                min_bucket_bytes=min_bucket_bytes,
                deterministic=deterministic,
            )
            settings = {
                **self._settings.by_name,
                "update": update.name if isinstance(update, Update) else name_of(update),
                "state": name_of(state) if callable(state) else _dtypes(state),
                "masters": check_bool("masters", masters),
            }
            return arrays, texts(arrays, settings)

        arrays = agree(self._group, make)
        if initial == "check" and comm.size > 1:
            check_initial(self._group, arrays)
        buckets = layout(list(arrays), self._settings)
        self._shards = [Shard(self._group, each, masters=masters) for each in buckets]
        names = [each.name for each in arrays]
        self._parameters = views_of([each.parameters for each in self._shards], names)
        self._gradients = views_of([each.gradients for each in self._shards], names)
        self._arrays = {each.name: array for each, array in arrays.items()}
        copy_arrays(self._arrays, self._parameters)
        if not write_back:
            self._arrays = {}
        if initial == "broadcast":
            self.broadcast_parameters()
        for shard in self._shards:
            # A single bucket has nothing to overlap with: a call in this thread is quicker.
            shard.begin(state, self._settings, async_op=len(buckets) > 1)

    @property
    def parameters(self) -> Mapping[str, Array]:
        """The parameters of the whole model by name: views of registered memory. Local.

        Steps write them. To change a parameter by hand, change it on all ranks and call `broadcast_parameters`.
        """
        return MappingProxyType(self._parameters)

    @property
    def gradients(self) -> Mapping[str, Array]:
        """The gradients by name: views of registered memory. Local.

        A gradient that is written to its view needs no copy. After a step, the values are undefined.
        """
        return MappingProxyType(self._gradients)

    @property
    def steps(self) -> int:
        """Number of steps so far. It includes the steps of a loaded state. Local."""
        return self._steps

    @property
    def blocked_seconds(self) -> float:
        """Seconds that this rank waited in `step` for its buckets. Local."""
        return self._blocked

    @property
    def memory_bytes(self) -> int:
        """Bytes of state on this rank, with float32 masters. Local."""
        return sum(part.nbytes for _, _, part in self._own_state())

    def step(self, grads: Mapping[str, Any] | None = None) -> None:
        """Reduce the gradients and update the parameters on all ranks. Collective; blocks.

        Parameters
        ----------
        grads : mapping of str to array, optional
            This rank's gradients by name, in the shape and dtype of their parameters. If an entry is None or missing, the
            gradient counts as 0. The arrays of `gradients` are not copied. Without `grads`, all gradients lie in
            `gradients`.

        Raises
        ------
        UsageError, BufferMismatch
            If a gradient is of another shape or dtype, or lies in a PyTorch parameter's ``.grad`` and not in `gradients`.
            Then nothing was sent, and nothing has changed.
        CommunicationError
            If a call fails or its timeout passes. The communicator has then failed.

        Notes
        -----
        An error that `update` raises on a rank is raised there. The other ranks wait for this rank until their timeout.
        """
        entered()
        if grads is not None:
            self._take(grads)
        elif lost := elsewhere(self._owners, self._gradients):
            raise UsageError(
                f"the gradients of {', '.join(map(repr, lost))} are not in `gradients`: zero_grad() and backward() made "
                "new tensors in .grad; give them, by step({name: parameter.grad, ...})"
            )
        begun, updating = perf_counter(), 0.0
        works = [shard.reduce() for shard in self._shards]
        collections = []
        for shard, work in zip(self._shards, works, strict=True):
            _finish(work)
            update_begun = perf_counter()
            shard.update(self._update, self._steps + 1)
            updating += perf_counter() - update_begun
            collections.append(shard.collect())
        for work in collections:
            _finish(work)
        self._blocked += perf_counter() - begun - updating
        self._steps += 1
        copy_arrays(self._parameters, self._arrays)

    def _take(self, grads: Mapping[str, Any]) -> None:
        """Check all gradients, and then copy them."""
        given: dict[str, Array] = {}
        for name, grad in grads.items():
            check_known("gradient", name, self._gradients)
            if grad is not None:
                given[name] = fitting(name, grad, self._gradients[name])
        for name, view in self._gradients.items():
            array = given.get(name, 0)
            if array is not view:
                np.copyto(view, array, casting="unsafe")

    def _own_state(self) -> Iterator[tuple[Bucket, str, Array]]:
        """Yield this rank's parts of the state, each with its bucket and its name."""
        for shard in self._shards:
            for what, part in shard.arrays().items():
                yield shard.parameters.bucket, what, part

    def broadcast_parameters(self, root: int = 0) -> None:
        """Give all ranks the parameters of `root`. Collective; blocks.

        They are taken from the arrays that this object was made with, or from `parameters` if ``write_back=False``. Float32
        masters are made anew from them. Other state stays.

        Raises
        ------
        UsageError
            If `root` is not a rank.
        CommunicationError
            If a call fails or its timeout passes.
        """
        entered()
        copy_arrays(self._arrays, self._parameters)
        self._group.broadcast_each([shard.parameters.memory for shard in self._shards], root)
        for shard in self._shards:
            shard.take_masters()
        copy_arrays(self._parameters, self._arrays)

    def gather_state(self, root: int | None = None) -> Saved | None:
        """Return the whole state, to save it. Collective, with the same root; blocks.

        The result does not depend on the number of ranks. Parameters are not in it, because every rank has them.

        Parameters
        ----------
        root : int, optional
            The only rank that gets the state. None gives it to all ranks.

        Returns
        -------
        dict or None
            ``"steps"`` is an int. ``"state"`` has a dict for each parameter: by the names of the state, arrays in the
            parameter's shape. Float32 masters are named ``"master"``. If there is a root, the others get None.

        Raises
        ------
        UsageError
            If `root` is not a rank.
        CommunicationError
            If a call fails or its timeout passes.
        """
        entered()
        group = self._group
        state: dict[str, dict[str, Array]] = {name: {} for name in self._parameters}
        for bucket, what, part in self._own_state():
            full = group.all_gather(part) if root is None else group.gather(part, root)
            if full is not None:
                for name, view in bucket.views(full.reshape(-1)).items():
                    state[name][what] = view.copy()
        if root is not None and group.rank != root:
            return None
        return {"steps": self._steps, "state": state}

    def load_state(self, saved: Saved | None, root: int | None = None) -> None:
        """Take over a state that `gather_state` returned on any number of ranks. Collective; blocks.

        Restore the parameters first: before this object is made, or by `broadcast_parameters`.

        Parameters
        ----------
        saved : dict or None
            The result of `gather_state` for the same model and update. If there is a root, only that rank uses it.
        root : int, optional
            The only rank that has the state. None means that all ranks have it. They then compare only the number of
            steps.

        Raises
        ------
        UsageError
            If the saved state is of another model or update. The present state stays as it was.
        RankMismatch
            On the other ranks, if one raises an error. On all ranks, if roots or steps differ.
        CommunicationError
            If a call fails or its timeout passes.
        """
        group, rank, size = self._group, self._group.rank, self._group.size

        def make() -> tuple[Saved | None, dict[str, str]]:
            if root is not None and root not in range(size):
                raise UsageError(f"root is {root!r}; give a rank from 0 to {size - 1}, or None")
            full = self._checked(saved) if root in (None, rank) else None
            steps = full["steps"] if root is None and full is not None else None
            return full, texts({}, {"root": root, "steps": steps})

        full = agree(group, make)
        for bucket, what, part in self._own_state():
            parts: Array | None = None
            if full is not None:
                parts = np.zeros((size, part.size), part.dtype)
                for name, view in bucket.views(parts.reshape(-1)).items():
                    np.copyto(view, full["state"][name][what])
            if root is not None:
                out = np.empty_like(part)
                group.scatter(parts, root, out=out)
                part[:] = out
            elif parts is not None:
                part[:] = parts[rank]
        steps = 0 if full is None else int(full["steps"])
        if root is not None:
            steps = group.broadcast_object(steps, root)
        self._steps = steps

    def _checked(self, saved: Saved | None) -> Saved:
        """Return the saved state if it is of this model and update. Else raise UsageError."""
        if not isinstance(saved, Mapping) or not {"steps", "state"} <= set(saved):
            raise UsageError("the saved state is missing; give the result of gather_state()")
        for bucket, what, part in self._own_state():
            for each in bucket.parameters:
                array = saved["state"].get(each.name, {}).get(what)
                if not isinstance(array, np.ndarray):
                    raise UsageError(
                        f"the saved state has no {what!r} of {each.name!r}; "
                        "make the optimiser with the update and masters= of the saved one"
                    )
                if array.shape != each.shape or array.dtype != part.dtype:
                    raise UsageError(
                        f"the saved {what!r} of {each.name!r} is {array.dtype} {array.shape}; "
                        f"this model's is {part.dtype} {each.shape}"
                    )
        return dict(saved)


def _dtypes(state: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {
            name: "that of the parameter" if dtype is None else str(np.dtype(dtype))
            for name, dtype in state.items()
        }
    except (TypeError, AttributeError) as error:
        raise UsageError(f"state is {state!r}; give a dtype by name, or a function") from error


def _finish(work: Any) -> None:
    """Wait for a call, unless it is done."""
    if not isinstance(work, np.ndarray):
        work.wait()
