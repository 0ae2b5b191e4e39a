"""Makes communicators of other ones, of the remaining ranks after others are lost, too; and ends them.

A new one shares nothing with its parent.

`split`, `split_ranks`, `dup`, `shrink` and `finalize` of `Communicator` are here.
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

from hpccomm.calls.core import Core, HasCore, counting, dropped, end_dropped
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


INT_MAX = 2**31 - 1
"""The largest color and key of MPI, where an int has 32 bits."""

SPLIT, DUP = (compared(each, {"operation": each}) for each in ("split", "dup"))


def split(
    self: Communicator, color: int | None, key: int = 0, name: str | None = None
) -> "Communicator | None":
    """Make a communicator of the ranks that pass the same `color`. Collective; blocks.

    Parameters
    ----------
    color : int or None
        The group of this rank; None joins no group.
    key : int
        Ranks are ordered by key, then by rank.
    name : str, optional
        Of the new communicator.

    Returns
    -------
    Communicator or None
        None for the color None.

    Raises
    ------
    UsageError
        If this rank's arguments do not fit.
    RankMismatch
        On the other ranks in that case.
    """
    core, error, where = self._core, None, (color, key)
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
            return _group(self, partial(by_library, *where), name, kind)
        members = [rank for rank, (other, _) in enumerate(everyone) if other == where[0]]
        members.sort(key=lambda rank: everyone[rank][1])
        return _group(self, partial(grouped, core.backend, members), name, kind)


def split_ranks(
    self: Communicator, ranks: Iterable[int], name: str | None = None
) -> "Communicator | None":
    """Make a communicator of `ranks`, in that order. Called by all ranks of this one; blocks.

    Parameters
    ----------
    ranks : sequence of int
        The same on all ranks.
    name : str, optional
        Of the new communicator.

    Returns
    -------
    Communicator or None
        None on the ranks that are not in it.

    Raises
    ------
    UsageError
        If this rank's arguments do not fit.
    RankMismatch
        On the other ranks in that case, and on all ranks if their lists differ.
    """
    core, error, members = self._core, None, list[int]()
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
        return _group(self, partial(grouped, core.backend, members), name, "ranks{}")


def dup(self: Communicator, name: str | None = None) -> "Communicator":
    """Make a communicator of the same ranks. Collective; blocks.

    Parameters
    ----------
    name : str, optional
        Of the new communicator.

    Returns
    -------
    Communicator
        Ended by itself.
    """
    check_name(name)
    with _meeting(self._core, DUP):
        backend = self._core.backend
        return _group(self, partial(grouped, backend, range(backend.size)), name, "dup{}")


def shrink(
    self: Communicator, exclude: Iterable[int] | None = None, name: str | None = None
) -> "Communicator":
    """Make a communicator without some of the ranks. Called by the ranks that stay; blocks.

    Without `exclude`, lost ranks are left out. That works in a job of Open MPI 5 that was started
    with ``mpiexec --with-ft ulfm``, also on a communicator that has failed, repeatedly: see
    :doc:`/how_to/losing_ranks`. All remaining ranks must call it. They agree on the lost ranks, which the
    new communicator leaves out; there may be none.

    With `exclude`, the excluded ranks take no part, and may be dead. Over NCCL 2.27 and later, NCCL's
    own shrink makes the device side, which is faster than making a new communicator.

    The ranks of the new communicator are in the same order.

    Parameters
    ----------
    exclude : sequence of int, optional
        Ranks to leave out, at least one; the same on all remaining ranks. None leaves out the lost
        ranks.
    name : str, optional
        Of the new communicator. Without `exclude`, it is by default the first communicator's name
        with the number of the epoch, such as ``"world.e1"``.

    Returns
    -------
    Communicator
        Ended by itself.

    Raises
    ------
    UsageError
        If an argument does not fit, or this rank is excluded; or if `exclude` is None and the job was
        not started so that it survives lost ranks.
    CommunicatorAborted
        In that case too, if the communicator has failed; with `exclude`, if it has failed at all.
    """
    if exclude is None:
        check_name(name)
        new_comm: Communicator = shrunk(self._core, self._make, name)
        return new_comm
    calls, size, rank = self._core.calls, self._core.backend.size, self._core.backend.rank
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
    if calls.gate.error is not None and self._core.backend.survival is not None:
        why = f"has failed, and shrink({list(left_out)}) takes one that works; call shrink() without ranks"
        why += ", which leaves out those that are lost"
        raise aborted(self._core, why) from calls.gate.error
    with calls.one_call():
        members = [each for each in range(size) if each not in left_out]
        # The ranks that are left out know nothing of it, and count on: nor may the others count it.
        self._core.shrunk[left_out] += 1
        number = self._core.shrunk[left_out]
        label = crc32(repr((list(left_out), number)).encode())
        named = name or f"{calls.name}.without({','.join(map(str, left_out))}){number}"
        return _over(self, partial(self._core.backend.group, members, label), named, left_out)


def finalize(self: Communicator) -> None:
    """End the communicator. Collective; blocks; idempotent. Asynchronous calls are awaited.

    If the communicator has failed, only local work is done.

    Raises
    ------
    CommunicationError
        If calls on device arrays have failed and no call has raised that failure yet. The contents of
        their arrays are undefined.
    RankMismatch
        If the ranks have made different collective calls, and no other call has found that out. The
        communicator is finalized then, too.
    CollectiveTimeout
        If a rank has not come to the end before the deadline. The communicator is finalized then, too.
    """
    core, calls = self._core, self._core.calls
    if calls.closed:
        return
    if core.recorder is not None:
        core.recorder.close()
    differing = None
    if calls.gate.error is None:
        with calls.one_call():
            calls.finish()
            differing = core.check.end()
            # The others may be elsewhere, and not close with this rank.
            if differing is not None:
                calls.fail(differing)
    if calls.gate.error is not None:
        self.abort()  # its node's too: nothing may need a peer
        if self._node is not None:
            self._node.finalize()  # so that the others hear that this rank will not come
        calls.close(FINALIZED)
        calls.failure.tell_unseen()
        unraised, calls.failure.unraised = calls.failure.unraised, None
        unraised = differing or unraised
        if unraised is not None:
            raise unraised
        return
    if self._node is not None:
        self._node.finalize()
    core.close()


def abort(self: Communicator) -> None:
    """End the waits of this process and mark the communicator as failed.

    Local; may be called from any thread.

    Calls that wait, and asynchronous calls under way, end with `CommunicatorAborted`. A call that is
    blocked in the MPI library continues until its deadline. Over NCCL, calls under way are ended on
    the device, so that its streams continue; the contents of their arrays are undefined. The arrays
    of unfinished calls are kept alive.
    """
    _abort(self, "was aborted")


def leave(self: Communicator, error: BaseException) -> None:
    """Abort a communicator whose block an exception leaves: the other ranks hear of that. Local."""
    try:
        Voice.leaves(error)  # first: who finds the communicator aborted must find out why
    finally:
        _abort(self, f"was left by {told(error)}")


def _abort(self: Communicator, why: str) -> None:
    self._core.calls.fail(aborted(self._core, why))
    self._core.lanes.device.abandon()  # another thread may be at it
    if self._node is not None:
        self._node.abort()


@contextmanager
def _meeting(
    core: Core,
    label: CallFingerprint,
    error: UsageError | None = None,
    place: object = None,
    more: bool = False,
) -> Iterator[list[Any] | None]:
    """Hold the communicator for the call that makes another one. Collective; blocks.

    The ranks agree on the call. If one has `more` to tell, give every rank's `place`, else None.
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
        # What makes it is a call with a deadline of its own: the wait for late ranks does not count.
        yield everyone and [each for each, _ in everyone]


def _group(
    self: Communicator, make: Callable[[int], Backend | None], name: str | None, kind: str
) -> "Communicator":
    self._core.groups += 1
    label = self._core.groups
    named = name or f"{self._core.calls.name}.{kind.format(label)}"
    return _over(self, partial(make, label), named)


def _over(
    self: Communicator,
    make: Callable[[], Backend | None],
    name: str,
    left_out: tuple[int, ...] = (),
) -> "Communicator":
    core = self._core
    with counting(), core.calls.beside_watchdog("making a group"):
        backend = make()
    assert backend is not None  # this rank is in it
    settings = core.settings
    if settings.timeout != core.calls.timeout:
        settings = replace(settings, timeout=core.calls.timeout)
    with counting(), own_ranks(core.calls):
        new_comm: Communicator = self._make(
            backend, name, settings, core.device, core.lanes.device, left_out
        )
    return new_comm
