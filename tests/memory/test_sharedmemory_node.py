"""What ranks expose and reach in a call. Two ranks of one process: the way is that of two."""

import errno
import os
from collections.abc import Sequence

import numpy as np
import pytest

from hpccomm.contracts.transport import MemoryUse, Pages, Reach
from hpccomm.errors import CommunicationError, PeerLost
from hpccomm.memory.shared import NodeMemory
from hpccomm.memory.shared.heap import (
    FreeRanges,
    Heap,
    HeapSegment,
    IdlePages,
    Leases,
    PeerSegments,
    ProcessMemory,
)
from hpccomm.memory.shared.node import NodeExposure

F4 = np.dtype(np.float32)
ROOM = 1 << 16
GONE = (1 << 22) + 1
"""No process has that number."""

Ranks = Sequence[NodeMemory]


class GrowingHeap(Heap):
    """One whose segment, once there is one, lies where another array was."""

    segment: HeapSegment | None = None

    def where(self, at: int) -> HeapSegment | None:
        return self.segment or super().where(at)

    @property
    def segments(self) -> int:
        return super().segments + (self.segment is not None)


def process(peers: PeerSegments | None = None) -> ProcessMemory:
    heap = GrowingHeap()
    return ProcessMemory(heap, Leases(heap), peers or PeerSegments(), MemoryUse())


def made(of: ProcessMemory, plain: bool = True, pid: int | None = None) -> Ranks:
    pids = {0: os.getpid(), 1: pid or os.getpid()}
    return [NodeMemory(rank, pids, 2, plain=plain, how="", process=of) for rank in range(2)]


@pytest.fixture
def ranks() -> Ranks:
    return made(process())


def exposed(
    ranks: Ranks,
    arrays: Sequence[Sequence[np.ndarray]],
    scratch: int = 0,
    plain: bool = True,
    rooms: Sequence[int] = (ROOM, ROOM),
    numbers: Sequence[int] = (0, 1),
) -> tuple[list[NodeExposure], list[Reach]]:
    """Expose each rank's arrays; exchange the records as ranks do, in a table that is used again."""
    both = [
        rank.expose(own, 77, scratch, plain=plain, room=room)
        for rank, own, room in zip(ranks, arrays, rooms, strict=True)
    ]
    table = np.array([each.record for each in both])
    reach = [each.take_records(dict(zip(numbers, table, strict=True))) for each in both]
    table[:] = -1
    return both, reach


def seen(view: "np.ndarray | Pages") -> np.ndarray:
    return np.array(view if isinstance(view, np.ndarray) else view[0 : view.size])


def arrays_of(rank: NodeMemory, registered: Sequence[bool], n: int = 100) -> list[np.ndarray]:
    arrays = []
    for number, each in enumerate(registered):
        data = rank.empty(n * 4).view(F4) if each else np.empty(n, F4)
        data[:] = np.arange(n) + 1000 * rank.rank + 100_000 * number
        arrays.append(data)
    return arrays


@pytest.mark.parametrize(
    # Whether arrays are registered, bytes of scratch and room for them, whether plain arrays are reached and so agreed.
    ("first", "second", "scratch", "rooms", "plain", "agreed", "reach"),
    [
        ((1, 1), (1, 1), 0, (ROOM, ROOM), False, True, Reach.DIRECT),
        ((1, 1), (1, 0), 64, (ROOM, ROOM), False, True, Reach.STAGED),
        ((0, 0), (1, 1), 64, (ROOM, ROOM), False, True, Reach.STAGED),
        ((0, 0), (1, 1), 64, (ROOM, ROOM), True, True, Reach.DIRECT),
        ((0, 0), (0, 0), 0, (ROOM, ROOM), False, True, Reach.NONE),
        ((0, 0), (0, 0), ROOM + 1, (ROOM, ROOM), False, True, Reach.NONE),
        ((1, 1), (1, 1), ROOM + 1, (ROOM, ROOM), False, True, Reach.DIRECT),
        ((0, 0), (0, 0), 0, (ROOM, ROOM), True, False, Reach.NONE),
        ((0, 0), (0, 0), 128, (ROOM, 100), False, True, Reach.NONE),
    ],
)
def test_all_ranks_find_the_same(first, second, scratch, rooms, plain, agreed, reach) -> None:
    ranks = made(process(), plain=agreed)
    own = [arrays_of(rank, kind) for rank, kind in zip(ranks, (first, second), strict=True)]
    both, found = exposed(ranks, own, scratch, plain, rooms)
    assert found == [reach] * 2
    assert [each.scratch is not None for each in both] == [0 < scratch <= room for room in rooms]


def test_empty_arrays_are_reachable_and_those_of_a_process_that_ended_are_not() -> None:
    ranks = made(process(), pid=GONE)
    own = [[np.empty(0, F4), np.empty(0, F4)], arrays_of(ranks[1], (True, True))]
    both, reach = exposed(ranks, own, plain=False)
    assert reach == [Reach.DIRECT] * 2
    assert both[1].peer_buffer(0, 0, F4).size == 0
    plain, _ = exposed(ranks, [own[0], arrays_of(ranks[1], (False, True))])
    for buffer, exposure in enumerate((plain[0], both[0])):
        with pytest.raises(PeerLost) as caught:
            seen(exposure.peer_buffer(1, buffer, F4))
        assert caught.value.ranks == (1,)


def test_room_is_that_of_the_process_whatever_the_calls(
    ranks: Ranks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hpccomm")
    own = arrays_of(ranks[0], (False, False))

    for asked, granted in (
        ([(0, 600), (0, 600), (0, 400), (0, 1)], [True, False, True, False]),
        ([(0, 1000), (0, 1)], [True, False]),  # what was kept makes room
        ([(1, 700), (0, 600)], [True, False]),  # of another communicator of the process
        ([(0, 600)], [True]),
    ):
        made = [ranks[rank].expose(own, 1, n, plain=False, room=1000) for rank, n in asked]
        assert [each.scratch is not None for each in made] == granted
        for each in made:
            each.release()
    assert caplog.text.count("bytes for staging") == 1  # once, not at every call


def test_plain_memory_whose_place_a_segment_takes_is_noticed() -> None:
    memory = process()
    rank = made(memory)[0]
    own = arrays_of(rank, (False, False))
    record = rank.expose(own, 5, 0, plain=True, room=ROOM).record
    # Freed, its pages would go back to the system, which gives their addresses to the next mapping.
    place = own[0].ctypes.data, own[0].nbytes
    memory.heap.segment = HeapSegment(9 << 32, *place, FreeRanges(1), IdlePages())
    again = rank.expose(own, 5, 0, plain=True, room=ROOM).record
    assert record[2] == -1
    assert again[2] == memory.heap.segment.key


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "rank 1 cannot be mapped: .*ulimit -n"),
        # A descriptor that its program closed; the process is there.
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "close no descriptors"),
    ],
)
def test_what_cannot_be_mapped_goes_through_the_kernel_or_raises(error: OSError, says: str) -> None:
    class Refusing(PeerSegments):
        def find(self, pid: int, key: int) -> np.ndarray:
            raise error

    ranks = made(process(Refusing()))
    own = [arrays_of(rank, (True, True)) for rank in ranks]
    both, _ = exposed(ranks, own)
    assert np.array_equal(seen(both[0].peer_buffer(1, 0, F4)), own[1][0])
    both, _ = exposed(ranks, own, plain=False)
    with pytest.raises(CommunicationError, match=says) as caught:
        both[0].peer_buffer(1, 1, F4)
    assert not isinstance(caught.value, PeerLost)


def test_a_group_numbers_its_ranks_anew() -> None:
    pids = {1: GONE, 3: os.getpid(), 4: os.getpid()}
    ranks = [NodeMemory(rank, pids, 4, plain=True, how="") for rank in (4, 3)]
    groups = [each.group([0, 4, 3, 2], number) for number, each in enumerate(ranks, 1)]
    assert [each.rank for each in groups] == [1, 2]
    assert groups[0].share(1000) == 250  # as on the fullest node of the job
    own = [arrays_of(each, (True, False)) for each in groups]
    both, reach = exposed(groups, own, numbers=(1, 2))
    assert reach == [Reach.DIRECT] * 2
    for buffer in (0, 1):
        assert np.array_equal(seen(both[0].peer_buffer(2, buffer, F4)), own[1][buffer])
        assert np.array_equal(seen(both[1].peer_buffer(1, buffer, F4)), own[0][buffer])
