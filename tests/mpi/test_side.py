"""The side channel of MPI ranks on several nodes, whose sockets do not reach each other.

Each rank takes the others for ranks of other nodes here. On one node the channel is that of every backend's contract.
"""

from typing import Any

import pytest
from mpi4py import MPI

from hpccomm.backends.bootstrap.node_sockets import Address, serve
from hpccomm.backends.mpi.side import MpiSideChannel, SideMessages
from hpccomm.contracts.backend import ANSWERED, SILENT, Facts
from hpccomm.runtime import answering

LARGE = 300_000
"""Characters; more than MPI libraries send before the receiver takes part."""

LONG = 30.0


class Noting(MPI.Intracomm):
    """A communicator, and how many messages a rank has taken of it and of its duplicates."""

    taken = 0

    def Improbe(self, *args: Any, **how: Any) -> Any:  # noqa: N802 (MPI names it)
        message = super().Improbe(*args, **how)
        Noting.taken += message is not None
        return message


class Answering:
    """A rank that answers as long as it lives."""

    def __init__(self, uid: str, rank: int) -> None:
        answering.register(uid, rank, self.answer)

    def answer(self, question: Facts) -> Facts:
        return {"rank": question["rank"], "large": "x" * question.get("large", 0)}


@pytest.fixture
def messages(mpi_comm: MPI.Intracomm) -> SideMessages:
    addresses = [
        Address(each.name, each.pid, each.host, each.network if rank == mpi_comm.rank else "far")
        for rank, each in enumerate(mpi_comm.allgather(serve(None)))
    ]
    messages = SideMessages(Noting(mpi_comm), addresses)
    messages.addresses = addresses  # type: ignore[attr-defined]
    return messages


def channel(mpi_comm: MPI.Intracomm, messages: Any) -> MpiSideChannel:
    return MpiSideChannel(mpi_comm.rank, messages.addresses, messages, range(mpi_comm.size))


@pytest.mark.mpi(min_size=2)
def test_ranks_answer_while_their_callers_are_stuck(messages: SideMessages, mpi_comm) -> None:
    side, rank, everyone = channel(mpi_comm, messages), mpi_comm.rank, range(mpi_comm.size)
    kept, group_kept = Answering("all", rank), Answering("group", mpi_comm.size - 1 - rank)
    group = side.group(everyone[::-1], mpi_comm.size - 1 - rank)
    mpi_comm.Barrier()
    question = {"comm": "all", "large": LARGE}
    if rank == 0:
        for _ in range(2):
            answers = side.ask(everyone, question, LONG)
            assert {each.state for each in answers.values()} == {ANSWERED}
            assert [answers[rank].facts["rank"] for rank in everyone] == list(everyone)
            assert {len(each.facts["large"]) for each in answers.values()} == {LARGE}
        assert side.ask([1], {"comm": "?"}, LONG)[1].facts["unknown"]
    elif rank == 1:
        answering.withdraw("all", 1, {"closed": "was finalized"})
        kept = Answering("all", rank)
    mpi_comm.Barrier()  # where the others have been blocked
    asked = side.ask(everyone, question, LONG)  # all ask all
    assert {each.state for each in asked.values()} == {ANSWERED}
    mpi_comm.Barrier()
    side.close(root=True)  # a group asks its own ranks also when it outlives its parent
    answers = group.ask(everyone, {"comm": "group"}, LONG)
    assert [answers[rank].facts["rank"] for rank in everyone] == list(everyone)
    mpi_comm.Barrier()
    group.close(root=False)
    del kept, group_kept


@pytest.mark.mpi(min_size=2)
def test_nothing_is_left_of_a_channel_whose_questions_nobody_took(messages, mpi_comm) -> None:
    side, before = channel(mpi_comm, messages), Noting.taken
    if mpi_comm.rank:
        messages.stop()  # takes no question, as one whose process is stopped
    mpi_comm.Barrier()
    if mpi_comm.rank == 0:
        assert side.ask([1], {"comm": "", "large": "x" * LARGE}, 0.05)[1].state == SILENT
    side.close(root=True)
    assert Noting.taken - before == (
        mpi_comm.rank == 1
    )  # the library uses the channel's number again
