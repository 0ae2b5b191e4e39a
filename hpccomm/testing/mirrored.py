"""A communicator that takes NumPy arrays and calls another one with device arrays instead.

So the tests of host arrays become tests of device arrays. `hpccomm.testing.on_device` returns it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

import hpccomm
from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import ConfigurationError
from hpccomm.runtime.work import Work
from hpccomm.testing.mirrored_call import MirroredWork, Use, wait_for
from hpccomm.testing.mirrors import Mirrors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hpccomm.communicator import Communicator
    from hpccomm.testing.mirrors import Array

MIRRORED = (*CALLS, "send", "recv", "send_recv")
"""The calls that take arrays."""

PLACES = {"send_recv": (0, 2), "barrier": ()}
"""Where a call has arrays among its positional arguments, if not first."""


def on_device(comm: Communicator) -> Communicator:
    """Return `comm` for NumPy arrays whose contents go over its device path. Local.

    Each NumPy array that is given to a call has a twin in device memory, at the same place of its
    base, with the same strides. The twin gets the array's contents before the call, and the array
    the result's after it. A call that is not asynchronous has finished when it returns; all else is
    as `comm` does it. What `comm` makes (groups, works, plans, batches) is wrapped likewise.

    Parameters
    ----------
    comm : Communicator
        One with a device path.

    Returns
    -------
    Communicator
        It behaves like one.

    Raises
    ------
    ConfigurationError
        If `comm` has no device path.
    """
    device = comm.device
    if comm.backends["cuda"] is None or device is None:
        raise ConfigurationError(
            f"communicator {comm.name!r} has no way for device arrays; make it where there is one"
        )
    return cast("Communicator", OnDevice(comm, Mirrors(device)))


class OnDevice:
    """See `on_device`."""

    def __init__(self, comm: Communicator, mirrors: Mirrors) -> None:
        self._comm = comm
        self.mirrors = mirrors
        self.under_way: list[MirroredWork] = []
        self.collecting: DeviceBatch | None = None
        self._node_comm: OnDevice | None = None

    def __getattr__(self, name: str) -> Any:
        if name in MIRRORED:
            return lambda *args, **keywords: self._call(name, args, keywords)
        return getattr(self._comm, name)

    def __repr__(self) -> str:
        return f"<on the device: {self._comm!r}>"

    # Calls.

    def _use(
        self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Use, tuple[Any, ...], dict[str, Any]]:
        use = Use(self.mirrors, name)
        places = PLACES.get(name, (0,))
        given = tuple(use.twin(x) if i in places else x for i, x in enumerate(args))
        named = {key: use.twin(x) if key in ("x", "out") else x for key, x in keywords.items()}
        return use, given, named

    def _call(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self._settle()
        use, given, named = self._use(name, args, keywords)
        return self._issue(use, lambda: getattr(self._comm, name)(*given, **named))

    def _issue(self, use: Use, call: Callable[[], Any]) -> Any:
        """Make a call, and have its result on the host unless it is asynchronous or in a batch."""
        mirrors = self.mirrors
        with mirrors.current():
            use.begin()
            try:
                result = call()
                if isinstance(result, Work):
                    work = MirroredWork(result, [(use, result)], mirrors)
                    self.under_way.append(work)
                    return work
                if self.collecting is not None:
                    self.collecting.add(use, result)
                    return use.named(result)
                wait_for(mirrors)
            except BaseException:
                use.end(None, failed=True)
                raise
        return use.end(result)

    def _settle(self) -> None:
        """Bring the results of asynchronous calls to the host that are over by now."""
        self.under_way = [work for work in self.under_way if not work.settled()]

    def plan(self, collective: str, *args: Any, **keywords: Any) -> Any:
        """Plan a call on the twins."""
        use, given, named = self._use(collective, args, keywords)
        planned = self._comm.plan(collective, *given, **named)
        return lambda: self._issue(use, planned)

    def explain(self, collective: str, *args: Any, **keywords: Any) -> Any:
        """Explain a call on the twins."""
        _, given, named = self._use(str(collective), args, keywords)
        return self._comm.explain(collective, *given, **named)

    def batch(self, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return a batch of calls on twins."""
        return DeviceBatch(self, self._comm.batch(async_op, timeout))

    def empty(self, shape: Any, dtype: Any, *, device: int | None = None) -> Array:
        """Return an array of the host whose twin lies in registered device memory."""
        with self.mirrors.current():
            memory = self._comm.empty(
                shape, dtype, device=self.mirrors.device if device is None else device
            )
        x = np.empty(memory.shape, memory.dtype)
        self.mirrors.of(x, memory.reshape(-1).view(np.uint8) if memory.size else memory)
        return x

    # Communicators made of it.

    def _wrapped(self, made: Communicator | None) -> OnDevice | None:
        return None if made is None else OnDevice(made, self.mirrors)

    def split(self, *args: Any, **keywords: Any) -> Any:
        """Split, and wrap the group."""
        return self._wrapped(self._comm.split(*args, **keywords))

    def split_ranks(self, *args: Any, **keywords: Any) -> Any:
        """Split, and wrap the group."""
        return self._wrapped(self._comm.split_ranks(*args, **keywords))

    def shrink(self, *args: Any, **keywords: Any) -> Any:
        """Shrink, and wrap the result."""
        return self._wrapped(self._comm.shrink(*args, **keywords))

    def dup(self) -> Any:
        """Duplicate, and wrap the duplicate."""
        return self._wrapped(self._comm.dup())

    @property
    def node_comm(self) -> Any:
        """The ranks of this node, wrapped once."""
        if self._node_comm is None:
            self._node_comm = self._wrapped(self._comm.node_comm)
        return self._node_comm

    def another(self, **keywords: Any) -> Any:
        """Make one like it, from nothing; collective."""
        backends = self._comm.backends
        backend = "nccl" if backends["cuda"] == "nccl" else str(backends["host"])
        comm = hpccomm.new_comm(backend, **{"mpi_comm": self._comm.mpi_comm, **keywords})
        return self._wrapped(comm)

    # The end.

    def finalize(self) -> None:
        """Finalize; what was under way has its results on the host then."""
        self._comm.finalize()
        self._settle()

    def __enter__(self) -> OnDevice:
        self._comm.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._comm.__exit__(kind, error, where)
        self._settle()


class DeviceBatch:
    """A batch of calls on twins, whose results are on the host after it, or after its work's wait."""

    def __init__(self, comm: OnDevice, batch: Any) -> None:
        self._comm = comm
        self._batch = batch
        self._issued: list[tuple[Use, Any]] = []
        self.work: MirroredWork | None = None

    def add(self, use: Use, result: Any) -> None:
        """Record a call with its `result`."""
        self._issued.append((use, result))

    def __enter__(self) -> DeviceBatch:
        self._batch.__enter__()
        self._comm.collecting = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        mirrors = self._comm.mirrors
        self._comm.collecting = None
        try:
            with mirrors.current():
                self._batch.__exit__(kind, error, where)
                if self._batch.work is not None:
                    self.work = MirroredWork(self._batch.work, self._issued, mirrors)
                    self._comm.under_way.append(self.work)
                    return
                wait_for(mirrors)
        except BaseException:
            self._end(failed=True)
            raise
        self._end(failed=kind is not None)

    def _end(self, *, failed: bool) -> None:
        for use, result in self._issued:
            use.end(result, failed=failed)
