"""Setup in NCCL by all ranks together, each in a thread, with one outcome for all.

The creation of a communicator blocks in NCCL until every rank has called. It runs in a thread, so
that the deadline holds. As soon as one rank has failed, rank 0 informs the others, even while they
are blocked in NCCL, so that none hangs.

`opening` and `communicators` create communicators by it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpccomm.backends.control import Control, Drive
from hpccomm.contracts.transport import Steps
from hpccomm.memory.cuda.library import cupy
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


class BackgroundTask:
    """Work in a thread of its own.

    Parameters
    ----------
    work : callable
        The work, which runs with `device` current. ``result.abort()`` discards its result.
    device : int
        CUDA device.
    """

    def __init__(self, work: Callable[[], Any], device: int) -> None:
        self.result: Any = None
        self._work = work
        self._device = device
        self._lock = threading.Lock()
        self._why: str | None = None
        self._given_up = False
        threading.Thread(target=self._run, name="hpccomm-nccl", daemon=True).start()

    def _run(self) -> None:
        why, result = "", None
        try:
            # The current device is the thread's.
            cupy().cuda.runtime.setDevice(self._device)
            result = self._work()
        except Exception as error:  # noqa: BLE001 (all ranks get it)
            why = f"{type(error).__name__}: {error}"
        with self._lock:
            self.result, self._why = result, why
            given_up = self._given_up
        if given_up and result is not None:
            result.abort()

    def outcome(self) -> str | None:
        """Return None while it runs, '' after success, or the reason of its failure."""
        with self._lock:
            return self._why

    def give_up(self) -> None:
        """Wait no longer, and abort the result once it exists. Does not block."""
        with self._lock:
            self._given_up = True
            result = self.result
        if result is not None:
            result.abort()


def agreed_setup(ranks: SetupRanks, name: str, work: Callable[[], Any]) -> tuple[Any, str]:
    """Do the same on all ranks. Collective; blocks.

    Parameters
    ----------
    ranks : SetupRanks
        Who takes part.
    name : str
        Of the work, for messages.
    work : callable
        Returns an object with ``abort()``. Runs in a thread.

    Returns
    -------
    object or None
        The result of `work`; None on all ranks if it failed on one.
    str
        The reason for the failure, the same on all ranks.

    Raises
    ------
    CollectiveTimeout
        If it took longer than the deadline.
    """
    aside = BackgroundTask(work, ranks.device)
    box: list[bytes] = []
    steps = _judged if ranks.rank else _judging
    try:
        ranks.drive(name, steps(ranks, aside.outcome, box))
    except BaseException:
        aside.give_up()
        raise
    if box[0]:
        aside.give_up()
        return None, box[0].decode()
    return aside.result, ""


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
