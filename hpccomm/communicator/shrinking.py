"""Makes communicators of some ranks, and of the remaining ranks after others are lost.

`Communicator.shrink` calls it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Protocol, TypeVar

from hpccomm.communicator.core import Core, HasCore
from hpccomm.communicator.lanes import AnyDeviceLane
from hpccomm.contracts.backend import Backend, Survival
from hpccomm.errors import CommunicatorAborted, PeerLost, UsageError, peers_lost
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.inquiry import SHRINK
from hpccomm.settings import Settings

Communicator = TypeVar("Communicator", bound="GroupMember")
"""The class of that name, which has the methods that are written here, and so cannot be imported."""

Make = Callable[[Backend, str, Settings, int | None, AnyDeviceLane, tuple[int, ...]], Communicator]
"""Makes a communicator over a backend; see `making.make`."""


class GroupMember(HasCore, Protocol):
    """A communicator, as it takes part in making others."""

    rank: int
    size: int
    # Any: a subclass's attributes make and are communicators, and none of the subclass.
    _make: "Make[Any]"
    _node: Any

    @property
    def name(self) -> str:
        """Its name."""

    def abort(self) -> None:
        """End the waits of this process, and mark it as failed."""

    def finalize(self) -> None:
        """End it. Collective."""


logger = logging.getLogger("hpccomm")

LEARNING_SECONDS = 1.0
"""How long the library may take to know a loss that was found in another way."""

MADE, UNHURT = 1, 2
"""A rank's report: it has the new communicator; or only a loss has prevented that."""


def grouped(backend: Backend, ranks: Sequence[int], label: int) -> Backend:
    """Return the backend of this rank's group. Collective over all ranks; blocks.

    Every rank is in one group, or calls `apart`.
    """
    if backend.survival is None or backend.split is None:
        return backend.group(ranks, label)
    # What needs the group alone cannot be left if one of it is lost.
    made = backend.split(ranks[0], ranks.index(backend.rank), label)
    assert made is not None
    return made


def apart(core: Core, by_library: bool = False) -> None:
    """Take part, as a rank that joins none, while the others make groups, by the library or as `grouped`."""
    core.groups += 1  # all ranks count alike
    backend = core.backend
    if backend.split is not None and (by_library or backend.survival is not None):
        with core.calls.beside_watchdog("making a group"):
            backend.split(None, 0, core.groups)


@contextmanager
def own_ranks(calls: CallEngine) -> Iterator[None]:
    """Have a loss that is found while parts of a communicator are made name the ranks of the whole."""
    try:
        yield
    except PeerLost as error:
        survival = calls.backend.survival
        lost = () if survival is None else survival.lost(LEARNING_SECONDS)
        if error.communicator == calls.name or not lost:
            raise
        with calls.beside_watchdog("making a group"):
            raise peers_lost(lost) from error


def shrunk(core: Core, make: Make[Communicator], name: str | None) -> Communicator:
    """Return the communicator of the ranks that are left. Collective over them; blocks.

    Raises
    ------
    UsageError
        If the backend cannot go on after lost ranks, or the communicator is in use or finalized.
    CommunicatorAborted
        If it has failed, and the backend cannot.
    """
    calls = core.calls
    survival = core.backend.survival
    if survival is None:
        if calls.gate.error is not None:
            calls.failure.refuse()
        recovery = core.backend.recovery or f"backend {core.backend.name!r} loses no ranks"
        raise UsageError(
            f"shrink without ranks to exclude cannot tell who is lost here: {recovery}"
        )
    with calls.one_call(also_failed=True):
        return _shrunk(core, make, survival, name)


def _shrunk(
    core: Core, make: Make[Communicator], survival: Survival, name: str | None
) -> Communicator:
    calls = core.calls
    if calls.gate.error is None:
        calls.finish()
    core.shrunk[()] += 1
    before = survival.epoch
    family = calls.name.removesuffix(f".e{before}") if before else calls.name
    epoch = before + core.shrunk[()]
    named = name or f"{family}.e{epoch}"
    for attempt in count():
        # If another rank is lost now, only some ranks may have the new communicator. So they agree,
        # by a call that survives it, and begin anew if one lacks it.
        backend: Backend | None = None
        made: Communicator | None = None
        lost: tuple[int, ...] = ()
        error: Exception | None = None
        try:
            with calls.beside_watchdog(SHRINK):
                backend, lost = survival.shrunk(epoch, attempt)
            settings = replace(core.settings, timeout=calls.timeout)
            made = make(backend, named, settings, core.device, core.lanes.device, ())
        except Exception as failure:  # noqa: BLE001 (raised when the others know of it)
            error = failure
            _release(backend)  # the others may wait for this rank
        vote = MADE | UNHURT if error is None else 0
        if isinstance(error, PeerLost | CommunicatorAborted):
            vote = UNHURT  # another rank may have reported the loss
        with calls.beside_watchdog(SHRINK):
            agreed = survival.agreed(vote)
        if made is not None and agreed & MADE:
            if lost:
                calls.fail(peers_lost(lost))  # also where no call has shown it
                left = f"{made.name!r} has the {made.size} ranks that are left"
                level = logging.WARNING if made.rank == 0 else logging.INFO
                logger.log(level, "%s: ranks %s are lost; %s", calls.name, list(lost), left)
            return made
        if made is not None:
            made.abort()
        _release(backend)
        if error is not None and not vote & UNHURT:
            raise error
        if not agreed & UNHURT:
            why = "cannot be shrunk: another rank could not take part; look at its own report"
            raise aborted(core, why)
    raise AssertionError("unreachable")


def aborted(core: Core, why: str) -> CommunicatorAborted:
    """Return the error of a communicator that `why` is said of."""
    name, rank = core.calls.name, core.backend.rank
    return CommunicatorAborted(f"communicator {name!r} {why}", communicator=name, rank=rank)


def _release(backend: Backend | None) -> None:
    if backend is not None and backend.survival is not None:
        backend.survival.release()
