"""Cases of failing: deadlines, aborts and the end (`Backend.abandon`, `Backend.close`, `Survival`)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpccomm.communicator import Communicator
from hpccomm.contracts.backend import ANSWERED
from hpccomm.dtypes import BFLOAT16
from hpccomm.errors import CollectiveTimeout, CommunicationError, CommunicatorAborted, RankMismatch
from hpccomm.testing.conformance.case import SOON, Behaviours, raises, takes

SURVIVAL = Behaviours("survival")

SHORT = 0.2
"""Seconds of a deadline that is meant to pass."""


def all_raise(error: type[BaseException], word: str, *calls: Callable[[], object]) -> None:
    """Assert that each of `calls` raises `error` with a message that holds `word`, at once."""
    with takes():
        for call in calls:
            with raises(error, word):
                call()


def has_failed(comm: Communicator, x: Any = None) -> None:
    """Assert that every kind of call on `comm` raises at once, on `x` if there is one."""
    x = np.ones(3) if x is None else x
    all_raise(
        CommunicatorAborted,
        comm.name,
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(x, async_op=True),
        comm.barrier,
        lambda: comm.send(x, comm.rank),
        lambda: comm.broadcast_object(None),
        comm.dup,
    )


def silent(comm: Communicator) -> int:
    """Return the next rank, which sends nothing in these cases."""
    return int((comm.rank + 1) % comm.size)


ALONE: dict[str, Callable[[Communicator], Any]] = {
    "recv": lambda comm: comm.recv(np.zeros(4), silent(comm), timeout=SHORT),
    "recv_object": lambda comm: comm.recv_object(silent(comm), timeout=SHORT),
    "all_reduce": lambda comm: comm.all_reduce(np.ones(4, BFLOAT16), timeout=SHORT),
    "all_gather_object": lambda comm: comm.all_gather_object(1, timeout=SHORT),
}
"""Calls that rank 0 makes alone."""


@SURVIVAL.behaviour(call=tuple(ALONE), min_size=2, fails=True)
def a_call_times_out(comm: Communicator, call: str) -> None:
    """A call that the other ranks do not make gives up at its deadline, and the communicator has failed."""
    if comm.rank == 0:
        # On a busy machine the library may first find that ranks wait for each other.
        with takes(SHORT + SOON, SHORT / 2), raises(CommunicationError, call, comm.name) as caught:
            ALONE[call](comm)
        assert isinstance(caught[0], CollectiveTimeout | RankMismatch), caught[0]
        has_failed(comm)


@SURVIVAL.behaviour(min_size=2, fails=True)
def a_large_send_times_out(comm: Communicator) -> None:
    """A send of 8 MiB without a receiver times out, or returns since its array is reusable."""
    x = np.zeros(1 << 20)
    with takes(SHORT + SOON):
        try:
            comm.send(x, silent(comm), timeout=SHORT)
        except CollectiveTimeout as error:
            assert error.operation == "send", error.operation
            has_failed(comm)
        except RankMismatch as error:  # found first
            assert "wait for each other" in str(error), error


@SURVIVAL.behaviour(min_size=2, fails=True)
def arrays_of_different_sizes(comm: Communicator) -> None:
    """If the sizes of the ranks' arrays differ, nothing beyond the arrays is written."""
    rows = 15000  # more than an eager message holds
    memory = np.zeros(rows + 10, BFLOAT16)
    x, beyond = (memory, memory[:0]) if comm.rank == 0 else (memory[:10], memory[10:])
    with raises(CommunicationError):
        comm.all_reduce(x, timeout=SHORT)
    assert not beyond.any(), "written beyond the array"


@SURVIVAL.behaviour(fails=True)
def abort(comm: Communicator) -> None:
    """After `abort`, later calls raise at once; a second `abort` does nothing."""
    comm.abort()
    comm.abort()
    has_failed(comm)


@SURVIVAL.behaviour(fails=True)
def finalize(comm: Communicator) -> None:
    """`finalize` completes a call that was not waited for, and may be called again; the facts remain."""
    x = np.full(100_000, comm.rank, np.int64)
    work = comm.all_reduce(x, async_op=True)
    comm.finalize()
    comm.finalize()
    assert work.done(), "done"
    assert (x == sum(range(comm.size))).all(), "the result"
    assert 0 <= comm.rank < comm.size, "facts remain"


@SURVIVAL.behaviour()
def ranks_answer_while_others_wait(comm: Communicator) -> None:
    """If ranks can ask each other (`Backend.side`), all of them answer, whatever calls they wait in."""
    backend = comm._core.backend  # noqa: SLF001 (the backend is under test)
    if backend.side is not None and comm.rank == 0:
        answers = backend.side.ask(range(comm.size), {"comm": backend.uid}, SOON)
        assert set(answers) == set(range(comm.size)), answers
        assert {answer.state for answer in answers.values()} == {ANSWERED}, answers
    comm.barrier()
    assert len(set(comm.all_gather_object(backend.uid))) == 1, "uid is equal on all ranks"


@SURVIVAL.behaviour(fails=True)
def the_ranks_that_are_left(comm: Communicator) -> None:
    """If the backend survives lost ranks, the ranks of a failed communicator agree and make a new one."""
    survival = comm._core.backend.survival  # noqa: SLF001 (the backend is under test)
    if survival is None:
        return
    assert survival.lost() == (), "none is lost"
    survival.release()
    comm.abort()
    assert survival.agreed(1 << 3 | 1 << comm.rank % 2) == 1 << 3 | (comm.size == 1), "agreed"
    made, excluded = survival.shrunk(survival.epoch + 1, 1)
    assert (made.rank, made.size, excluded) == (comm.rank, comm.size, ()), "shrunk"
    made.close()
