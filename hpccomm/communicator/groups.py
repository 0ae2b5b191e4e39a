"""The making of communicators from others, also from the ranks that remain after a loss, and their end.

A new communicator shares nothing with the one that it is made from. Used by `communicator` and `creation`.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar
from zlib import crc32

from hpccomm.calls.core import Core, counting, dropped, end_dropped
from hpccomm.calls.lanes import AnyDeviceLane
from hpccomm.contracts.backend import Backend, Survival
from hpccomm.contracts.signature import CallFingerprint, compared
from hpccomm.errors import CommunicatorAborted, PeerLost, UsageError, peers_lost
from hpccomm.runtime.engine import FINALIZED, CallEngine
from hpccomm.runtime.inquiry import SHRINK
from hpccomm.runtime.raised import told
from hpccomm.runtime.service import Voice
from hpccomm.settings import Settings, check_int, check_name
from hpccomm.topology import check_rank


class Ending(Protocol):
    """A node's communicator, as its parent ends it."""

    def abort(self) -> None:
        """End the waits of this process, and mark the communicator as failed."""

    def finalize(self) -> None:
        """End the communicator. Collective."""


class GroupMember(Ending, Protocol):
    """A communicator that these functions make."""

    rank: int
    size: int

    @property
    def name(self) -> str:
        """The communicator's name."""


G = TypeVar("G", bound=GroupMember)
"""`Communicator`, whose methods call these functions."""

Make = Callable[[Backend, str, Settings, int | None, AnyDeviceLane, tuple[int, ...]], G]
"""Makes a communicator over a backend; see `creation.make`."""


logger = logging.getLogger("hpccomm")

LEARNING_SECONDS = 1.0
"""Seconds that the library may need to learn of a loss that was found in another way."""

MADE, UNHURT = 1, 2
"""Bits of a rank's vote: it has made the new communicator; nothing but a loss has prevented it from that."""


def grouped(backend: Backend, ranks: Sequence[int], label: int) -> Backend:
    """Return the backend of this rank's group. Collective over all ranks; blocks.

    Every rank is in one group, or calls `apart`.
    """
    if backend.survival is None or backend.split is None:
        return backend.group(ranks, label)
    # A call of the group's ranks alone could not be ended if one of them is lost.
    made = backend.split(ranks[0], ranks.index(backend.rank), label)
    assert made is not None
    return made


def apart(core: Core, by_library: bool = False) -> None:
    """Take part, as a rank without a group, while other ranks make groups. `by_library`: `Backend.split` makes them."""
    core.groups += 1  # all ranks have the same count
    backend = core.backend
    if backend.split is not None and (by_library or backend.survival is not None):
        with core.calls.beside_watchdog("making a group"):
            backend.split(None, 0, core.groups)


@contextmanager
def own_ranks(calls: CallEngine) -> Iterator[None]:
    """Run the block, which makes a part of a communicator; a loss in it is raised with ranks of the communicator."""
    try:
        yield
    except PeerLost as error:
        survival = calls.backend.survival
        lost = () if survival is None else survival.lost(LEARNING_SECONDS)
        if error.communicator == calls.name or not lost:
            raise
        with calls.beside_watchdog("making a group"):
            raise peers_lost(lost) from error


def shrunk(core: Core, make: Make[G], name: str | None) -> G:
    """Return the communicator of the ranks that are left. Collective over them; blocks.

    Raises
    ------
    UsageError
        If the backend cannot go on after lost ranks, or the communicator is in use or finalized.
    CommunicatorAborted
        If the communicator has failed, and the backend cannot go on after lost ranks.
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


def _shrunk(core: Core, make: Make[G], survival: Survival, name: str | None) -> G:
    calls = core.calls
    if calls.gate.error is None:
        calls.finish()
    core.shrunk[()] += 1
    before = survival.epoch
    family = calls.name.removesuffix(f".e{before}") if before else calls.name
    epoch = before + core.shrunk[()]
    named = name or f"{family}.e{epoch}"
    for attempt in count():
        # If another rank is lost now, only some ranks may have the new communicator. So the ranks
        # agree, by a call that survives losses, and begin anew if a rank lacks it.
        backend: Backend | None = None
        made: G | None = None
        lost: tuple[int, ...] = ()
        error: Exception | None = None
        try:
            with calls.beside_watchdog(SHRINK):
                backend, lost = survival.shrunk(epoch, attempt)
            settings = replace(core.settings, timeout=calls.timeout)
            made = make(backend, named, settings, core.device, core.lanes.device, ())
        except Exception as failure:  # noqa: BLE001 (raised when the other ranks know of it)
            error = failure
            _release(backend)  # other ranks may wait for this rank
        vote = MADE | UNHURT if error is None else 0
        if isinstance(error, PeerLost | CommunicatorAborted):
            vote = UNHURT  # another rank may have reported the loss
        with calls.beside_watchdog(SHRINK):
            agreed = survival.agreed(vote)
        if made is not None and agreed & MADE:
            if lost:
                calls.fail(peers_lost(lost))  # also if no call has shown the loss
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
    """Return the error that says `why` of a communicator."""
    name, rank = core.calls.name, core.backend.rank
    return CommunicatorAborted(f"communicator {name!r} {why}", communicator=name, rank=rank)


def _release(backend: Backend | None) -> None:
    if backend is not None and backend.survival is not None:
        backend.survival.release()


INT_MAX = 2**31 - 1
"""The largest color and key of MPI, where an int has 32 bits."""

SPLIT, DUP = (compared(each, {"operation": each}) for each in ("split", "dup"))


def split(core: Core, make: Make[G], color: int | None, key: int, name: str | None) -> G | None:
    """Make a communicator of the ranks of one color; see `Communicator.split`. Collective; blocks."""
    error, where = None, (color, key)
    try:
        where = None if color is None else check_int("color", color), check_int("key", key)
        check_name(name)
    except UsageError as refused:
        error, where = refused, (None, 0)
    by_library = core.backend.split
    fits = 0 <= (where[0] or 0) <= INT_MAX and abs(where[1]) <= INT_MAX
    with _meeting(core, SPLIT, error, where, by_library is None or not fits) as everyone:
        if color is None:
            apart(core, everyone is None)
            return None
        kind = f"split{{}}({color})"
        if everyone is None:
            assert by_library is not None
            return _group(core, make, partial(by_library, *where), name, kind)
        members = [rank for rank, (other, _) in enumerate(everyone) if other == where[0]]
        members.sort(key=lambda rank: everyone[rank][1])
        return _group(core, make, partial(grouped, core.backend, members), name, kind)


def split_ranks(core: Core, make: Make[G], ranks: Iterable[int], name: str | None) -> G | None:
    """Make a communicator of `ranks`; see `Communicator.split_ranks`. Collective; blocks."""
    error, members = None, list[int]()
    try:
        members = [check_rank("ranks", rank, core.backend.size) for rank in ranks]
        check_name(name)
        if not members or len(set(members)) != len(members):
            raise UsageError(f"ranks is {members}; give at least one rank, none of them twice")
    except UsageError as refused:
        error = refused
    except TypeError:
        error = UsageError(f"ranks is {ranks!r}; give a sequence of ranks")
    asked = {"operation": "split_ranks", "ranks": members}
    with _meeting(core, compared("split_ranks", asked), error):
        if core.backend.rank not in members:
            apart(core)
            return None
        return _group(core, make, partial(grouped, core.backend, members), name, "ranks{}")


def dup(core: Core, make: Make[G], name: str | None) -> G:
    """Make a communicator of the same ranks; see `Communicator.dup`. Collective; blocks."""
    check_name(name)
    with _meeting(core, DUP):
        backend = core.backend
        return _group(core, make, partial(grouped, backend, range(backend.size)), name, "dup{}")


def shrink(core: Core, make: Make[G], exclude: Iterable[int] | None, name: str | None) -> G:
    """Make a communicator without some of the ranks; see `Communicator.shrink`. Called by those that stay; blocks."""
    if exclude is None:
        check_name(name)
        return shrunk(core, make, name)
    calls, size, rank = core.calls, core.backend.size, core.backend.rank
    try:
        left_out = tuple(sorted({check_rank("exclude", each, size) for each in exclude}))
    except TypeError:
        raise UsageError(f"exclude is {exclude!r}; give a sequence of ranks") from None
    check_name(name)
    if not left_out or rank in left_out:
        raise UsageError(
            f"exclude is {list(left_out)} on rank {rank} of {size}; give at least one rank, and have "
            "only those that are not in it call shrink"
        )
    if calls.gate.error is not None and core.backend.survival is not None:
        why = f"has failed, and shrink({list(left_out)}) takes one that works; call shrink() without ranks"
        why += ", which leaves out those that are lost"
        raise aborted(core, why) from calls.gate.error
    with calls.one_call():
        members = [each for each in range(size) if each not in left_out]
        # The excluded ranks do not take part, so `core.groups`, which all ranks count, must not change.
        core.shrunk[left_out] += 1
        number = core.shrunk[left_out]
        label = crc32(repr((list(left_out), number)).encode())
        named = name or f"{calls.name}.without({','.join(map(str, left_out))}){number}"
        return _over(core, make, partial(core.backend.group, members, label), named, left_out)


def finalize(core: Core, node: Ending | None) -> None:
    """End a communicator, with its node's; see `Communicator.finalize`. Collective; blocks."""
    calls = core.calls
    if calls.closed:
        return
    if core.recorder is not None:
        core.recorder.close()
    differing = None
    if calls.gate.error is None:
        with calls.one_call():
            calls.finish()
            differing = core.check.end()
            # The other ranks may be in other calls, and not close the communicator with this rank.
            if differing is not None:
                calls.fail(differing)
    if calls.gate.error is not None:
        abort(core, node)  # the node's too: nothing may wait for a peer
        if node is not None:
            node.finalize()  # tells the node's other ranks that this rank will not come
        calls.close(FINALIZED)
        calls.failure.tell_unseen()
        unraised, calls.failure.unraised = calls.failure.unraised, None
        unraised = differing or unraised
        if unraised is not None:
            raise unraised
        return
    if node is not None:
        node.finalize()
    core.close()


def abort(core: Core, node: Ending | None, why: str = "was aborted") -> None:
    """Abort a communicator, with its node's; see `Communicator.abort`. Local."""
    core.calls.fail(aborted(core, why))
    core.lanes.device.abandon()  # another thread may be using it
    if node is not None:
        node.abort()


def leave(core: Core, node: Ending | None, error: BaseException) -> None:
    """Abort a communicator whose block an exception leaves, and tell the other ranks of the exception. Local."""
    try:
        # First, so that a rank that finds the communicator aborted can learn why.
        Voice.leaves(error)
    finally:
        abort(core, node, f"was left by {told(error)}")


@contextmanager
def _meeting(
    core: Core,
    label: CallFingerprint,
    error: UsageError | None = None,
    place: object = None,
    more: bool = False,
) -> Iterator[list[Any] | None]:
    """Hold the communicator's turn during the block, which makes another communicator. Collective; blocks.

    The ranks first agree on the call. If a rank has `more`, yield the list of every rank's `place`; else None.
    """
    with core.calls.one_call():
        with core.calls.part_of(label):
            there = dropped(core.backend)
            told = core.check.agree(
                label, error, lambda: json.dumps([place, [*there]]).encode(), more or bool(there)
            )
            everyone = None if told is None else [json.loads(each) for each in told]
            if everyone is not None:
                end_dropped(there, [uids for _, uids in everyone])
        # The making of it is a call with a new deadline, which does not include the wait for late ranks.
        yield everyone and [each for each, _ in everyone]


def _group(
    core: Core, make: Make[G], over: Callable[[int], Backend | None], name: str | None, kind: str
) -> G:
    core.groups += 1
    label = core.groups
    named = name or f"{core.calls.name}.{kind.format(label)}"
    return _over(core, make, partial(over, label), named)


def _over(
    core: Core,
    make: Make[G],
    over: Callable[[], Backend | None],
    name: str,
    left_out: tuple[int, ...] = (),
) -> G:
    with counting(), core.calls.beside_watchdog("making a group"):
        backend = over()
    assert backend is not None  # this rank is in it
    settings = core.settings
    if settings.timeout != core.calls.timeout:
        settings = replace(settings, timeout=core.calls.timeout)
    with counting(), own_ranks(core.calls):
        return make(backend, name, settings, core.device, core.lanes.device, left_out)
