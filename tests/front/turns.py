"""Counters, mutexes and turns."""

import time

import numpy as np

from hpccomm import Communicator
from hpccomm.errors import CollectiveTimeout, CommunicatorAborted, RankMismatch, UsageError
from hpccomm.runtime.progress import COMPARED
from hpccomm.testing.conformance.case import Behaviours, raises

TURNS = Behaviours("turns", "windows")


@TURNS.behaviour()
def a_counter_gives_each_number_once(comm: Communicator) -> None:
    """Ranks that draw at the same time get all numbers, each rank in ascending order."""
    with comm.counter(comm.size - 1) as counter:
        mine = [counter.next() for _ in range(50)]
        everyone = comm.all_gather_object(mine)
        assert mine == sorted(mine), mine
        drawn = sorted(number for each in everyone for number in each)
        assert drawn == list(range(50 * comm.size)), drawn
        comm.barrier()
        first = counter.next(0)
        assert first == 50 * comm.size, first
        comm.barrier()
        counter.next(10)
        comm.barrier()
        assert counter.next(0) == 60 * comm.size, "steps of 10"
        comm.barrier()
    with raises(UsageError, "closed"):
        counter.next()


@TURNS.behaviour()
def a_mutex_excludes_others(comm: Communicator) -> None:
    """What one rank reads and writes within it, no other does meanwhile."""
    memory, value = np.zeros(1 if comm.rank == 0 else 0), np.empty(1)
    mutex = comm.mutex()
    with comm.window(memory) as window:
        for _ in range(10):
            with mutex:
                window.get(value, 0)
                window.put(value + 1.0, 0)
                window.flush(0)
        window.fence()
        assert window.get(value, 0)[0] == 10.0 * comm.size, f"{value} increments"
        window.fence()
    with raises(UsageError, "does not hold"):
        mutex.release()
    with mutex, raises(UsageError, "holds the mutex"):
        mutex.acquire()
    with raises(ZeroDivisionError), mutex:
        raise ZeroDivisionError
    assert not mutex.held, "an exception releases it"
    mutex.close()


@TURNS.behaviour()
def a_failure_elsewhere_releases_a_mutex(comm: Communicator) -> None:
    """So does the error of another communicator, and one after which this one goes on."""
    mutex = comm.mutex()
    other = comm.dup()
    other.abort()
    for _ in range(2):
        with raises(CommunicatorAborted, other.name), mutex:
            other.barrier()
        assert not mutex.held, "of another communicator"
        with raises(RankMismatch, "compared"), mutex:
            raise RankMismatch("compared")
        assert not mutex.held, "harmless"
    mutex.close()


@TURNS.behaviour(fails=True)
def a_failure_of_its_own_communicator_is_raised(comm: Communicator) -> None:
    """A mutex that nobody can take any more is left as it is: the block's error stays the one that is raised."""
    mutex = comm.mutex()
    comm.barrier()
    if comm.rank == 0:
        with raises(ZeroDivisionError), mutex:
            comm.abort()
            raise ZeroDivisionError


@TURNS.behaviour(min_size=3)
def a_mutex_is_given_in_the_order_of_asking(comm: Communicator) -> None:
    """Ranks that ask while it is held get it in that order: the last one first, here."""
    mutex, counter, nothing = comm.mutex(), comm.counter(), np.zeros(0)
    if comm.rank == 0:
        mutex.acquire()
    comm.barrier()
    if comm.rank + 1 < comm.size:
        comm.recv(nothing, comm.rank + 1)
        time.sleep(0.05)  # only time lets it ask
    if comm.rank == 0:
        mutex.release()
    else:
        comm.send(nothing, comm.rank - 1)
        with mutex:
            place = counter.next()
        assert place == comm.size - comm.rank - 1, f"rank {comm.rank} was number {place}"
    mutex.close()
    counter.close()


@TURNS.behaviour()
def turns_are_in_the_order_of_ranks(comm: Communicator) -> None:
    """No two ranks are in a block, nor in two that follow each other, at the same time."""
    with comm.counter() as counter:
        for turn in range(3):
            with comm.in_turn():
                at = counter.next()
                time.sleep(0.002)  # time for another rank
                assert counter.next() == at + 1, "another rank was in it"
            assert at == 2 * (turn * comm.size + comm.rank), f"{at} on {comm.rank}"
        comm.barrier()
        failed = False
        try:
            with comm.in_turn():
                if comm.rank == 0:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            failed = True
        assert failed == (comm.rank == 0), "an exception is its rank's own"
        assert comm.all_gather_object(comm.rank) == list(range(comm.size)), "afterwards"


@TURNS.behaviour()
def turns_may_be_many(comm: Communicator) -> None:
    """The ranks compare their calls now and then, also where that falls on the end of a turn."""
    for before in range(3):
        with comm.dup() as other:
            for _ in range(COMPARED - 3 - before):
                other.barrier()
            for _ in range(6):
                with other.in_turn():
                    pass


@TURNS.behaviour(min_size=2, fails=True)
def a_holder_that_keeps_a_mutex_is_named(comm: Communicator) -> None:
    """The deadline of those that wait says which rank holds it."""
    mutex = comm.mutex()
    if comm.rank == 1:
        mutex.acquire()
    comm.barrier()
    if comm.rank == 0:
        with raises(CollectiveTimeout, "acquire", "rank 1 holds the mutex"):
            mutex.acquire(timeout=0.1)
