"""The side channel of MPI ranks: on one node by sockets, between nodes by messages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from hpccomm.contracts.backend import ANSWERED, SILENT, Facts
from hpccomm.runtime import answering

if TYPE_CHECKING:
    from mpi4py import MPI

LARGE = 300_000
"""Characters; more than MPI libraries send before the receiver takes part."""
LONG = 30.0


class Answering:
    """A rank that answers as long as it lives."""

    def __init__(self, backend: Any) -> None:
        answering.register(backend.uid, backend.rank, self.answer)

    def answer(self, question: Facts) -> Facts:
        return {"rank": question["rank"], "large": "x" * question.get("large", 0)}


@pytest.fixture(params=["one node", "nodes"])
def backend(
    request: pytest.FixtureRequest, mpi_comm: "MPI.Intracomm", monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Give a backend whose ranks reach each other's sockets, or each believes itself on its own host."""
    from hpccomm.backends.bootstrap import node_sockets
    from hpccomm.backends.mpi import backend as module

    if request.param == "nodes":
        host = f"host {mpi_comm.rank}"
        own = node_sockets.serve()._replace(network=host)
        monkeypatch.setattr(module, "serve", lambda rank: own)
        monkeypatch.setattr(node_sockets, "network", lambda: host)
    made = module.make(mpi_comm)
    if made.thread_restriction:
        pytest.skip("takes MPI_THREAD_MULTIPLE")
    return made


def test_ranks_answer_while_their_callers_are_stuck(
    backend: Any, mpi_comm: "MPI.Intracomm"
) -> None:
    kept = Answering(backend)
    mpi_comm.Barrier()
    question = {"comm": backend.uid, "large": LARGE}
    everyone = range(backend.size)
    if backend.rank == 0:
        for _ in range(2):
            answers = backend.side.ask(everyone, question, LONG)
            assert {rank: each.state for rank, each in answers.items()} == dict.fromkeys(
                everyone, ANSWERED
            )
            assert [answers[rank].facts["rank"] for rank in everyone] == list(everyone)
            assert {len(each.facts["large"]) for each in answers.values()} == {LARGE}
        assert backend.side.ask([0], {"comm": "?"}, LONG)[0].facts["unknown"]
    elif backend.rank == 1:
        answering.withdraw(backend.uid, 1, {"closed": "was finalized"})
        kept = Answering(backend)
    mpi_comm.Barrier()  # where the others have been blocked
    asked = backend.side.ask(everyone, question, LONG)  # all ask all
    assert {each.state for each in asked.values()} == {ANSWERED}
    mpi_comm.Barrier()
    backend.close()
    del kept


def test_a_group_asks_its_own_ranks_also_when_it_outlives_its_parent(
    backend: Any, mpi_comm: "MPI.Intracomm"
) -> None:
    members = [rank for rank in reversed(range(backend.size)) if rank % 2 == backend.rank % 2]
    groups = [backend.group(members, label) for label in (1, 2)]
    assert len({backend.uid, *(each.uid for each in groups)}) == 3
    uids = mpi_comm.allgather([each.uid for each in groups])
    assert all(uids[rank] == uids[backend.rank] for rank in members)
    kept = [Answering(each) for each in groups]
    backend.close()
    for group in groups:
        mpi_comm.Barrier()
        answers = group.side.ask(range(group.size), {"comm": group.uid}, LONG)
        assert [answers[rank].facts["rank"] for rank in range(group.size)] == [*range(group.size)]
        mpi_comm.Barrier()
        group.close()
    del kept


def test_nothing_is_left_of_a_channel_whose_questions_nobody_took(
    backend: Any, mpi_comm: "MPI.Intracomm"
) -> None:
    from hpccomm.backends.mpi import side

    before = len(side._all)
    right = (backend.rank + 1) % backend.size
    messages = backend.side._messages
    if messages is not None:
        messages.stop()  # takes no question, as one whose process is stopped
        messages._open = backend.rank == 0
        mpi_comm.Barrier()
    if backend.rank == 0 and backend.size > 1:
        state = backend.side.ask([right], {"comm": "", "large": "x" * LARGE}, 0.05)[right].state
        assert messages is None or state == SILENT
    backend.close()
    if messages is not None and backend.size > 1:
        left = (backend.rank - 1) % backend.size
        assert not messages._sending
        assert messages._received[left] == (left == 0)
    assert len(side._all) == before - (messages is not None)
