"""What every call of a communicator has in common: how arrays become an operation."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.backends.control import Control
from hpccomm.communicator.device_call import DeviceCall
from hpccomm.communicator.devices import Devices
from hpccomm.communicator.in_place import in_place as out_is_x_or_block
from hpccomm.communicator.resolving import NO_LISTS, CallArguments, Lists, Resolved, resolve
from hpccomm.contracts.backend import Backend
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.device import DeviceDispatch, DeviceRoute
from hpccomm.dispatch import HostDispatch, Route
from hpccomm.dispatch.policy import AUTO
from hpccomm.errors import BackendUnavailable, HpccommError, RankMismatch, UsageError
from hpccomm.memory.cuda import streams
from hpccomm.memory.cuda.arrays import DeviceArray
from hpccomm.memory.views import (
    View,
    check_dtype,
    check_layout,
    empty_like_kind,
    flat,
    overlap,
    view,
)
from hpccomm.runtime.engine import CallEngine, Label, Operation
from hpccomm.runtime.stats import Tally
from hpccomm.settings import Settings, check_bool, check_seconds

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator
    from hpccomm.communicator.windows import Window

Array = NDArray[Any]

Make = Callable[
    [Backend, str, Settings, int | None, Devices | str, tuple[int, ...]], "Communicator"
]
"""Makes the communicator over a backend; see `making.make`."""

RECIPES = 1024
"""Decisions that are kept; a program that asks for more different calls decides again."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was decided for calls with the same arguments but for the memory."""

    demand: Resolved
    way: Route | DeviceRoute
    tally: Tally
    label: Label


@dataclass(slots=True)
class Bound:
    """A call that is ready to go: checked, decided, with its memory.

    Attributes
    ----------
    stream : object
        For arrays in device memory, the stream that the user gave.
    """

    recipe: Recipe
    send: View | None
    recv: View | None
    result: Any
    keep: tuple[object, ...]
    stream: object = None


class Collector(Protocol):
    """Takes calls instead of their being issued: a batch."""

    def add(self, call: Operation | DeviceCall) -> None:
        """Take a call."""
        ...


@dataclass(slots=True)
class Capture:
    """Takes one call instead of its being issued: for a plan or an explanation.

    Attributes
    ----------
    thread : int
        Whose calls; another thread's are issued, or refused.
    """

    thread: int
    bound: Bound | None = None


class Core:
    """The state of a communicator, and the way of a collective call through it."""

    def __init__(
        self,
        backend: Backend,
        calls: CallEngine,
        control: Control,
        settings: Settings,
        device: int | None,
        node_comm: "Communicator | None",
        path: HostDispatch,
        devices: Devices | str,
        make: Make,
    ) -> None:
        self.rank = backend.rank
        self.size = backend.size
        self._backend = backend
        self._calls = calls
        self._control = control
        self._settings = settings
        self._path = path
        self._devices = devices  # or why device arrays cannot be used
        self._recipes: dict[object, Recipe] = {}
        self._device = device
        self._windows: list[Window] = []  # in the order in which all ranks made them
        self._groups = 0  # how many were made of this one, by all its ranks
        self._shrunk: Counter[tuple[int, ...]] = Counter()  # and by all but those
        self._node_comm = node_comm
        self._make = make
        self._batch: Collector | None = None
        self._capture: Capture | None = None

    def _collective(
        self,
        name: str,
        x: Any,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        stream: object = None,
        *,
        op: Any = None,
        root: Any = None,
        lists: Lists = NO_LISTS,
        exclusive: bool = False,
        deterministic: bool = False,
    ) -> Any:
        """Carry out one collective call."""
        calls = self._calls
        calls.enter()
        try:
            limit = calls.timeout if timeout is None else self._timeout(timeout)
            recipe, a, b = self._recipe(
                name, x, out, op, root, lists, exclusive, algorithm, deterministic
            )
            bound = self._with_memory(recipe, x, out, a, b, stream)
            return self._issue(bound, async_op, limit)
        finally:
            calls.leave()

    @contextmanager
    def _one_call(self) -> Iterator[None]:
        """Hold the communicator for one call."""
        self._calls.enter()
        try:
            yield
        finally:
            self._calls.leave()

    def _issue(self, bound: Bound, async_op: bool, limit: float) -> Any:
        recipe = bound.recipe
        if async_op is not False:
            check_bool("async_op", async_op)
        if self._capture is not None and self._capture.thread == get_ident():
            self._capture.bound = bound
            return None
        way = recipe.way
        send: Any = bound.send
        recv: Any = bound.recv
        if way.__class__ is DeviceRoute:
            return self._issue_on_device(bound, way, async_op, limit)
        assert isinstance(way, Route)
        if self._batch is not None:
            self._collect(_operation(bound, way), async_op)
            return bound.result
        if async_op:
            return self._calls.start(_operation(bound, way), limit, bound.result)
        if way.run is not None:
            self._calls.block(recipe.label, recipe.tally, way.run, send, recv, limit)
        else:
            self._calls.run(recipe.label, recipe.tally, way.start, send, recv, bound.keep, limit)
        return bound.result

    def _issue_on_device(self, bound: Bound, way: DeviceRoute, async_op: bool, limit: float) -> Any:
        devices, recipe = self._devices, bound.recipe
        assert isinstance(devices, Devices)
        if not async_op and self._batch is None and devices.enqueue(way, bound, limit):
            return bound.result
        launched = devices.launched(way, recipe.label, recipe.tally, bound)
        if self._batch is not None:
            self._collect(launched, async_op)
            return bound.result
        return devices.issue(launched, async_op, limit)

    def _collect(self, call: Operation | DeviceCall, async_op: bool) -> None:
        assert self._batch is not None
        if async_op:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        self._batch.add(call)

    def _captured(self, name: str, args: Any, keywords: Any) -> Bound:
        """Check and decide a call without issuing it. Local."""
        call = getattr(self, name)
        try:
            inspect.signature(call).bind(*args, **keywords)
        except TypeError as error:
            raise UsageError(f"{name}: {error}; give the arguments of {name}") from None
        with self._one_call():
            if self._capture is not None:
                raise UsageError(f"communicator {self._calls.name!r} is in use by another thread")
            self._capture = capture = Capture(get_ident())
        try:
            call(*args, **keywords)
        finally:
            self._capture = None
        assert capture.bound is not None
        return capture.bound

    def _recipe(
        self,
        name: str,
        x: Any,
        out: Any,
        op: Any = None,
        root: Any = None,
        lists: Lists = NO_LISTS,
        exclusive: bool = False,
        algorithm: str | None = None,
        deterministic: bool = False,
    ) -> tuple[Recipe, View | None, View | None]:
        """Check a call's arguments and decide its way, or find what was decided before."""
        a: View | None
        b: View | None
        a = x if x.__class__ is np.ndarray or x is None else view(x, "x")
        b = out if out.__class__ is np.ndarray or out is None else view(out, "out")
        on_device = a.__class__ is DeviceArray or b.__class__ is DeviceArray
        if on_device:
            self._check_devices(a, b)
        in_place = (
            b is not None
            and a is not None
            and overlap(a, b)
            and out_is_x_or_block(CALLS[name], name, a, b, self._backend.rank, root, lists.counts)
        )
        key: object = (
            name,
            on_device,
            None if a is None else (a.dtype, a.shape),
            None if b is None else (b.dtype, b.shape),
            op,
            root,
            root.__class__,  # True is equal to 1
            lists,
            exclusive,
            algorithm,
            deterministic,
            in_place,
        )
        try:
            recipe = self._recipes.get(key)
        except TypeError:  # an argument that cannot be hashed, such as a callable object
            recipe = None
            key = None  # nothing is kept
        if recipe is None:
            asked = CallArguments(
                name,
                self._backend.rank,
                self._backend.size,
                None if a is None else (a.dtype, a.shape),
                None if b is None else (b.dtype, b.shape),
                op,
                root,
                lists,
                exclusive,
                in_place,
            )
            recipe = self._decide(asked, algorithm, deterministic, on_device)
            if key is not None:
                if len(self._recipes) >= RECIPES:
                    self._recipes.clear()
                self._recipes[key] = recipe
        return recipe, a, b

    def _check_devices(self, x: View | None, out: View | None) -> None:
        """Raise unless device arrays can be used here, and these lie on this rank's device."""
        number = None if isinstance(self._devices, str) else self._devices.device
        for array in (x, out):
            # The shortest way: two arrays that fit.
            if array is not None and (array.__class__ is not DeviceArray or array.device != number):
                self._refuse_devices(x, out)

    def _refuse_devices(self, x: View | None, out: View | None) -> None:
        devices = self._devices
        if isinstance(devices, str):
            raise BackendUnavailable(
                f"communicator {self._calls.name!r} takes no device arrays: {devices}. "
                "Or copy them to NumPy arrays first"
            )
        for which, array in (("x", x), ("out", out)):
            if array is None:
                continue
            if not isinstance(array, DeviceArray):
                other = "out" if which == "x" else "x"
                raise UsageError(
                    f"{which} is in host memory and {other} on a device; give both of one kind"
                )
            if array.device != devices.device and array.nbytes:
                raise UsageError(
                    f"{which} lies on device {array.device} and communicator {self._calls.name!r} "
                    f"uses device {devices.device}; make arrays there, for example after "
                    "cupy.cuda.Device(comm.device).use(), or give new_comm another device"
                )

    def _with_memory(
        self,
        recipe: Recipe,
        x: Any,
        out: Any,
        a: View | None,
        b: View | None,
        stream: object,
    ) -> Bound:
        demand = recipe.demand
        on_device = recipe.way.__class__ is DeviceRoute
        if stream is not None and not on_device:
            self._refuse_stream(stream)
        send: Any = a
        if a is not None and (demand.send == "x" or demand.recv == "x"):
            if isinstance(a, DeviceArray):
                if not (a.contiguous and a.writable):
                    check_layout(a, "x", written=demand.written)
            else:
                flags = a.flags
                if not flags.c_contiguous or (demand.written and not flags.writeable):
                    check_layout(a, "x", written=demand.written)
                if a.ndim != 1:
                    send = a.reshape(-1)
        result: Any
        recv: Any
        if demand.recv == "x":
            result, recv = x, send
        elif demand.recv is None:
            result, recv = None, None
        else:
            if demand.recv == "new":
                result = self._new_like(x, demand, stream, on_device=on_device)
                b = result if result.__class__ is np.ndarray else view(result, "out")
                if demand.zeroed:
                    self._clear(b, x, stream)
            else:
                result = out
                assert b is not None
                check_layout(b, "out", written=True)
            recv = b if isinstance(b, DeviceArray) else flat(b)
        if demand.send != "x":
            send = None
        return Bound(recipe, send, recv, result, (x, result), stream)

    def _new_like(self, x: Any, demand: Resolved, stream: object, *, on_device: bool) -> Any:
        """Return a new array for a result, of the kind of x."""
        if not on_device:
            return empty_like_kind(x, demand.shape, demand.call.dtype)
        assert isinstance(self._devices, Devices)
        return self._devices.new_like(x, demand.shape, demand.call.dtype, stream)

    def _clear(self, new: View, x: Any, stream: object) -> None:
        """Fill a new array with zeros."""
        if not isinstance(new, DeviceArray):
            flat(new).view(np.uint8).fill(0)
            return
        assert isinstance(self._devices, Devices)
        self._devices.clear(new, x, stream)

    def _decide(
        self,
        asked: CallArguments,
        algorithm: str | None,
        deterministic: bool,
        on_device: bool,
    ) -> Recipe:
        for which, array in (("x", asked.x), ("out", asked.out)):
            if array is not None:
                check_dtype(which, array[0])
        demand = resolve(CALLS[asked.name], asked)
        way = self._way(demand, algorithm, deterministic, on_device)
        nbytes = demand.call.nbytes
        tally = self._calls.stats.tally(asked.name, nbytes)
        return Recipe(demand, way, tally, (asked.name, nbytes))

    def _way(
        self, demand: Resolved, algorithm: str | None, deterministic: bool, on_device: bool
    ) -> Route | DeviceRoute:
        if not isinstance(deterministic, bool):
            raise UsageError(f"deterministic is {deterministic!r}; give True or False")
        if algorithm is not None and not isinstance(algorithm, str):
            raise UsageError(f"algorithm is {algorithm!r}; give a name, such as 'auto'")
        path: HostDispatch | DeviceDispatch = self._path
        if on_device:
            assert isinstance(self._devices, Devices)
            path = self._devices.path
        if algorithm is None:
            # The communicator's own setting holds for the calls that have such an algorithm.
            algorithm = self._settings.algorithm
            if algorithm not in path.applicable(demand.call, deterministic):
                algorithm = AUTO
        return path.decide(demand.call, algorithm, deterministic)

    def _check_stream(self, stream: object, array: View | None) -> None:
        """Raise unless `stream` is one, for an array on a device."""
        if not isinstance(array, DeviceArray):
            self._refuse_stream(stream)
        streams.given(stream)

    def _refuse_stream(self, stream: object) -> NoReturn:
        raise UsageError(f"stream is {stream!r}; it is for device arrays, and this call has none")

    def _timeout(self, timeout: float | None) -> float:
        if timeout is None:
            return self._calls.timeout
        if self._batch is not None:
            raise UsageError(f"timeout is {timeout!r} within a batch; give it to batch() itself")
        return check_seconds("timeout", timeout)

    def _agree(self, what: str, mine: dict[str, object], error: HpccommError | None) -> None:
        """Raise on every rank unless all bring the same; a rank with an error raises that."""
        with self._calls.told(what, 0):
            differing = self._control.differing(json.dumps(mine, sort_keys=True).encode())
            if error is not None:
                raise error
            if differing:
                told = "; ".join(f"rank {r}: {text.decode()}" for r, text in differing.items())
                raise RankMismatch(
                    f"{what}: the ranks of communicator {self._calls.name!r} ask for different "
                    f"things ({told}); give the same on all ranks",
                    ranks=tuple(differing),
                )

    def _polled(
        self, operation: Operation, result: Any, async_op: bool, timeout: float | None
    ) -> Any:
        """Issue an operation that is no collective of the table."""
        limit = self._timeout(timeout)
        check_bool("async_op", async_op)
        if self._batch is not None:
            self._collect(operation, async_op)
            return result
        if async_op:
            return self._calls.start(operation, limit, result)
        self._calls.operate(operation, limit)
        return result


def _operation(bound: Bound, way: Route) -> Operation:
    """Return a call on host arrays as something polled."""
    send, recv = bound.send, bound.recv
    assert not isinstance(send, DeviceArray)
    assert not isinstance(recv, DeviceArray)
    return Operation(*bound.recipe.label, lambda: way.start(send, recv), bound.keep)
