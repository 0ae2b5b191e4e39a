"""What ranks expose and reach in a call. Two ranks of one process: the way is that of two."""

import errno
import os
from collections.abc import Sequence

import numpy as np
import pytest

from hpccomm.contracts.transport import Pages, Reach
from hpccomm.errors import CommunicationError, PeerLost
from hpccomm.memory.shared import NodeMemory, heap
from hpccomm.memory.shared.heap import FreeRanges, HeapSegment, IdlePages
from hpccomm.memory.shared.node import NodeExposure

F4 = np.dtype(np.float32)
ROOM = 1 << 16

Ranks = Sequence[NodeMemory]


@pytest.fixture
def ranks(monkeypatch) -> Ranks:
    monkeypatch.setattr(heap, "_of_process", {})  # leases and segments of this test's own
    return _ranks()


def _ranks(plain: bool = True, pid: int | None = None) -> Ranks:
    pids = {0: os.getpid(), 1: pid or os.getpid()}
    return [NodeMemory(rank, pids, 2, plain=plain, how="as tested") for rank in range(2)]


def exposed(
    ranks: Ranks,
    arrays: Sequence[Sequence[np.ndarray]],
    scratch: int = 0,
    plain: bool = True,
    rooms: Sequence[int] = (ROOM, ROOM),
) -> tuple[list[NodeExposure], list[Reach]]:
    """Expose each rank's arrays; exchange the records as ranks do, in a table that is used again."""
    both = [
        rank.expose(own, 77, scratch, plain=plain, room=room)
        for rank, own, room in zip(ranks, arrays, rooms, strict=True)
    ]
    table = np.array([each.record for each in both])
    reach = [each.take_records({0: table[0], 1: table[1]}) for each in both]
    table[:] = -1
    return both, reach


def seen(view: "np.ndarray | Pages") -> np.ndarray:
    return np.array(view if isinstance(view, np.ndarray) else view[0 : view.size])


def arrays_of(rank: NodeMemory, registered: Sequence[bool], n: int = 100) -> list[np.ndarray]:
    made = []
    for number, each in enumerate(registered):
        data = rank.empty(n * 4).view(F4) if each else np.empty(n, F4)
        data[:] = np.arange(n) + 1000 * rank.rank + 100_000 * number
        made.append(data)
    return made


@pytest.mark.parametrize(
    ("first", "second", "scratch", "plain", "reach"),
    [
        ((1, 1), (1, 1), 0, False, Reach.DIRECT),
        ((1, 1), (1, 0), 64, False, Reach.STAGED),
        ((0, 0), (1, 1), 64, False, Reach.STAGED),
        ((0, 0), (1, 1), 64, True, Reach.DIRECT),
        ((0, 0), (0, 0), 0, False, Reach.NONE),
        ((0, 0), (0, 0), ROOM + 1, False, Reach.NONE),
        ((1, 1), (1, 1), ROOM + 1, False, Reach.DIRECT),
    ],
)
def test_all_ranks_find_the_same(ranks, first, second, scratch, plain, reach) -> None:
    own = [arrays_of(rank, kind) for rank, kind in zip(ranks, (first, second), strict=True)]
    _, found = exposed(ranks, own, scratch, plain)
    assert found == [reach] * 2


def test_plain_arrays_are_not_reached_where_that_was_not_agreed(ranks) -> None:
    strict = _ranks(plain=False)
    own = [arrays_of(rank, (False, False)) for rank in strict]
    assert exposed(strict, own, 0)[1] == [Reach.NONE] * 2


def test_one_rank_without_scratch_sends_all_apart(ranks) -> None:
    own = [arrays_of(rank, (False, False)) for rank in ranks]
    both, reach = exposed(ranks, own, 128, plain=False, rooms=(ROOM, 100))
    assert reach == [Reach.NONE] * 2
    assert both[0].scratch is not None
    assert both[1].scratch is None


def test_empty_arrays_are_reachable(ranks) -> None:
    own = [[np.empty(0, F4), np.empty(0, F4)], arrays_of(ranks[1], (True, True))]
    both, reach = exposed(ranks, own, plain=False)
    assert reach == [Reach.DIRECT] * 2
    assert both[1].peer_buffer(0, 0, F4).size == 0


def test_room_is_that_of_the_process_whatever_the_calls(ranks) -> None:
    own = arrays_of(ranks[0], (False, False))

    def ask(nbytes: int) -> NodeExposure:
        return ranks[0].expose(own, 1, nbytes, plain=False, room=1000)

    first, second = ask(600), ask(600)
    assert first.scratch is not None
    assert second.scratch is None
    second.release()
    third = ask(400)
    assert third.scratch is not None
    assert ask(1).scratch is None
    first.release()
    third.release()
    whole = ask(1000)  # what was kept makes room
    assert whole.scratch is not None
    assert ask(1).scratch is None
    whole.release()
    # Another communicator of the process has the same room.
    other = ranks[1].expose(own, 1, 700, plain=False, room=1000)
    assert other.scratch is not None
    assert ask(600).scratch is None
    other.release()
    assert ask(600).scratch is not None


def test_plain_memory_whose_place_a_segment_takes_is_noticed(ranks, monkeypatch) -> None:
    own = arrays_of(ranks[0], (False, False))
    heap = ranks[0]._heap
    record = ranks[0].expose(own, 5, 0, plain=True, room=ROOM).record
    # Freed, its pages would go back to the system, which gives their addresses to the next mapping.
    segment = HeapSegment(9 << 32, own[0].ctypes.data, own[0].nbytes, FreeRanges(1), IdlePages())
    monkeypatch.setattr(heap, "_segments", [segment])
    monkeypatch.setattr(heap, "_map", ((segment.at,), (segment,)))
    again = ranks[0].expose(own, 5, 0, plain=True, room=ROOM).record
    assert record[2] == -1
    assert again[2] == segment.key


def test_an_array_is_told_from_registered_memory_by_its_address(ranks) -> None:
    data = ranks[0].empty(4096)
    assert ranks[0].holds(data[100:].view(np.uint8)[::3])
    assert ranks[1].holds(data)
    assert not ranks[0].holds(np.empty(4096))
    assert not ranks[0].holds(np.empty(0))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "rank 1 cannot be mapped: .*ulimit -n"),
        # A descriptor that its program closed; the process is there.
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "close no descriptors"),
    ],
)
def test_memory_that_cannot_be_mapped_goes_through_the_kernel_or_raises(
    ranks, monkeypatch, error: OSError, says: str
) -> None:
    own = [arrays_of(rank, (True, True)) for rank in ranks]

    def refuse(pid: int, key: int) -> None:
        raise error

    monkeypatch.setattr(ranks[0]._segments, "find", refuse)
    both, _ = exposed(ranks, own)
    assert np.array_equal(seen(both[0].peer_buffer(1, 0, F4)), own[1][0])
    both, _ = exposed(ranks, own, plain=False)
    with pytest.raises(CommunicationError, match=says) as caught:
        both[0].peer_buffer(1, 1, F4)
    assert not isinstance(caught.value, PeerLost)


def test_a_process_that_ended_is_a_lost_peer(ranks) -> None:
    apart = _ranks(pid=(1 << 22) + 1)  # no process has that number
    own = [arrays_of(rank, (True, False)) for rank in apart]
    both, _ = exposed(apart, own)
    for buffer in (0, 1):
        with pytest.raises(PeerLost) as caught:
            seen(both[0].peer_buffer(1, buffer, F4))
        assert caught.value.ranks == (1,)


def test_a_group_numbers_its_ranks_anew() -> None:
    memory = NodeMemory(3, {1: 101, 3: 103, 4: 104}, 4, plain=True, how="")
    group = memory.group([0, 4, 3, 2], 2)
    assert group._peers.pids == {1: 104, 2: 103}
    assert group.rank == 2
    assert group.share(1000) == 250  # as on the fullest node of the job
