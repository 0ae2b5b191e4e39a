"""The communicator, put together."""

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

from hpccomm.communicator.collectives import Collectives
from hpccomm.communicator.core import Bound, Core
from hpccomm.communicator.device_call import DeviceCall
from hpccomm.communicator.devices import Devices
from hpccomm.communicator.groups import Groups
from hpccomm.communicator.memory import Memory
from hpccomm.communicator.objects import Objects
from hpccomm.communicator.planning import Batch, Plan, as_one, check_planned, terms
from hpccomm.communicator.uneven import Uneven
from hpccomm.communicator.window_calls import Windows
from hpccomm.contracts.choice import Choice
from hpccomm.contracts.device import DeviceRoute
from hpccomm.dispatch.policy import Policy
from hpccomm.errors import HpccommError, UsageError
from hpccomm.runtime.engine import Operation
from hpccomm.runtime.hooks import AbortHook, Handle, Hook
from hpccomm.runtime.stats import Key, Tally
from hpccomm.runtime.work import Work
from hpccomm.settings import check_bool, check_seconds


class Communicator(Collectives, Uneven, Objects, Memory, Windows, Groups, Core):
    """A group of ranks that communicate. Made by `hpccomm.new_comm`.

    One thread at a time may call it; `abort` and `set_timeout` may be called from any. It is a
    context manager: leaving it normally finalizes it, leaving it by an exception aborts it locally.

    Attributes
    ----------
    rank, size : int
        This process's number, and the number of ranks.
    name : str
        For messages and logs.
    """

    # Facts.

    @property
    def name(self) -> str:
        """Name of the communicator."""
        return self._calls.name

    @property
    def local_rank(self) -> int:
        """Number of this rank among those of its node."""
        return self._backend.topology.local_rank(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this node."""
        return len(self._backend.topology.neighbours(self.rank))

    @property
    def node(self) -> int:
        """Number of this rank's node; nodes are numbered by their lowest rank."""
        return self._backend.topology.node_of[self.rank]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self._backend.topology.num_nodes

    @property
    def device(self) -> int | None:
        """CUDA device of this rank, or None if the process sees none."""
        return self._device

    @property
    def backends(self) -> dict[str, str | None]:
        """Names of the backends, for host and for device arrays.

        ``"cuda"`` is ``"nccl"``; ``"mpi"``, where a CUDA-aware MPI library takes device arrays as they
        are; ``"staged"``, through host memory; None where device arrays are refused.
        """
        devices = self._devices
        cuda = devices.path.name if isinstance(devices, Devices) else None
        return {"host": self._backend.name, "cuda": cuda}

    @property
    def mpi_comm(self) -> Any:
        """The mpi4py communicator that this one was made from, or None without MPI.

        That of a group is hpccomm's own: duplicate it before you use it.
        """
        return self._backend.mpi_comm

    @property
    def policy(self) -> Policy:
        """What chooses where a call says ``algorithm="auto"``: by which table, for which shape."""
        return self._path.policy

    # Deciding.

    def explain(self, collective: str, *args: Any, **keywords: Any) -> Choice:
        """Return how a call would be carried out, and why. Local: nothing is sent.

        Parameters
        ----------
        collective : str
            Name of a collective call.
        *args, **keywords
            Its arguments.

        Returns
        -------
        Choice
            Prints as a sentence.

        Raises
        ------
        UsageError
            If the call would raise it.
        """
        name = check_planned(collective)
        bound = self._captured(name, args, keywords)
        registered = self._registered(bound)
        return replace(bound.recipe.way.choice, registered=registered)

    def _registered(self, bound: Bound) -> bool:
        if isinstance(bound.recipe.way, DeviceRoute):
            assert isinstance(self._devices, Devices)
            return self._devices.registered(bound.send, bound.recv)
        return self._path.registered(bound.send, bound.recv)  # type: ignore[arg-type]  # of the host

    def plan(self, collective: str, *args: Any, **keywords: Any) -> Plan:
        """Decide, check and agree a call once, to carry it out many times. Collective; blocks.

        Parameters
        ----------
        collective : str
            Name of a collective call.
        *args, **keywords
            Its arguments; counts, where it has any, are given. The arrays are kept.

        Returns
        -------
        Plan
            Called without arguments.

        Raises
        ------
        UsageError
            If this rank's arguments do not fit.
        RankMismatch
            On every other rank then, and on all ranks if they plan different calls.
        """
        bound, error, timeout = None, None, self._calls.timeout
        async_op = bool(keywords.get("async_op", False))
        try:
            timeout = self._timeout(keywords.get("timeout"))
            bound = self._captured(check_planned(collective), args, keywords)
        except HpccommError as refused:
            error = refused
        mine: dict[str, object] = {"error": str(error)}
        if bound is not None:
            deterministic = bool(keywords.get("deterministic", False))
            recipe = bound.recipe
            choice = recipe.way.choice
            mine = terms(recipe.demand.call, choice.path, choice.algorithm, deterministic, async_op)
        with self._one_call():
            self._agree("plan", mine, error)
        assert bound is not None
        return Plan(self._planned(bound, async_op, timeout), bound.recipe.way.choice)

    def _planned(self, bound: Bound, async_op: bool, timeout: float) -> Callable[[], Any]:
        """Return what carries a planned call out."""

        def call() -> Any:
            with self._one_call():
                return self._issue(bound, async_op, timeout)

        way, devices = bound.recipe.way, self._devices
        if not isinstance(way, DeviceRoute):
            return call
        assert isinstance(devices, Devices)
        launched = devices.launched(way, bound.recipe.label, bound.recipe.tally, bound)
        devices.make_ready(launched)
        if async_op:
            return call
        return devices.repeated(
            launched,
            given=bound.stream is not None,
            limit=timeout,
            apart=lambda: self._batch is not None or self._capture is not None,
            otherwise=call,
        )

    def batch(self, async_op: bool = False, timeout: float | None = None) -> Batch:
        """Return a context manager whose calls are issued together at its end.

        Equal on all ranks that take part in its collectives. Within it, calls return what they
        always return, but arrays are filled only after it. If its body raises, nothing is issued.

        Parameters
        ----------
        async_op : bool
            Do not wait at the end; ``batch.work`` is the `Work`.
        timeout : float, optional
            Seconds for all of it; None is the communicator's. Calls within take none of their own.

        Returns
        -------
        Batch
            For a ``with`` statement.
        """
        check_bool("async_op", async_op)
        limit = self._timeout(timeout)
        return Batch(self._begin_batch, self._end_batch, async_op, limit)

    def _begin_batch(self, batch: Batch) -> None:
        """Collect calls from now on."""
        with self._one_call():
            if self._batch is not None:
                raise UsageError("batch() within a batch; end the outer one first")
            self._batch = batch

    def _end_batch(
        self, calls: tuple[Operation | DeviceCall, ...], async_op: bool, timeout: float
    ) -> Work | None:
        """Issue what was collected, if anything."""
        self._batch = None
        if not (calls or async_op):
            return None
        with self._one_call():
            devices = self._devices
            launched = tuple(each for each in calls if isinstance(each, DeviceCall))
            if launched and launched[0].way.launch is not None:
                assert isinstance(devices, Devices)
                return devices.issue_batch(launched, async_op, timeout)
            operations = tuple(each for each in calls if isinstance(each, Operation))
            if launched:
                assert isinstance(devices, Devices)
                operations = tuple(devices.operation(each, async_op) for each in launched)
            work: Work | None = self._polled(as_one(operations), None, async_op, timeout)
            return work

    # Watching.

    def stats(self) -> dict[Key, Tally]:
        """Return calls, bytes and seconds so far. Local.

        Returns
        -------
        dict of (str, str) to Tally
            By call and size class, such as ``("all_reduce", "to 1 KiB")``.
        """
        return self._calls.stats.snapshot()

    def set_timeout(self, timeout: float) -> None:
        """Set the deadline of later calls. Local; from any thread.

        Parameters
        ----------
        timeout : float
            Seconds, ``math.inf`` for none.
        """
        self._calls.timeout = check_seconds("timeout", timeout)

    def register_pre_hook(self, hook: Hook) -> Handle:
        """Have ``hook(info)`` called before each call. Local.

        Parameters
        ----------
        hook : callable
            Takes a `CallInfo`.

        Returns
        -------
        Handle
            Its ``remove()`` takes the hook off.
        """
        return self._calls.pre_hooks.register(hook)

    def register_post_hook(self, hook: Hook) -> Handle:
        """Have ``hook(info)`` called when a call has ended. Local.

        Of an asynchronous call, it is called from whichever thread moves it on; it must not wait
        for another one.

        Parameters
        ----------
        hook : callable
            Takes a `CallInfo`.

        Returns
        -------
        Handle
            Its ``remove()`` takes the hook off.
        """
        return self._calls.post_hooks.register(hook)

    def register_abort_hook(self, hook: AbortHook) -> Handle:
        """Have ``hook(error)`` called once the communicator fails or is aborted. Local.

        Parameters
        ----------
        hook : callable
            Takes the error.

        Returns
        -------
        Handle
            Its ``remove()`` takes the hook off.
        """
        return self._calls.abort_hooks.register(hook)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if error is None:
            self.finalize()
        else:
            self.abort()

    def __repr__(self) -> str:
        told = ", ".join(f"{kind} over {name}" for kind, name in self.backends.items() if name)
        return f"<hpccomm.Communicator {self.name!r}: rank {self.rank} of {self.size}, {told}>"
