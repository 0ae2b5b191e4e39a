"""The side channel over MPI, by which ranks ask each other about calls that wait.

Ranks that reach each other's socket ask there, without MPI, so that a thread that is stuck in MPI cannot
block the question. Ranks on other nodes are asked by messages on a separate communicator, which every
process's watchdog polls. That takes MPI_THREAD_MULTIPLE; without it ranks on other nodes count as silent. Sockets
between nodes would need to know the interface, and sites close ports; MPI's messages reach all ranks of the job.

`backend` makes the channel; `hpccomm.runtime.inquiry`, `deadlock` and the exits ask by it.
"""

import json
import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccomm.backends.bootstrap.node_sockets import Address, ask, state_of
from hpccomm.contracts.backend import ANSWERED, GONE, SILENT, Answer, Facts
from hpccomm.runtime.answering import answer
from hpccomm.runtime.service import ExitStep, after_fork, at_exit, keep, let_go, service

logger = logging.getLogger("hpccomm")

_QUESTION, _ANSWER = 1, 2  # tags


@dataclass(slots=True, eq=False)
class _Round:
    """One question to several ranks, until all have answered or the time is over.

    `missing` has the ranks without an answer, and `states` the states of further ranks that answers tell of.
    """

    missing: set[int]
    answers: dict[int, Answer] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)

    def take(self, rank: int, answered: Answer) -> None:
        """Note one rank's answer."""
        self.missing.discard(rank)
        self.answers[rank] = answered


class SideMessages:
    """Questions and answers as messages between the ranks of a separate communicator.

    The watchdog and the asking thread advance them. Ranks are those of this communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator that is duplicated. So making this object is collective, and blocks.
    addresses : sequence of Address
        The addresses of the ranks. A rank's answer includes which ranks of its node are gone or stopped, since only
        ranks of that node can see it.

    Attributes
    ----------
    users : set of MpiSideChannel
        The channels of the communicators that use these messages.
    """

    def __init__(self, comm: Any, addresses: Sequence[Address]) -> None:
        self._comm = comm.Dup()
        self._near = {rank: each for rank, each in enumerate(addresses) if each.near()}
        self._lock = threading.Lock()  # held during this object's calls of MPI
        self._open = True
        self._rounds: dict[int, _Round] = {}
        self._number = 0
        self._sending: list[tuple[Any, bytes]] = []
        self._receiving: list[tuple[Any, bytearray, int, int]] = []  # with sender and tag
        self._sent = np.zeros(comm.size, np.int64)  # messages, by rank
        self._received = np.zeros(comm.size, np.int64)
        self.users: weakref.WeakSet[MpiSideChannel] = weakref.WeakSet()
        keep(self)  # MPI may use the buffers as long as the communicator exists
        _all.add(self)
        service.watch(self.turn)

    def turn(self, _now: float = 0.0) -> None:
        """Answer the questions and take the answers that have arrived. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return  # another thread is doing this
        try:
            if self._open and not MPI.Is_finalized():
                self._move()
        except MPI.Exception as error:
            self._open = self._goes_on(error)
        finally:
            self._lock.release()

    def begin(self, questions: Mapping[int, Facts]) -> _Round:
        """Send a question to each rank. Never blocks for long."""
        asked = _Round(set(questions))
        with service.holding(self._lock):
            self._number += 1
            self._rounds[self._number] = asked
            for rank, question in questions.items():
                try:
                    if self._open and not MPI.Is_finalized():
                        self._send(rank, _QUESTION, {"number": self._number, "facts": question})
                except MPI.Exception as error:
                    asked.take(rank, Answer(GONE))
                    self._open = self._goes_on(error)
        return asked

    def end(self, asked: _Round) -> dict[int, Answer]:
        """Stop waiting for missing answers, and return each rank's answer or state."""
        with service.holding(self._lock):
            self._rounds = {n: each for n, each in self._rounds.items() if each is not asked}
        for rank in asked.missing:
            asked.answers[rank] = Answer(asked.states.get(rank, SILENT))
        return asked.answers

    def _move(self) -> None:
        self._sending = [each for each in self._sending if not each[0].Test()]
        status = MPI.Status()
        while (message := self._comm.Improbe(status=status)) is not None:
            data = bytearray(status.count)
            request = message.Irecv([data, MPI.BYTE])
            self._receiving.append((request, data, status.source, status.tag))
        arrived = [each for each in self._receiving if each[0].Test()]
        if arrived:
            self._receiving = [each for each in self._receiving if each not in arrived]
            for _, data, rank, tag in arrived:
                self._received[rank] += 1
                self._take(rank, tag, json.loads(data))

    def _take(self, rank: int, tag: int, message: Facts) -> None:
        number, facts = message["number"], message["facts"]
        if tag == _ANSWER:
            asked = self._rounds.get(number)
            if asked is not None:  # else the answer came too late
                asked.take(rank, Answer(ANSWERED, facts))
                asked.states.update((int(near), state) for near, state in message["near"].items())
        elif self._open:
            states = {near: state_of(address) for near, address in self._near.items()}
            wrong = {near: state for near, state in states.items() if state != SILENT}
            self._send(rank, _ANSWER, {"number": number, "facts": answer(facts), "near": wrong})

    def _send(self, rank: int, tag: int, message: Facts) -> None:
        data = json.dumps(message, default=repr).encode()
        self._sending.append((self._comm.Isend([data, MPI.BYTE], rank, tag), data))
        self._sent[rank] += 1

    def _goes_on(self, error: MPI.Exception) -> bool:
        """Return whether messages to other ranks go on after an error, as they do after a loss under ULFM."""
        if error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            self._comm.Ack_failed(self._comm.size)
            return True
        logger.debug("the side channel between nodes has ended: %s", error)
        return False

    def stop(self) -> None:
        """Make no more calls of MPI. Idempotent; waits for a thread that is in one."""
        with self._lock:
            self._open = False

    def close(self) -> None:
        """Free the communicator if no group uses it. Collective over all ranks; blocks.

        If a group still uses it on any rank, the communicator stays for the life of the process.
        """
        used = np.array([len(self.users)], np.int64)
        self._comm.Allreduce(MPI.IN_PLACE, [used, MPI.INT64_T])
        if used[0]:
            return
        with self._lock:
            self._open = False  # no other thread calls MPI here from now on
        # No message may be left over, since the library reuses the communicator's number.
        expected = np.zeros_like(self._sent)
        counts = [self._sent, 1, MPI.INT64_T], [expected, 1, MPI.INT64_T]
        exchange = self._comm.Ialltoall(*counts)
        while not exchange.Test() or (self._received != expected).any() or self._sending:
            self._move()
            time.sleep(0)
        self._comm.Free()
        _all.discard(self)
        let_go(self)

    def disown(self) -> None:
        """Do nothing from now on, in a forked process."""
        self._lock, self._open = threading.Lock(), False


_all: weakref.WeakSet[SideMessages] = weakref.WeakSet()


def _stop_all() -> None:
    for each in tuple(_all):
        each.stop()


at_exit(ExitStep.THREADS, _stop_all)


@after_fork
def _after_fork() -> None:
    for each in tuple(_all):
        each.disown()


class MpiSideChannel:
    """The side channel of one communicator.

    Parameters
    ----------
    rank : int
        This rank.
    addresses : sequence of Address
        The addresses of all ranks.
    messages : SideMessages or None
        The messages to other nodes; None if there are none.
    numbers : sequence of int
        Each rank's number in the communicator of `messages`.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Address],
        messages: SideMessages | None,
        numbers: Sequence[int],
    ) -> None:
        self._rank = rank
        self._addresses = tuple(addresses)
        self._numbers = tuple(numbers)
        self._messages: SideMessages | None = None
        if messages is not None and apart(addresses):
            self._messages = messages
            messages.users.add(self)

    def group(self, ranks: Sequence[int], rank: int) -> "MpiSideChannel":
        """Return the side channel of the group of `ranks`, in which this process is `rank`. Local."""
        addresses = [self._addresses[each] for each in ranks]
        numbers = [self._numbers[each] for each in ranks]
        return MpiSideChannel(rank, addresses, self._messages, numbers)

    def ask(self, ranks: Sequence[int], question: Facts, seconds: float) -> dict[int, Answer]:
        """Ask ranks, all at the same time; blocks at most `seconds`."""
        near = {
            rank: self._addresses[rank]
            for rank in ranks
            if rank != self._rank and self._addresses[rank].near()
        }
        far = [rank for rank in ranks if rank != self._rank and rank not in near]
        messages, asked = self._messages, None
        if messages is not None and far:
            rank_of = {self._numbers[rank]: rank for rank in far}
            asked = messages.begin(
                {number: {**question, "rank": rank} for number, rank in rank_of.items()}
            )
        answers = {
            rank: Answer(ANSWERED, answer({**question, "rank": rank}))
            for rank in ranks
            if rank == self._rank
        }
        answers.update((rank, self._known(rank, Answer(SILENT))) for rank in far)

        def turn() -> bool:
            # The watchdog may be the thread that asks; then no other thread advances them.
            for each in tuple(_all):
                each.turn()
            return asked is None or not asked.missing

        answers |= ask(near, question, seconds, turn if _all else None)
        if messages is not None and asked is not None:
            answers |= {
                rank_of[number]: self._known(rank_of[number], each)
                for number, each in messages.end(asked).items()
            }
        return answers

    def _known(self, rank: int, answered: Answer) -> Answer:
        """Return a rank's answer with the host and process id that are known without it."""
        address = self._addresses[rank]
        return Answer(answered.state, {"host": address.host, "pid": address.pid, **answered.facts})

    def close(self, *, root: bool) -> None:
        """Free the resources of this channel. Collective if `root`, which is the communicator that groups come from."""
        if self._messages is not None:
            self._messages.users.discard(self)
            if root:
                self._messages.close()
            self._messages = None


def apart(addresses: Sequence[Address]) -> bool:
    """Whether some of the processes cannot reach each other's sockets."""
    return len({each.network for each in addresses}) > 1 or not all(each.name for each in addresses)
