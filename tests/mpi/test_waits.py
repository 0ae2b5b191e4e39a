"""Every two waits of two ranks, and rounds of three: what can never end is told in seconds, and the rest ends well.

The rule itself is that of deadlocks with waits for all and for any of several, as in Knapp, "Deadlock detection in
distributed databases", 1987.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm import ANY, Communicator, wait_all, wait_any
from hpccomm.errors import CommunicationError

LARGE = 100_000
"""Elements; a message of so many is not sent without its receiver."""

QUICK = {
    "inquiry.ASK_SECONDS": 0.06,
    "state.BLOCKED_SECONDS": 0.05,
    "deadlock.BLOCKED_SECONDS": 0.05,
    "service.LOOK_SECONDS": 0.01,
}
"""A fifth of the seconds: there are many pairs."""

LONG = 0.3
"""Seconds in which ranks ask more than once. Nothing but time shows that they wait on all the same."""

SOON = 40.0
"""Seconds for what takes a tenth of one on a quiet machine. The deadlines are a minute."""


@pytest.fixture
def base(mpi_comm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Communicator]:
    """Give a communicator whose ranks ask soon, of which others are made."""
    for name, seconds in QUICK.items():
        # Users cannot choose these, and a pair would take a second.
        monkeypatch.setattr(f"hpccomm.runtime.{name}", seconds)
    options = hpccomm.CommOptions(self_check=False)
    made = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=60, options=options)
    yield made
    made.abort()
    mpi_comm.Barrier()


class Pair(NamedTuple):
    """A communicator, and what its ranks have made of it."""

    comm: Communicator
    window: Any
    mutexes: list[Any]

    @property
    def other(self) -> int:
        return (self.comm.rank + 1) % self.comm.size

    def receive(self, tag: int = 0) -> Any:
        work = self.comm.recv(np.zeros(LARGE), self.other, tag, async_op=True)
        work.done()  # else it is warned of where it is dropped
        return work


def in_a_turn(pair: Pair) -> None:
    with pair.comm.in_turn():
        pair.comm.barrier()


def dropped(pair: Pair) -> None:
    pair.receive()
    pair.comm.finalize()


WAITS: dict[str, Callable[[Pair], Any]] = {
    "send": lambda pair: pair.comm.send(np.zeros(LARGE), pair.other),
    "recv": lambda pair: pair.comm.recv(np.zeros(LARGE), pair.other),
    "recv of any rank": lambda pair: pair.comm.recv(None, ANY),
    "recv of any tag": lambda pair: pair.comm.recv(None, pair.other, ANY),
    "probe": lambda pair: pair.comm.probe().recv(),
    "recv_object": lambda pair: pair.comm.recv_object(ANY, ANY),
    "wait": lambda pair: pair.receive().wait(),
    "wait_all": lambda pair: wait_all([pair.receive(3), pair.receive(3)]),
    "wait_any": lambda pair: wait_any([pair.receive(3), pair.receive(4)]),
    "all_reduce": lambda pair: pair.comm.all_reduce(np.zeros(LARGE)),
    "barrier": lambda pair: pair.comm.barrier(async_op=True).wait(),
    "in_turn": in_a_turn,
    "acquire": lambda pair: pair.mutexes[pair.other].acquire(),
    "wait_signal": lambda pair: pair.window.wait_signal(pair.other),
    "close": lambda pair: pair.window.close(),
    "dropped": dropped,
    "finalize": lambda pair: pair.comm.finalize(),
}
TAKE = {"recv", "recv of any rank", "recv of any tag", "probe", "wait", "dropped"}
"""What takes an array of tag 0."""
AGREE = {"all_reduce", "barrier", "close", "finalize"}
"""Collectives that all ranks may be in."""
PAIRS = [*combinations_with_replacement(WAITS, 2)]


@contextmanager
def told(comm: Communicator, ranks: set[int]) -> Iterator[None]:
    """Assert that ranks get an error in the block, soon, and that it names each of them and its line."""
    texts, begun = list[str](), time.monotonic()
    try:
        yield
    except CommunicationError as error:
        texts.append(str(error))
    assert time.monotonic() - begun < SOON
    every = comm.all_gather_object(texts, timeout=SOON)
    assert {rank for rank, each in enumerate(every) if each} == ranks, every
    for rank in ranks:
        for there in ranks:
            named = rf"\branks? (\d, )*(\d and )?{there}\b.*test_waits.py line \d+"
            assert re.search(named, every[rank][0]), (rank, every)
        assert "wait for each other" in every[rank][0] or "call different" in every[rank][0], every


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("first", WAITS)
def test_two_ranks_that_wait(base: Communicator, first: str) -> None:
    two = base.split_ranks([0, 1])
    for names in (each for each in PAIRS if two is not None and each[0] == first):
        assert two is not None
        comm = two.dup()
        mutexes = [comm.mutex() for _ in range(2 * ("acquire" in names))]
        window = comm.window(np.zeros(1)) if {"wait_signal", "close"} & {*names} else None
        if mutexes:
            mutexes[comm.rank].acquire()
            comm.barrier()
        well = "send" in names and TAKE & {*names}
        well = well or (names[0] == names[1] and names[0] in AGREE)
        with told(two, set() if well else {0, 1}):
            WAITS[names[comm.rank]](Pair(comm, window, mutexes))
            if well:
                comm.finalize()
        comm.abort()
    if two is not None:
        two.abort()


def barrier(comm: Communicator) -> None:
    comm.barrier(algorithm="dissemination")


def a_ring(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.recv_object(1)
    elif comm.rank == 1:
        comm.recv(None, 2)
    else:
        comm.send_recv(np.ones(1), 1, np.ones(1), 0, tag=5)


def one_that_waits_behind_the_others(comm: Communicator) -> None:
    comm.recv(None, ANY if comm.rank == 0 else 3 - comm.rank)


def any_of_several_communicators(comm: Communicator) -> None:
    first, second = comm.dup(), comm.dup()
    if comm.rank == 0:
        wait_any([first.recv(None, 1, async_op=True), second.recv(None, 2, async_op=True)])
    barrier(comm)


def two_orders(comm: Communicator) -> None:
    two = [comm.dup(), comm.dup()]
    for each in two[::-1] if comm.rank == 1 else two:
        barrier(each)


def each_its_own_pair_first(comm: Communicator) -> None:
    pairs = [comm.split_ranks(pair) for pair in ([0, 1], [1, 2], [2, 0])]
    for each in (pairs[comm.rank], pairs[comm.rank - 1]):
        assert each is not None
        barrier(each)


ROUNDS: list[tuple[Callable[[Communicator], None], set[int]]] = [
    (a_ring, {0, 1, 2}),
    (one_that_waits_behind_the_others, {1, 2}),
    (any_of_several_communicators, {0, 1, 2}),
    (two_orders, {1}),
    (each_its_own_pair_first, {0}),
]


@by_default_on(3)
@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(("calls", "named"), ROUNDS)
def test_three_ranks_that_wait(base, calls, named) -> None:
    three = base.split_ranks([0, 1, 2])
    if three is None:
        return
    comm, texts, begun = three.dup(), list[str](), time.monotonic()
    try:
        calls(comm)
    except CommunicationError as error:
        texts.append(str(error))
    comm.abort()
    every = three.all_gather_object(texts, timeout=SOON)
    assert time.monotonic() - begun < SOON
    assert all(every), every
    for rank in named:
        said = rf"\branks? (\d, )*(\d and )?{rank}\b[^;]* waits? in [^;]*test_waits.py line \d+"
        assert any(re.search(said, text) for each in every for text in each), every
    three.abort()


def a_rank_computes(comm: Communicator) -> None:
    if comm.rank == 0:
        comm.recv(None, ANY)
    else:
        time.sleep(LONG)
        comm.send(np.ones(3), 0)
    barrier(comm)


def a_thread_sends(comm: Communicator) -> None:
    work, sent = comm.recv(np.ones(3), 1 - comm.rank, async_op=True), comm.rank == 0
    if comm.rank == 1:
        thread = threading.Timer(LONG, lambda: comm.send(np.ones(3), 0))
        thread.start()
    work.wait()
    if sent:
        comm.send(np.ones(3), 1)
    barrier(comm)


def what_has_begun_goes_on(comm: Communicator) -> None:
    x, others = np.ones(LARGE), 1 - comm.rank
    works = [comm.recv(np.empty(LARGE), others, tag, async_op=True) for tag in range(3)]
    works += [comm.send(x, others, tag, async_op=True) for tag in (2, 1, 0)]
    time.sleep(LONG * comm.rank)
    works[1].wait()
    barrier(comm)
    wait_all(works)


def a_mutex_is_held_long(comm: Communicator) -> None:
    mutex = comm.mutex()
    with mutex:
        time.sleep(LONG)
    mutex.close()


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
def test_what_only_takes_long_goes_on(base: Communicator) -> None:
    two = base.split_ranks([0, 1])
    for calls in a_rank_computes, a_thread_sends, what_has_begun_goes_on, a_mutex_is_held_long:
        if two is not None:
            with two.dup() as comm:
                calls(comm)
    if two is not None:
        two.abort()


@by_default_on(2)
def test_a_deadline_that_passes_in_the_first_polls_ends_no_job(
    comm: Communicator, monkeypatch
) -> None:
    # Few polls take so long where many ranks share a core.
    monkeypatch.setattr("hpccomm.runtime.waiting.SPINS", 1 << 19)
    with comm.dup() as own:
        if comm.rank == 0 and comm.size > 1:
            with pytest.raises(CommunicationError, match="all_reduce"):
                own.all_reduce(
                    np.ones(4, np.float16), timeout=0.05
                )  # no rank has agreed on it before
        comm.barrier()
