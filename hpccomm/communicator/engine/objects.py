"""Calls on Python objects."""

from collections.abc import Sequence
from typing import Any

from hpccomm.communicator import object_transfer as transfer
from hpccomm.communicator.core import Core
from hpccomm.communicator.engine.messages import checked_tag
from hpccomm.communicator.lanes.lane import OBJECTS, wire_tag
from hpccomm.communicator.object_transfer import Frame, ObjectTransfer
from hpccomm.contracts.transport import Steps
from hpccomm.errors import UsageError
from hpccomm.runtime.operation import Operation
from hpccomm.topology import check_rank


class ObjectCalls:
    """Carries out calls on any object that can be pickled."""

    def __init__(self, core: Core) -> None:
        self._core = core
        dispatch = core.lanes.host.dispatch
        self._transfer = ObjectTransfer(core.control, dispatch, core.backend.collectives)

    def broadcast(self, value: Any, root: int, timeout: float | None) -> Any:
        """Return the root's object."""
        with self._core.calls.one_call():
            origin, at_root = self._root(root)
            frame, error = _dumped(value) if at_root else (Frame(), None)
            steps = self._transfer.broadcast(frame, origin)
            self._run("broadcast_object", frame, steps, timeout, error)
            return value if at_root else self._loaded("broadcast_object", frame, origin)

    def all_gather(self, value: Any, timeout: float | None) -> list[Any]:
        """Return every rank's object."""
        with self._core.calls.one_call():
            frame, error = _dumped(value)
            frames: list[Frame] = []
            steps = self._transfer.all_gather(frame, frames)
            self._run("all_gather_object", frame, steps, timeout, error)
            return self._all_loaded("all_gather_object", frames)

    def gather(self, value: Any, root: int, timeout: float | None) -> list[Any] | None:
        """Return every rank's object at the root."""
        with self._core.calls.one_call():
            target, at_root = self._root(root)
            frame, error = _dumped(value)
            frames: list[Frame] = []
            steps = self._transfer.gather(frame, frames, target)
            self._run("gather_object", frame, steps, timeout, error)
            return self._all_loaded("gather_object", frames) if at_root else None

    def scatter(self, values: Sequence[Any] | None, root: int, timeout: float | None) -> Any:
        """Return this rank's one of the root's objects."""
        with self._core.calls.one_call():
            origin, at_root = self._root(root)
            error, frames = None, list[Frame]()
            if at_root:
                frames, error = _dumped_each(values, self._core.backend.size)
            frame = Frame()
            steps = self._transfer.scatter(frames, frame, origin)
            self._run("scatter_object", frame, steps, timeout, error)
            return self._loaded("scatter_object", frame, origin)

    def send(self, value: Any, dst: int, tag: int, timeout: float | None) -> None:
        """Send an object to one rank."""
        with self._core.calls.one_call():
            peer = check_rank("dst", dst, self._core.backend.size)
            wire = wire_tag(checked_tag(self._core, tag), OBJECTS)
            frame = transfer.dump(value)
            steps = transfer.send(self._core.backend.messages, frame, peer, wire)
            self._run("send_object", frame, steps, timeout, ordered=False)

    def recv(self, src: int, tag: int, timeout: float | None) -> Any:
        """Return an object that one rank sends."""
        with self._core.calls.one_call():
            peer = check_rank("src", src, self._core.backend.size)
            wire = wire_tag(checked_tag(self._core, tag), OBJECTS)
            frame = Frame()
            steps = transfer.receive(self._core.backend.messages, frame, peer, wire)
            self._run("recv_object", frame, steps, timeout, ordered=False)
            return self._loaded("recv_object", frame, peer)

    def _root(self, root: object) -> tuple[int, bool]:
        """Return the root, and whether this rank is it."""
        checked = check_rank("root", root, self._core.backend.size)
        return checked, checked == self._core.backend.rank

    def _loaded(self, name: str, frame: Frame, rank: int) -> Any:
        """Return the object that `rank` sent; an error has the call's facts."""
        with self._core.calls.part_of(name, frame.nbytes):
            return frame.load(rank)

    def _all_loaded(self, name: str, frames: list[Frame]) -> list[Any]:
        return [self._loaded(name, each, rank) for rank, each in enumerate(frames)]

    def _run(
        self,
        name: str,
        frame: Frame,
        steps: Steps,
        timeout: float | None,
        error: UsageError | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        """Run a call; then raise what this rank's object is refused for, as all ranks know."""
        core = self._core
        limit = core.limit(timeout)
        core.intake.refuse_batch(name, ", which takes arrays only")
        core.calls.operate(Operation(name, frame.nbytes, lambda: steps, (frame,), ordered), limit)
        if error is not None:
            raise error


def _dumped(value: Any) -> tuple[Frame, UsageError | None]:
    try:
        return transfer.dump(value), None
    except UsageError as error:
        return transfer.failed(error), error


def _dumped_each(values: Any, size: int) -> tuple[list[Frame], UsageError | None]:
    try:
        objects = list(values)
    except TypeError:
        wrong = UsageError(f"values is {values!r}; give a sequence of {size} objects")
        return [transfer.failed(wrong)] * size, wrong
    if len(objects) != size:
        wrong = UsageError(f"values has {len(objects)} objects; give {size}, one for each rank")
        return [transfer.failed(wrong)] * size, wrong
    pairs = [_dumped(value) for value in objects]
    errors = [error for _, error in pairs if error is not None]
    return [frame for frame, _ in pairs], errors[0] if errors else None
