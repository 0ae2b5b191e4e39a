"""MPI's resources in plans of messages: a communicator, tags, requests, and their release."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hpccomm.backends.mpi.transport import DIRECT_BYTES
from hpccomm.errors import CollectiveTimeout, UsageError
from hpccomm.runtime import recorder, service

if TYPE_CHECKING:
    import hpccomm


def ring(comm: "hpccomm.Communicator", x: Any, out: Any) -> Any:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.plan("send_recv", x, right, out, left)


def planned(comm: "hpccomm.Communicator") -> list[Any]:
    backend: Any = comm._core.backend
    return list(backend._planned)


def test_the_communicator_of_plans_is_made_by_the_first_that_has_messages(
    comm: "hpccomm.Communicator",
) -> None:
    x = np.zeros(2)
    comm.plan("all_reduce", x)
    assert planned(comm) == []
    for _ in range(3):
        ring(comm, x, np.zeros(2))
    assert len(planned(comm)) == 1


def test_what_a_dropped_plan_had_is_freed_by_the_next_and_not_when_it_is_dropped(
    comm: "hpccomm.Communicator",
) -> None:
    x, out = np.zeros(2), np.zeros(2)
    first, second = ring(comm, x, out), ring(comm, x, out)
    ((_, persistent),) = planned(comm)
    assert (len(persistent._bound), len(persistent._left)) == (2, 0)
    del first
    assert (len(persistent._bound), len(persistent._left)) == (2, 1)
    third = ring(comm, x, out)
    assert (len(persistent._bound), len(persistent._left)) == (2, 0)
    for plan in (second, third):
        x[:] = comm.rank
        plan()
        assert (out == (comm.rank - 1) % comm.size).all()


def test_nothing_is_kept_of_large_messages_of_plans(comm: "hpccomm.Communicator") -> None:
    x, out = np.zeros(DIRECT_BYTES), np.zeros(DIRECT_BYTES)
    for turn in range(3):
        plan = ring(comm, x, out)
        for value in (turn, turn + 0.5):
            x[:] = value
            plan()
            assert (out == value).all()
    transport: Any = comm._core.plan_tags._transport
    assert not transport._turns


def test_plans_that_use_the_tags_up_get_another_communicator(
    comm: "hpccomm.Communicator",
) -> None:
    x, out = np.zeros(2), np.zeros(2)
    plans = [ring(comm, x, out)]
    tags = comm._core.plan_tags
    assert tags._transport is not None
    tags._transport.largest_tag = 2
    plans += [ring(comm, x, out) for _ in range(4)]
    assert len(planned(comm)) == 2
    for turn, plan in enumerate(plans):
        x[:] = 10 * turn + comm.rank
        plan()
        assert (out == 10 * turn + (comm.rank - 1) % comm.size).all()


def test_plans_that_are_refused_for_their_many_messages_make_one_communicator(
    comm: "hpccomm.Communicator", monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = comm._core.backend
    made = backend.planned

    def with_few_tags() -> Any:
        transport = made()
        transport.largest_tag = 2
        return transport

    monkeypatch.setattr(backend, "planned", with_few_tags)
    x, out = np.arange(4.0) + comm.rank, np.zeros(4)
    for _ in range(3):
        with pytest.raises(UsageError, match=r"4 messages .* 3 tags"):
            comm.plan("neighbor_all_to_all", x, [comm.rank] * 4)
    assert len(planned(comm)) == 1
    ring(comm, x, out)()
    assert (out == np.arange(4.0) + (comm.rank - 1) % comm.size).all()
    assert len(planned(comm)) == 1


@pytest.mark.mpi(min_size=2)
def test_a_plan_without_messages_does_not_say_that_they_are_bound(
    comm: "hpccomm.Communicator",
) -> None:
    x = np.zeros(2)
    assert "requests of the library are made once" in ring(comm, x, np.zeros(2)).choice.reason
    nothing = comm.plan("send", x, None).choice.reason
    assert nothing.startswith("nothing to move")
    assert "requests" not in nothing


def received(calls: Any, rank: int) -> int:
    return sum(posted for _, _, posted in calls.traffic.between(rank))


@pytest.mark.parametrize("length", [2, 50_000])
def test_planned_messages_are_recorded_and_counted_as_others(
    comm: "hpccomm.Communicator", length: int
) -> None:
    calls = comm._core.calls
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, out = np.zeros(length), np.zeros(length)
    plan = comm.plan("send_recv", x, right, out, left)
    sent, posted = (
        sum(each[1] for each in calls.traffic.between(right)),
        received(calls, left),
    )
    plan()
    assert sum(each[1] for each in calls.traffic.between(right)) == sent + 1
    assert received(calls, left) == posted + 1
    entry = recorder.calls()[-1]
    assert entry[recorder.LABEL].name == "send_recv"
    assert entry[recorder.NUMBER] == 0
    assert "test_plans.py" in recorder.described(entry[recorder.SITE])
    assert entry[recorder.ENDED] is not None


@pytest.mark.mpi(min_size=2)
def test_the_arrays_of_a_plan_that_failed_are_kept(mpi_comm: Any) -> None:
    import hpccomm

    comm = hpccomm.new_comm(mpi_comm=mpi_comm, timeout=20.0)
    out = np.zeros(3)
    if comm.rank == 0:
        plan = comm.plan("recv", out, 1, timeout=0.2)
    else:
        comm.plan("send", out, 0 if comm.rank == 1 else None)
    if comm.rank == 0:
        before = set(service._kept)
        with pytest.raises(CollectiveTimeout, match="recv"):
            plan()
        assert set(service._kept) - before
    mpi_comm.Barrier()
    comm.abort()
