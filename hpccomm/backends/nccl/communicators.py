"""NCCL's communicators of one set of ranks: with its own choice, and with pinned algorithms.

`backend` calls the one that a call needs.

All ranks create a communicator together, and have one outcome (`agreed_setup`). The creation blocks in NCCL
until every rank has called. It runs in a thread, so that the deadline holds. As soon as one rank has
failed, rank 0 informs the others, even while they are blocked in NCCL, so that none hangs.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from hpccomm.backends.control import Control, Drive
from hpccomm.backends.nccl import libnccl, variables
from hpccomm.backends.nccl.libnccl import RawCommunicator
from hpccomm.contracts.transport import Steps
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted, RankMismatch
from hpccomm.memory.cuda import streams
from hpccomm.runtime.service import ServiceThread
from hpccomm.runtime.waiting import at_once
from hpccomm.units import ranks_named


@dataclass(frozen=True, slots=True)
class SetupRanks:
    """The ranks of one communicator, and how they agree and wait.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    device : int
        CUDA device of this rank.
    control : Control
        Small messages between them.
    drive : callable
        Waits for polled steps, under the communicator's deadline.
    name : str
        The communicator's.
    config : mapping of str to int or str
        Fields of ncclConfig_t that the program sets.
    """

    rank: int
    size: int
    device: int
    control: Control
    drive: Drive
    name: str = ""
    config: Mapping[str, int | str] = field(default_factory=dict)


class CommunicatorThread:
    """The thread of one NCCL communicator: it makes it, and ends it when it is told to. NCCL blocks in both.

    Parameters
    ----------
    device : int
        CUDA device, which is current in the thread from the beginning: to make it current later may wait for a launch
        that is stuck.
    make : callable
        Returns the communicator.

    Attributes
    ----------
    communicator : RawCommunicator or None
        None as long as it is not made.
    made, ended : str or None
        None as long as it is not; then '', or the reason of the failure.
    """

    def __init__(self, device: int, make: Callable[[], RawCommunicator]) -> None:
        self.communicator: RawCommunicator | None = None
        self.made: str | None = None
        self.ended: str | None = None
        self._device = device
        self._make = make
        self._endings: SimpleQueue[Callable[[RawCommunicator], None]] = SimpleQueue()
        ServiceThread(target=self._run, name="hpccomm-nccl", daemon=True).start()

    def end(self, how: Callable[[RawCommunicator], None]) -> None:
        """Run ``how(communicator)`` once it is made. Once; does not block."""
        self._endings.put(how)

    def _run(self) -> None:
        self.made = _reason(self._begin)
        how, communicator = self._endings.get(), self.communicator
        self.ended = "" if communicator is None else _reason(lambda: how(communicator))

    def _begin(self) -> None:
        streams.look_from_here(self._device)
        self.communicator = self._make()


def _reason(work: Callable[[], None]) -> str:
    """Do some work; return '', or the reason of its failure."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 (all ranks get it)
        return f"{type(error).__name__}: {error}"
    return ""


def agreed_setup(
    ranks: SetupRanks, name: str, make: Callable[[], RawCommunicator]
) -> tuple[CommunicatorThread | None, str]:
    """Make a communicator on all ranks. Collective; blocks.

    Parameters
    ----------
    ranks : SetupRanks
        Who takes part.
    name : str
        Of the work, for messages.
    make : callable
        Returns it. Runs in a thread.

    Returns
    -------
    CommunicatorThread or None
        Has the communicator; None on all ranks if it failed on one.
    str
        The reason for the failure, the same on all ranks.

    Raises
    ------
    CollectiveTimeout
        If it took longer than the deadline.
    """
    thread, box = CommunicatorThread(ranks.device, make), list[bytes]()
    steps = _judged if ranks.rank else _judging
    try:
        ranks.drive(name, steps(ranks, lambda: thread.made, box))
    except BaseException:
        thread.end(RawCommunicator.abort)
        raise
    if box[0]:
        thread.end(RawCommunicator.abort)
        return None, box[0].decode()
    return thread, ""


def _judging(ranks: SetupRanks, outcome: Callable[[], str | None], box: list[bytes]) -> Steps:
    """Rank 0's part: receive every rank's outcome, and send the common outcome as soon as it is known."""
    others = range(1, ranks.size)
    outcomes: dict[int, str] = {}

    def own() -> Steps:
        while (reached := outcome()) is None:
            if box:
                return  # it failed elsewhere
            yield False
        outcomes[0] = reached

    def hear(peer: int) -> Steps:
        outcomes[peer] = (yield from ranks.control.receive_steps(peer)).decode()

    def judge() -> Steps:
        while len(outcomes) < ranks.size and not any(outcomes.values()):
            yield False
        failed = [f"{ranks_named((rank,))}: {why}" for rank, why in outcomes.items() if why]
        box.append("; ".join(failed).encode())
        yield from at_once(ranks.control.send_steps(box[0], peer) for peer in others)

    return at_once([own(), *map(hear, others), judge()])


def _judged(ranks: SetupRanks, outcome: Callable[[], str | None], box: list[bytes]) -> Steps:
    """Every other rank's part: send its outcome to rank 0, and receive the common outcome."""

    def say() -> Steps:
        # If it failed elsewhere, rank 0 still waits for this message.
        while (own := outcome()) is None and not box:
            yield False
        yield from ranks.control.send_steps((own or "").encode(), 0)

    def hear() -> Steps:
        box.append((yield from ranks.control.receive_steps(0)))

    return at_once([hear(), say()])


logger = logging.getLogger("hpccomm")

NATIVE = "native"
PINNED = {"ring": "Ring", "tree": "Tree"}
"""Algorithms that a communicator can be pinned to, as ``NCCL_ALGO`` spells them."""

REGISTERED = "registered"
"""Name of the communicator that registers memory: its calls use registered memory on all ranks."""

ABORT_SECONDS = 10.0
"""How long `Communicators.abort` waits for NCCL."""

POLL_SECONDS = 0.001
"""Seconds between two looks."""

SETTLE_SECONDS = 0.01
"""Seconds in which a call that has just begun enters NCCL."""

LEAVE_SECONDS = 3.0
"""So long an abort waits for a thread that is inside NCCL, which then goes on with freed memory."""

BEHIND_SECONDS = 1.0
"""So long it then leaves the device for what that thread has put on its stream at last."""


def new_communicator(
    ranks: SetupRanks, algorithm: str | None
) -> tuple[CommunicatorThread | None, str]:
    """Make a communicator of all ranks. Collective; blocks.

    Parameters
    ----------
    ranks : SetupRanks
        Its ranks.
    algorithm : str or None
        Value of ``NCCL_ALGO`` during the creation; None keeps the user's.

    Returns
    -------
    CommunicatorThread or None
        None on all ranks if it cannot be made.
    str
        The reason of the failure, the same on all ranks.

    Raises
    ------
    CollectiveTimeout
        If it took longer than the deadline.
    """
    message = b""
    if ranks.rank == 0:
        # The others wait for this message, so rank 0 sends one after a failure too.
        try:
            message = b"+" + libnccl.unique_id()
        except Exception as error:  # noqa: BLE001 (all ranks get it)
            message = f"-rank 0 gets no unique id from NCCL ({error})".encode()
    message = ranks.control.bcast(message)
    status, payload = message[:1], message[1:]
    # No rank may start before all have the id: a rank that waits in NCCL waits for the others.
    lacking = [rank for rank, has in enumerate(ranks.control.all_gather(status)) if has != b"+"]
    if lacking:
        return None, payload.decode()

    def make() -> RawCommunicator:
        return libnccl.make_communicator(ranks.size, payload, ranks.rank, ranks.name, ranks.config)

    name = "making NCCL's communicator"
    try:
        with variables.pinned(algorithm, partial(ranks.drive, name)):
            return agreed_setup(ranks, name, make)
    except CollectiveTimeout as error:
        error.args = (
            f"{error}. Or the ranks cannot reach each other: set NCCL_SOCKET_IFNAME to the network "
            "interface; NCCL_DEBUG=INFO shows what NCCL does",
        )
        raise


def _nobody() -> bool:
    return False


class Communicators:
    """NCCL's communicators of one set of ranks.

    Parameters
    ----------
    ranks : SetupRanks
        The ranks.
    native : CommunicatorThread
        Has the first of them.

    Attributes
    ----------
    native : RawCommunicator
        The first.
    made : dict of str
        The existing ones by algorithm, in the order of their creation.
    """

    def __init__(self, ranks: SetupRanks, native: CommunicatorThread) -> None:
        assert native.communicator is not None
        self.native = native.communicator
        self.made = {NATIVE: self.native}
        self._ranks = ranks
        self._threads = [native]
        self._lock = threading.Lock()
        self._ended = False
        self._process = os.getpid()

    def make(self, algorithm: str) -> None:
        """Make the communicator of an algorithm of `PINNED`, or `REGISTERED`. Collective; blocks; idempotent.

        Raises
        ------
        RankMismatch
            On all ranks, if they request different algorithms.
        CommunicationError
            On all ranks, if it cannot be made.
        CollectiveTimeout
            If it took longer than the deadline.
        CommunicatorAborted
            If these communicators were ended during the creation.
        """
        if algorithm in self.made:
            return
        # NCCL would connect ranks with different algorithms, and then hang or give wrong numbers.
        requested = [each.decode() for each in self._ranks.control.all_gather(algorithm.encode())]
        if len(set(requested)) > 1:
            listed = ", ".join(f"rank {rank}: {each!r}" for rank, each in enumerate(requested))
            raise RankMismatch(
                f"the ranks ask for NCCL's communicators of different algorithms ({listed}); "
                "give the same algorithm on all ranks",
                ranks=tuple(range(len(requested))),
            )
        thread, why = new_communicator(self._ranks, PINNED.get(algorithm))
        if thread is None or thread.communicator is None:
            raise CommunicationError(
                f"NCCL's communicator for algorithm {algorithm!r} cannot be made ({why}); "
                "NCCL_DEBUG=WARN shows more, and algorithm 'native' needs none"
            )
        with self._lock:
            ended = self._ended
            if not ended:
                self.made[algorithm] = thread.communicator
                self._threads.append(thread)
        if ended:  # aborted by another thread
            thread.end(partial(_abort, inside=_nobody))
            raise CommunicatorAborted(
                f"algorithm {algorithm!r} has no communicator: NCCL's were ended while it was made"
            )

    def check(self) -> None:
        """Raise NCCL's error if it has noticed a failure. Local, from any thread."""
        with self._lock:  # `abort` frees the inspected communicator
            if self._ended or os.getpid() != self._process:
                return
            for communicator in self.made.values():
                communicator.check_async_error()

    def _end(self, how: Callable[[RawCommunicator], None]) -> bool:
        """End all of them once; return False if they were ended before."""
        with self._lock:
            if self._ended or os.getpid() != self._process:
                return False  # after a fork they are the parent's
            self._ended = True
            for thread in self._threads:  # a hang in NCCL does not delay the others
                thread.end(how)
            return True

    def _over(self) -> bool:
        return all(thread.ended is not None for thread in self._threads)

    def _within(self, seconds: float) -> bool:
        """Wait at most so long until all have ended; return whether they have."""
        _wait_while(lambda: not self._over(), seconds)
        return self._over()

    def abort(self, seconds: float = ABORT_SECONDS, inside: Callable[[], bool] = _nobody) -> None:
        """Abort all of them, with the calls under way. Local, from any thread; idempotent.

        Parameters
        ----------
        seconds : float
            How long to wait for NCCL, which continues in a thread if it takes longer.
        inside : callable
            Returns whether a thread is in a call of NCCL.
        """
        first = self._end(partial(_abort, inside=inside))
        # The program may end its communicator once this returns, whichever thread was first.
        waits = first or self.native.borrowed
        if waits and not self._within(seconds) and first:
            logger.warning(
                "NCCL has not ended a communicator %.3g s after its abort; it continues in a thread",
                seconds,
            )

    def destroy(self) -> None:
        """Free all of them after all calls under way have ended. Blocks.

        Raises
        ------
        CollectiveTimeout
            If NCCL does not finish before the deadline.
        """
        if not self._end(RawCommunicator.destroy):
            return

        def steps() -> Steps:
            while not self._over():
                yield False

        self._ranks.drive("freeing NCCL's communicators", steps())
        for thread in self._threads:
            if thread.ended:
                raise CommunicationError(f"NCCL cannot free a communicator: {thread.ended}")

    def release(self, seconds: float) -> bool:
        """Free all of them as `destroy` does, but wait at most so long; return whether all are free.

        NCCL does not free a communicator while a graph with one of its calls exists.
        """
        return not self._end(RawCommunicator.destroy) or self._within(seconds)


def _wait_while(true: Callable[[], bool], seconds: float) -> None:
    """Wait as long as it is true, at most so many seconds."""
    until = time.perf_counter() + seconds
    while true() and time.perf_counter() < until:
        time.sleep(POLL_SECONDS)


def _abort(communicator: RawCommunicator, inside: Callable[[], bool]) -> None:
    """Abort a communicator once no thread is in a call of NCCL, whose memory that frees.

    No new call begins. A call that waits in NCCL for other ranks is released by a revocation (NCCL
    from 2.28.7 on); the abort itself releases it too, but does not wait for it.

    After a revocation NCCL's abort waits for nothing on the device (2.30 init.cc: ncclCommRevoke, commReclaim),
    and a launch that had waited for room on a stream comes behind it. It gets some time. Events are not asked for,
    as that may wait for a thread in the driver.
    """
    time.sleep(SETTLE_SECONDS)
    if inside():
        revoked = communicator.revoke()
        if not revoked:
            logger.warning(
                "a thread is in a call of NCCL, which cannot stop it before it frees what the thread uses: "
                "NCCL 2.28.7 and later can"
            )
        _wait_while(inside, LEAVE_SECONDS)
        time.sleep(BEHIND_SECONDS if revoked else 0.0)
    communicator.abort()
