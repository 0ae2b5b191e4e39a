"""Calls on Python objects: `broadcast_object` and its like, methods of `Communicator`.

Objects are pickled (protocol 5); the memory of large arrays in them is sent separately, without a copy.
Only unpickle what ranks of your own job send. These calls block.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from hpccomm.communicator import object_transfer as transfer
from hpccomm.communicator.arrivals import loaded, received_object
from hpccomm.communicator.core import Core, HasCore
from hpccomm.communicator.lanes.message import OBJECTS, wire_tag
from hpccomm.communicator.object_transfer import Frame
from hpccomm.contracts.arrivals import ANY, Anything
from hpccomm.contracts.fingerprint import CallFingerprint, compared, of_message
from hpccomm.contracts.transport import DTYPES, Steps
from hpccomm.errors import UsageError, untied
from hpccomm.reductions import PremulSum, ReduceOp, code_of, named
from hpccomm.runtime.operation import Operation
from hpccomm.topology import check_rank


def broadcast_object(
    self: HasCore, value: Any, root: int = 0, *, timeout: float | None = None
) -> Any:
    """Return the root's object on every rank. Collective; blocks.

    Parameters
    ----------
    value : object
        On the root. Other ranks do not use it.
    root : int
        The rank that has it.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    object
        On the root `value` itself.

    Raises
    ------
    UsageError
        On the root, if its object cannot be pickled; the other ranks raise `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        origin, at_root = _root(self._core, root)
        frame, error = _dumped(value) if at_root else (Frame(), None)
        steps = transfer.broadcast(self._core, frame, origin)
        label = _label("broadcast_object", frame.nbytes, origin)
        arrived = _run(self._core, label, frame, steps, timeout, error)
        return value if at_root else arrived[0]


def all_gather_object(self: HasCore, value: Any, *, timeout: float | None = None) -> list[Any]:
    """Return every rank's object, by rank, on every rank. Collective; blocks.

    Parameters
    ----------
    value : object
        This rank's.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    list of object
        By rank.

    Raises
    ------
    UsageError
        If this rank's object cannot be pickled; the other ranks raise `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        frame, error = _dumped(value)
        steps = transfer.all_gather(self._core, frame)
        label = _label("all_gather_object", frame.nbytes)
        return _run(self._core, label, frame, steps, timeout, error)


def gather_object(
    self: HasCore, value: Any, root: int = 0, *, timeout: float | None = None
) -> list[Any] | None:
    """Return every rank's object, by rank, on the root; None on other ranks. Collective; blocks.

    Parameters
    ----------
    value : object
        This rank's.
    root : int
        The rank that gets them.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    list of object, or None
        By rank on the root; None on other ranks.

    Raises
    ------
    UsageError
        If this rank's object cannot be pickled; the root raises `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        target, at_root = _root(self._core, root)
        frame, error = _dumped(value)
        steps = transfer.gather(self._core, frame, target)
        label = _label("gather_object", frame.nbytes, target)
        arrived = _run(self._core, label, frame, steps, timeout, error)
        return arrived if at_root else None


def scatter_object(
    self: HasCore, values: Sequence[Any] | None, root: int = 0, *, timeout: float | None = None
) -> Any:
    """Return the object that the root has for this rank. Collective; blocks.

    Parameters
    ----------
    values : sequence of object
        On the root, one for each rank. Other ranks do not use it.
    root : int
        The rank that has them.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    object
        On the root its own element of `values`, pickled and unpickled.

    Raises
    ------
    UsageError
        On the root, if there are more or fewer objects than ranks, or if one cannot be pickled; the
        other ranks raise `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        origin, at_root = _root(self._core, root)
        size = self._core.backend.size
        frames, error = _dumped_each(values, size) if at_root else ([], None)
        steps = transfer.scatter(self._core, frames, origin)
        label = _label("scatter_object", 0, origin)
        return _run(self._core, label, frames, steps, timeout, error)[0]


def all_reduce_object(
    self: HasCore,
    value: Any,
    op: Callable[[Any, Any], Any] = operator.add,
    *,
    timeout: float | None = None,
) -> Any:
    """Return the fold of every rank's object, on every rank. Collective; blocks.

    The fold is ``op(op(x0, x1), x2)`` and so on, always in the order of ranks. Rank 0 folds, and sends
    the result to all: `op` need not be commutative or associative, and all ranks get the same.

    Parameters
    ----------
    value : object
        This rank's. It stays as it is: the fold works on copies.
    op : callable
        ``op(a, b)`` returns the fold of two objects; it may change `a`. All ranks give the same function.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    object
        On one rank alone a copy of `value`.

    Raises
    ------
    UsageError
        If `op` is not a function, before anything is sent. On every rank, if `op` raises or makes what
        cannot be pickled. On this rank, if its object cannot be pickled; the other ranks raise
        `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    if isinstance(op, ReduceOp | PremulSum) or not callable(op):
        raise UsageError(
            f"op is {op!r}; give a function of two objects, such as operator.add, or use all_reduce, "
            "which folds arrays"
        )
    with self._core.calls.one_call():
        frame, error = _dumped(value)
        fold = transfer.Fold(op)
        steps = transfer.all_reduce(self._core, frame, fold)
        alike = {"operation": "all_reduce_object", "op": named(op), "code": code_of(op)}
        label = compared("all_reduce_object", alike, frame.nbytes)
        try:
            return _run(self._core, label, frame, steps, timeout, error)[0]
        except UsageError as refused:
            if isinstance(fold.error, Exception | None):
                raise refused from fold.error or refused.__cause__
            raise fold.error from None  # such as Ctrl-C, which the others know by now
        finally:
            fold.error = None  # its traceback may lead to this frame, which would keep `value`


def all_to_all_object(
    self: HasCore, values: Sequence[Any], *, timeout: float | None = None
) -> list[Any]:
    """Send each rank an object, and return the objects of all ranks for this one. Collective; blocks.

    Parameters
    ----------
    values : sequence of object
        One for each rank, by rank.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    list of object
        By the rank that sent each. This rank's own is pickled and unpickled.

    Raises
    ------
    UsageError
        If there are more or fewer objects than ranks, or if one cannot be pickled. A rank that waits for
        such an object raises `CommunicationError`.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        frames, error = _dumped_each(values, self._core.backend.size)
        steps = transfer.all_to_all(self._core, frames)
        label = _label("all_to_all_object", 0)
        return _run(self._core, label, frames, steps, timeout, error)


def send_object(
    self: HasCore, value: Any, dst: int, tag: int = 0, *, timeout: float | None = None
) -> None:
    """Send an object to rank `dst`. Blocks until the object may be changed again.

    Parameters
    ----------
    value : object
        Anything that can be pickled.
    dst : int
        The receiver.
    tag : int
        Distinguishes messages. Messages of arrays have separate tags.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Raises
    ------
    UsageError
        If the object cannot be pickled. The receiver raises `CommunicationError` then, in the place of the object.
    CommunicationError
        If the call fails or its deadline passes.
    """
    with self._core.calls.one_call():
        peer, tag = check_rank("dst", dst, self._core.backend.size), self._core.tag(tag)
        wire = wire_tag(tag, OBJECTS)
        frame, error = _dumped(value)
        if error is not None and peer == self._core.backend.rank:
            raise untied(error)  # no other rank waits for it
        steps = transfer.send(self._core.backend.messages, frame, peer, wire)
        label = of_message("send_object", frame.nbytes, (peer, None), tag, wire // DTYPES)
        self._core.calls.traffic.cell(peer, wire // DTYPES)[0] += 1
        _run(self._core, label, frame, steps, timeout, error)


def recv_object(
    self: HasCore, src: int | Anything, tag: int | Anything = 0, *, timeout: float | None = None
) -> Any:
    """Return an object that rank `src` sends. Blocks until it has arrived.

    Parameters
    ----------
    src : int or ANY
        The sender; `ANY` is any.
    tag : int or ANY
        The message's; `ANY` is any. Over MPI, an object then is not seen behind an array of the same
        sender until that was received; `probe` takes either.
    timeout : float, optional
        Deadline in seconds. None is the communicator's deadline.

    Returns
    -------
    object
        A copy of the sent object.

    Raises
    ------
    CommunicationError
        If the call fails or its deadline passes.
    """
    if src is ANY or tag is ANY:
        with self._core.outside_batch("recv_object"):
            return received_object(self._core, src, tag, timeout)
    with self._core.calls.one_call():
        peer, tag = check_rank("src", src, self._core.backend.size), self._core.tag(tag)
        wire = wire_tag(tag, OBJECTS)
        steps = transfer.receive(self._core.backend.messages, peer, wire)
        label = of_message("recv_object", 0, (None, peer), tag, wire // DTYPES)
        self._core.calls.traffic.cell(peer, wire // DTYPES)[1] += 1
        return _run(self._core, label, (), steps, timeout)[0]


def _root(core: Core, root: object) -> tuple[int, bool]:
    """Return the root, and whether this rank is it."""
    checked = check_rank("root", root, core.backend.size)
    return checked, checked == core.backend.rank


@lru_cache(maxsize=1024)
def _label(name: str, nbytes: int, root: int | None = None) -> CallFingerprint:
    """Return the fingerprint of a collective call."""
    return CallFingerprint(name, nbytes, *_compared(name, root))


@cache
def _compared(name: str, root: int | None) -> tuple[Mapping[str, object], int]:
    label = compared(name, {"operation": name} | ({} if root is None else {"root": root}))
    return label.values, label.fingerprint


def _run(
    core: Core,
    label: CallFingerprint,
    keep: Frame | Sequence[Frame],
    steps: transfer.Arriving,
    timeout: float | None,
    error: BaseException | None = None,
) -> list[Any]:
    """Run a call, and return the objects that arrive. `keep` is what this rank sends.

    What this rank's own object is refused for is raised after the call, as all ranks know of it.
    """
    limit = core.limit(timeout)
    core.sink.refuse_batch(label.name, ", which takes arrays only")
    arrived: dict[int, Frame] = {}

    def whole() -> Steps:
        arrived.update((yield from steps))

    operation = Operation(label, whole, (keep,), ordered=not label.peers)
    core.calls.run_operation(core.check.operation(operation), limit)
    if error is not None:
        raise untied(error)
    return [loaded(core, label.name, each, rank) for rank, each in arrived.items()]


def _dumped(value: Any) -> tuple[Frame, BaseException | None]:
    try:
        return transfer.dump(value), None
    except BaseException as error:  # noqa: BLE001 (the others must hear of it; then it is raised)
        return transfer.failed(error), error


def _dumped_each(values: Any, size: int) -> tuple[list[Frame], BaseException | None]:
    try:
        objects = _listed(values, size)
    except BaseException as wrong:  # noqa: BLE001 (a generator may raise anything; likewise)
        return [transfer.failed(wrong)] * size, wrong
    frames, errors = list[Frame](), list[BaseException]()
    for value in objects:
        frame, error = _dumped(value)
        frames.append(frame)
        if error is not None and not errors:
            errors.append(error)
        del error
    # This frame, which the error refers to, drops it.
    return frames, errors.pop() if errors else None


def _listed(values: Any, size: int) -> list[Any]:
    """Return `size` objects.

    Raises
    ------
    UsageError
        If their number differs, or it is not a sequence.
    """
    try:
        each = iter(values)
    except TypeError:
        raise UsageError(f"values is {values!r}; give a sequence of {size} objects") from None
    objects = list(each)
    if len(objects) != size:
        raise UsageError(f"values has {len(objects)} objects; give {size}, one for each rank")
    return objects
