"""Calls on memory that ranks share: facts kept for later calls fit them, and hold no array.

Two ranks of one process, whose memory is reached as that of two, take turns in one thread.
"""

import gc
import os
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from weakref import ref

import numpy as np
import pytest

from hpccomm import ReduceOp
from hpccomm.backends.loopback import LoopbackTransport, make_world
from hpccomm.calls.program import Variants, compiled, compiled_in_memory
from hpccomm.calls.runner import Runner
from hpccomm.contracts.signature import Signature
from hpccomm.contracts.transport import Reach
from hpccomm.memory.folding import Folder
from hpccomm.memory.shared import NodeMemory, heap
from hpccomm.memory.shared.node import NodeExposure
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.schedule import Tuning, world

F8 = np.dtype(np.float64)
COUNT = 40
SIZE = 2

Arrays = Sequence[np.ndarray]


class Ranks:
    """Two ranks, and their way to make one call again and again."""

    def __init__(self, call: Signature, plain: bool = True, room: int = 1 << 16) -> None:
        there = make_world(SIZE)
        pids = dict.fromkeys(range(SIZE), os.getpid())
        transports = [
            LoopbackTransport(there, ("it",), tuple(range(SIZE)), rank) for rank in range(SIZE)
        ]
        self.memory = [NodeMemory(rank, pids, SIZE, plain=plain, how="") for rank in range(SIZE)]
        self.forms: list[Variants] = []
        self.runners: list[Runner] = []
        named = ALGORITHMS[call.collective]
        found, apart = named["shm"], named["ring" if "ring" in named else "pairwise"]
        builds = {Reach.DIRECT: found.build, Reach.NONE: apart.build, Reach.STAGED: found.staged}
        for rank, transport in enumerate(transports):
            transport.shared = self.memory[rank]
            self.runners.append(Runner(transport))
            schedules = {
                reach: partial(build, world(SIZE, np.array([rank])), call, Tuning(7, room=64))
                for reach, build in builds.items()
                if build is not None
            }
            lengths = call.lengths_of(rank)

            def program(reach, schedules=schedules, lengths=lengths):
                schedule = schedules[reach]()
                return compiled_in_memory(schedule, lengths) or compiled(schedule, lengths)

            self.forms.append(
                Variants(
                    (rank, 1 - rank),
                    77,
                    {reach: cache(partial(program, reach)) for reach in schedules},
                    F8,
                    None if call.op is None else Folder(call.op, F8),
                    scratch=0 if plain else 64 * 8,
                    plain=plain,
                    room=room,
                )
            )

    def call(self, sent: Arrays, received: Arrays) -> None:
        """Make the call on these arrays of each rank."""
        under_way: list[Iterator[bool]] = [
            runner.formed(forms, send, recv)
            for runner, forms, send, recv in zip(
                self.runners, self.forms, sent, received, strict=True
            )
        ]
        for _ in range(10_000):
            under_way = [steps for steps in under_way if next(steps, None) is not None]
            if not under_way:
                return
        raise AssertionError("the calls do not end")


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_of_process", {})


def all_reduce() -> Signature:
    return Signature("all_reduce", F8, (COUNT,), op=ReduceOp.SUM)


def summed(ranks: Ranks, sent: Arrays, received: Arrays) -> None:
    """Make the call on new contents and look at the results."""
    draw = np.random.default_rng(5)
    given = [draw.integers(1000, size=COUNT).astype(F8) for _ in sent]
    for array, values in zip(sent, given, strict=True):
        array[:] = values
    ranks.call(sent, received)
    for array in received:
        assert np.array_equal(array, given[0] + given[1])
    for array, out, values in zip(sent, received, given, strict=True):
        assert array is out or np.array_equal(array, values)


def registered(memory: NodeMemory, offset: int = 0) -> np.ndarray:
    return memory.empty(COUNT * 8 + 64)[offset : offset + COUNT * 8].view(F8)


@pytest.mark.parametrize("apart", [False, True])
def test_a_call_on_the_same_registered_arrays_looks_for_nothing_again(monkeypatch, apart) -> None:
    ranks = Ranks(all_reduce())
    sent = [registered(memory) for memory in ranks.memory]
    received = [registered(memory) for memory in ranks.memory] if apart else sent
    summed(ranks, sent, received)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was known")

    monkeypatch.setattr(NodeMemory, "expose", refuse)
    monkeypatch.setattr(NodeExposure, "take_records", refuse)
    monkeypatch.setattr(NodeExposure, "peer_buffer", refuse)
    for _ in range(20):
        summed(ranks, sent, received)
    # Nor on other views of them.
    views = [array[:] for array in sent]
    summed(ranks, views, [array[:] for array in received] if apart else views)


@pytest.mark.parametrize("plain", [True, False])
def test_what_is_kept_for_later_calls_holds_no_array(plain) -> None:
    ranks = Ranks(all_reduce(), plain)
    for make in (registered, lambda _: np.empty(COUNT)):
        arrays = [make(memory) for memory in ranks.memory]
        for _ in range(3):
            summed(ranks, arrays, arrays)
        held = [ref(array) for array in arrays]
        bases = [ref(array.base) for array in arrays if array.base is not None]
        arrays.clear()
        gc.collect()
        assert [each() for each in held + bases] == [None] * len(held + bases)


def test_memory_that_another_array_has_now_is_that_arrays() -> None:
    ranks = Ranks(all_reduce())
    places: list[set[int]] = [set(), set()]
    gc.collect()
    for round_ in range(6):
        arrays = [registered(memory) for memory in ranks.memory]
        for place, array in zip(places, arrays, strict=True):
            place.add(array.ctypes.data)
        other = [registered(memory) for memory in ranks.memory]
        for array in other:
            array[:] = -1
        summed(ranks, arrays, arrays)
        assert all((array == -1).all() for array in other)
        del arrays, array
        kept = [registered(ranks.memory[0])] if round_ == 3 else []  # rank 0 gets another place
        gc.collect()
    del kept
    assert len(places[1]) < 6  # some came again


def test_an_array_object_in_the_place_of_another_is_not_taken_for_it() -> None:
    ranks = Ranks(all_reduce())
    whole = [memory.empty(COUNT * 8 * 4).view(F8) for memory in ranks.memory]
    for array in whole:
        array[:] = -1
    identities = set()
    for start in (0, COUNT, 2 * COUNT, 0, 3 * COUNT):
        arrays = [array[start : start + COUNT] for array in whole]
        identities.add(id(arrays[0]))
        summed(ranks, arrays, arrays)
        untouched = 3 * COUNT if start == 0 else 0
        before = [array[untouched : untouched + COUNT].copy() for array in whole]
        del arrays
        for array, values in zip(whole, before, strict=True):
            assert np.array_equal(array[untouched : untouched + COUNT], values)
    assert len(identities) < 5  # some came again


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    "call",
    [
        all_reduce(),
        Signature("scan", F8, (COUNT,), op=ReduceOp.SUM),
        Signature("reduce_scatter", F8, (COUNT // 2, COUNT // 2), op=ReduceOp.SUM),
        Signature("all_gather", F8, (COUNT // 2, COUNT // 2)),
        Signature("all_to_all", F8, (COUNT // 2,) * 2, (COUNT // 2,) * 2),
    ],
    ids=lambda call: call.collective,
)
def test_every_mixture_of_arrays_may_follow_every_other(call, plain) -> None:
    ranks = Ranks(call, plain)
    draw = np.random.default_rng(3)

    def kinds(memory: NodeMemory) -> dict[str, Arrays]:
        return {
            "registered": [registered(memory), registered(memory)],
            "another": [registered(memory), registered(memory)],
            "offset": [registered(memory, 16), registered(memory, 8)],
            "misaligned": [registered(memory, 3), registered(memory, 5)],
            "plain": [np.empty(COUNT), np.empty(COUNT)],
            "one of two": [registered(memory), np.empty(COUNT)],
        }

    made = [kinds(memory) for memory in ranks.memory]
    mixtures = list(product(made[0], made[1]))
    order = [mixtures[index] for index in draw.permutation(np.repeat(range(len(mixtures)), 3))]
    lengths = [call.lengths_of(rank) for rank in range(SIZE)]
    for mixture in order:
        pairs = [own[kind] for own, kind in zip(made, mixture, strict=True)]
        for own in made:
            for array in (each for pair in own.values() for each in pair):
                array[:] = -7
        sent = [pair[0][: length[0]] for pair, length in zip(pairs, lengths, strict=True)]
        received = [pair[1][: length[1]] for pair, length in zip(pairs, lengths, strict=True)]
        given = [draw.integers(1000, size=array.size).astype(F8) for array in sent]
        for array, values in zip(sent, given, strict=True):
            array[:] = values
        ranks.call(sent, received)
        for rank, (array, values) in enumerate(zip(received, given, strict=True)):
            assert np.array_equal(array, expected(call.collective, given, rank)), mixture
            assert np.array_equal(sent[rank], values), mixture
        for own, kind in zip(made, mixture, strict=True):
            for other, pair in own.items():
                if other != kind:
                    assert all((array == -7).all() for array in pair), mixture


def expected(collective: str, given: Arrays, rank: int) -> np.ndarray:
    """Return the result of a rank, from what all have given."""
    half = slice(rank * COUNT // 2, (rank + 1) * COUNT // 2)
    if collective == "all_reduce":
        return given[0] + given[1]
    if collective == "scan":
        return given[0] + given[1] if rank else given[0]
    if collective == "reduce_scatter":
        return (given[0] + given[1])[half]
    if collective == "all_gather":
        return np.concatenate(given)
    return np.concatenate([each[half] for each in given])


@pytest.mark.parametrize(("kilobytes", "share"), [(32, 0), (64, 32), (256, 128)])
def test_the_root_of_a_broadcast_writes_its_share_where_that_is_worth_it(kilobytes, share) -> None:
    count = kilobytes * 1024 // 8
    call = Signature("broadcast", F8, (count,), root=0)
    moved = []
    for rank in range(SIZE):
        group = world(SIZE, np.array([rank]))
        schedule = ALGORITHMS["broadcast"]["shm"].build(group, call, Tuning(512 * 1024 // 8))
        program = compiled_in_memory(schedule, call.lengths_of(rank))
        assert program is not None
        wheres = [step.target.where for each in program.rounds for step in each.local]
        moved.append(sum(len(range(count)[where or slice(None)]) * 8 // 1024 for where in wheres))
    assert moved == [share, kilobytes - share]
