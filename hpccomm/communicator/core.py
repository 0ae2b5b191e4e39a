"""What every call of a communicator has in common: how arrays become an operation."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpccomm.algorithms.partition import offsets
from hpccomm.buffers import address, check_dtype, check_layout, empty_like_kind, flat, overlap, view
from hpccomm.calls import Calls, Label, Operation
from hpccomm.communicator.demands import Asked, Demand, Rule
from hpccomm.contracts.backend import Backend
from hpccomm.control import Control
from hpccomm.errors import HpccommError, RankMismatch, UsageError
from hpccomm.paths import HostPath, Way
from hpccomm.policy import AUTO
from hpccomm.settings import Settings, check_bool, check_seconds
from hpccomm.stats import Tally
from hpccomm.waiting import Steps

if TYPE_CHECKING:
    from hpccomm.communicator.communicator import Communicator
    from hpccomm.windows import Window

Array = NDArray[Any]

Make = Callable[[Backend, str, Settings, int | None], "Communicator"]
"""Makes the communicator over a backend; see `making.make`."""

RECIPES = 1024
"""Decisions that are kept; a program that asks for more different calls decides again."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was decided for calls with the same arguments but for the memory."""

    demand: Demand
    way: Way
    tally: Tally
    label: Label


@dataclass(slots=True)
class Bound:
    """A call that is ready to go: checked, decided, with its memory."""

    recipe: Recipe
    send: Array | None
    recv: Array | None
    result: Any
    keep: tuple[object, ...]

    def start(self) -> Steps:
        """Return its polled steps."""
        return self.recipe.way.start(self.send, self.recv)

    def operation(self) -> Operation:
        """Return it as something polled."""
        return Operation(*self.recipe.label, self.start, self.keep)


class Collector(Protocol):
    """Takes calls instead of their being issued: a batch."""

    def add(self, operation: Operation) -> None:
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
        calls: Calls,
        control: Control,
        settings: Settings,
        device: int | None,
        node_comm: "Communicator | None",
        path: HostPath,
        make: Make,
    ) -> None:
        self.rank = backend.rank
        self.size = backend.size
        self._backend = backend
        self._calls = calls
        self._control = control
        self._settings = settings
        self._path = path
        self._recipes: dict[object, Recipe] = {}
        self._device = device
        self._windows: list[Window] = []  # in the order in which all ranks made them
        self._groups = 0  # how many were made of this one, by all its ranks
        self._node_comm = node_comm
        self._make = make
        self._batch: Collector | None = None
        self._capture: Capture | None = None

    def _collective(
        self,
        name: str,
        rule: Rule,
        x: Any,
        out: Any = None,
        *,
        op: Any = None,
        root: Any = None,
        counts: tuple[int, ...] = (),
        recv_counts: tuple[int, ...] = (),
        exclusive: bool = False,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
        deterministic: bool = False,
        stream: object = None,
    ) -> Any:
        """Carry out one collective call."""
        calls = self._calls
        calls.enter()
        try:
            if stream is not None:
                self._refuse_stream(stream)
            limit = calls.timeout if timeout is None else self._timeout(timeout)
            recipe, a, b = self._recipe(
                name,
                rule,
                x,
                out,
                op,
                root,
                counts,
                recv_counts,
                exclusive,
                algorithm,
                deterministic,
            )
            bound = self._with_memory(recipe, x, out, a, b)
            return self._issue(bound, async_op, limit)
        finally:
            calls.leave()

    @contextmanager
    def _one_call(self, stream: object = None) -> Iterator[None]:
        """Hold the communicator for one call."""
        self._calls.enter()
        try:
            self._refuse_stream(stream)
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
        if self._batch is not None:
            self._collect(bound.operation(), async_op)
            return bound.result
        if async_op:
            return self._calls.start(bound.operation(), limit, bound.result)
        way, send, recv = recipe.way, bound.send, bound.recv
        if way.run is not None:
            self._calls.block(recipe.label, recipe.tally, way.run, send, recv, limit)
        else:
            self._calls.run(recipe.label, recipe.tally, way.start, send, recv, bound.keep, limit)
        return bound.result

    def _collect(self, operation: Operation, async_op: bool) -> None:
        assert self._batch is not None
        if async_op:
            raise UsageError("async_op is True within a batch; it is for batch() itself")
        self._batch.add(operation)

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
        rule: Rule,
        x: Any,
        out: Any,
        op: Any = None,
        root: Any = None,
        counts: tuple[int, ...] = (),
        recv_counts: tuple[int, ...] = (),
        exclusive: bool = False,
        algorithm: str | None = None,
        deterministic: bool = False,
    ) -> tuple[Recipe, Array | None, Array | None]:
        """Check a call's arguments and decide its way, or find what was decided before."""
        a = x if x.__class__ is np.ndarray or x is None else view(x, "x")
        b = out if out.__class__ is np.ndarray or out is None else view(out, "out")
        in_place = b is not None and a is not None and self._in_place(name, a, b, root, counts)
        key: object = (
            name,
            None if a is None else (a.dtype, a.shape),
            None if b is None else (b.dtype, b.shape),
            op,
            root,
            root.__class__,  # True is equal to 1
            counts,
            recv_counts,
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
            asked = Asked(
                self._backend.rank,
                self._backend.size,
                None if a is None else (a.dtype, a.shape),
                None if b is None else (b.dtype, b.shape),
                op,
                root,
                counts,
                recv_counts,
                exclusive,
                in_place,
            )
            recipe = self._decide(name, rule, asked, algorithm, deterministic)
            if key is not None:
                if len(self._recipes) >= RECIPES:
                    self._recipes.clear()
                self._recipes[key] = recipe
        return recipe, a, b

    def _with_memory(
        self, recipe: Recipe, x: Any, out: Any, a: Array | None, b: Array | None
    ) -> Bound:
        demand = recipe.demand
        if a is not None and (demand.send == "x" or demand.recv == "x"):
            flags = a.flags
            if not flags.c_contiguous or (demand.written and not flags.writeable):
                check_layout(a, "x", written=demand.written)
            if a.ndim != 1:
                a = a.reshape(-1)
        result: Any
        if demand.recv == "x":
            result, recv = x, a
        elif demand.recv is None:
            result, recv = None, None
        else:
            if demand.recv == "new":
                result = empty_like_kind(x, demand.shape, demand.call.dtype)
                b = view(result, "out")
            else:
                result = out
                assert b is not None
                check_layout(b, "out", written=True)
            recv = flat(b)
        send = a if demand.send == "x" else None
        return Bound(recipe, send, recv, result, (x, result))

    def _in_place(self, name: str, a: Array, b: Array, root: Any, counts: tuple[int, ...]) -> bool:
        """Whether out is x, or the own block of one is the other; any other overlap is refused."""
        if not overlap(a, b):
            return False
        check_layout(a, "x", written=False)
        check_layout(b, "out", written=True)
        start_x, start_out = address(a), address(b)
        if name in ("all_reduce", "scan", "all_to_all", "all_to_all_v", "reduce"):
            if name == "reduce" and root != self._backend.rank:
                return False  # out is not used
            if start_x == start_out and a.nbytes == b.nbytes:
                return True
            fits = "give out=x, or an array that shares no memory with x"
        else:
            whole, block = (b, a) if "gather" in name else (a, b)
            rooted = name in ("gather", "gather_v", "scatter", "scatter_v")
            if rooted and root != self._backend.rank:
                return False  # one of them is not used
            before = block.nbytes * self._backend.rank
            if counts:
                rows = sum(counts)
                before = offsets(counts)[self._backend.rank] * (whole.nbytes // max(rows, 1))
            if address(block) == address(whole) + before:
                return True
            fits = "give this rank's own block of the other, or an array that shares no memory"
        raise UsageError(f"x and out of {name} overlap; {fits}")

    def _decide(
        self, name: str, rule: Rule, asked: Asked, algorithm: str | None, deterministic: bool
    ) -> Recipe:
        for which, array in (("x", asked.x), ("out", asked.out)):
            if array is not None:
                check_dtype(which, array[0])
        demand = rule(asked)
        way = self._way(demand, algorithm, deterministic)
        nbytes = demand.call.nbytes
        tally = self._calls.stats.tally(name, nbytes)
        return Recipe(demand, way, tally, (name, nbytes))

    def _way(self, demand: Demand, algorithm: str | None, deterministic: bool) -> Way:
        if not isinstance(deterministic, bool):
            raise UsageError(f"deterministic is {deterministic!r}; give True or False")
        if algorithm is not None and not isinstance(algorithm, str):
            raise UsageError(f"algorithm is {algorithm!r}; give a name, such as 'auto'")
        if algorithm is None:
            # The communicator's own setting holds for the calls that have such an algorithm.
            algorithm = self._settings.algorithm
            if algorithm not in self._path.applicable(demand.call, deterministic):
                algorithm = AUTO
        return self._path.decide(demand.call, algorithm, deterministic)

    def _refuse_stream(self, stream: object) -> None:
        if stream is None:
            return
        raise UsageError(f"stream is {stream!r}; it is for device arrays, and x is a host array")

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
