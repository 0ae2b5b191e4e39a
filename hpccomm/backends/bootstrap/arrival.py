"""Who of this node's ranks has come to make a communicator, and how long to wait for the others."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpccomm.backends.bootstrap import mpi
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.backends.bootstrap.node_asking import ask, process_state
from hpccomm.backends.bootstrap.node_sockets import Address, present, serve
from hpccomm.contracts.side import ANSWERED
from hpccomm.runtime import answering
from hpccomm.runtime.stderr import write_stderr
from hpccomm.runtime.watchdog import watch
from hpccomm.units import ranks_named

START_SECONDS = 3.0
"""What MPI's own start may take, beside the deadline."""
ANSWER_SECONDS = 0.5


class JobArrival:
    """The deadline of making a communicator, from its first line on.

    MPI's start and what follows block in the library. The watchdog looks after that: at the deadline it
    says which ranks of this node have not come, and ends the job.

    Parameters
    ----------
    name : str
        Of the communicator.
    timeout : float
        Seconds.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name
        self._timeout = timeout
        self._until = math.inf
        self._began = 0.0
        self._seen: set[int] = set()  # ranks that have come, and may have ended since

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Have the block, in which all ranks meet, end at the deadline. The job ends with it."""
        self._began = time.perf_counter()
        self._until = self._began + self._timeout + START_SECONDS
        serve()
        watch(self)
        answering.note_making(True)
        try:
            yield
        finally:
            self._until = math.inf
            answering.note_making(False)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Do not count the block: what a rank does by itself, such as importing modules."""
        began, until, self._until = time.perf_counter(), self._until, math.inf
        try:
            yield
        finally:
            self._until = until + time.perf_counter() - began

    def look(self, now: float) -> None:
        """End the job if the deadline has passed."""
        if now - self._began > 1.0 and self._until != math.inf:
            self._seen.update(present())
        if now <= self._until:
            return
        self._until = math.inf  # once
        launch = launched()
        rank = f"rank {launch.rank}" if launch else "this process"
        write_stderr(
            f"hpccomm: new_comm ({self._name!r}) on {rank} has waited for the other ranks for "
            f"{now - self._began:.1f} s; its deadline is {self._timeout:g} s, and {START_SECONDS:g} s for MPI "
            f"to start. {absent(self._seen)}. The wait cannot be left, so the job ends now."
        )
        mpi.end_started_job("a communicator could not be made before its deadline")


def absent(seen: set[int]) -> str:
    """Return in words which ranks of this node have not come to make a communicator, or cannot go on.

    Parameters
    ----------
    seen : set of int
        Ranks that have come, and may have ended since.
    """
    launch, here = launched(), present()
    stopped = [rank for rank, each in here.items() if process_state(each.pid) in ("T", "t")]
    ended = sorted(seen.difference(here))
    told = [f"{_ranks(stopped)} been stopped, by SIGSTOP or a debugger"] if stopped else []
    told += [f"{_ranks(ended)} ended"] if ended else []
    if launch is not None and launch.size in (len(here), launch.local_size):
        missing = sorted(set(range(launch.size)).difference(here, ended))
        told += [f"{_ranks(missing)} not come to new_comm, or ended before"] if missing else []
    elif launch is not None:
        told.append(
            f"{len(here)} of {launch.local_size or 'the'} ranks of this node have come to new_comm: "
            f"{', '.join(map(str, sorted(here)))}"
        )
    told = told or [_elsewhere(here)]
    return "; ".join(filter(None, told)) or "All ranks of this node have come to new_comm"


def _elsewhere(here: dict[int, Address]) -> str:
    """Return in words which ranks have made a communicator before and are not making this one."""
    others = {rank: each for rank, each in here.items() if each.pid != os.getpid()}
    answers = sorted(ask(others, {}, ANSWER_SECONDS).items())
    places = {
        rank: answer.facts.get("doing") or "another place"
        for rank, answer in answers
        if answer.state == ANSWERED and not answer.facts.get("making")
    }
    return "; ".join(
        f"Rank {rank} has not come to this new_comm: it is at {place}"
        for rank, place in places.items()
    )


def _ranks(ranks: list[int]) -> str:
    return f"{ranks_named(ranks).capitalize()} {'has' if len(ranks) == 1 else 'have'}"
