"""Calls on memory that ranks share, against NumPy: what is kept for later calls fits them, and holds no array."""

import cProfile
import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any
from weakref import ref

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm import CommOptions, Communicator

COUNT = 24
"""Elements of a rank's arrays, which 2, 3 and 4 ranks divide."""

Array = np.ndarray


pytestmark = pytest.mark.usefixtures("several_on_a_node")


@pytest.fixture(params=["plain arrays are reached", "staging"])
def ranks(request: pytest.FixtureRequest, comm: Communicator) -> Iterator[Communicator]:
    if request.param != "staging":
        yield comm
        return
    with hpccomm.new_comm(options=CommOptions(shared_memory="staging")) as staging:
        yield staging


def registered(comm: Communicator, offset: int = 0) -> Array:
    whole = comm.empty(COUNT * 8 + 64, np.uint8)
    return whole[offset : offset + COUNT * 8].view(np.float64)


def all_reduced(comm: Communicator, x: Array, out: Array) -> None:
    draw = np.random.default_rng(5)
    given = [draw.integers(1000, size=COUNT) for _ in range(comm.size)]
    x[:] = given[comm.rank]
    comm.all_reduce(x, out=out, algorithm="shm")
    assert np.array_equal(out, sum(given))
    assert x is out or np.array_equal(x, given[comm.rank])


# Ranks agree on whether both arrays of each are registered.
KINDS: dict[str, Callable[[Communicator], tuple[Array, Array]]] = {
    "registered": lambda comm: (registered(comm), registered(comm)),
    "another": lambda comm: (registered(comm), registered(comm)),
    "offset": lambda comm: (registered(comm, 16), registered(comm, 8)),
    "misaligned": lambda comm: (registered(comm, 3), registered(comm, 5)),
    "plain": lambda comm: (np.empty(COUNT), np.empty(COUNT)),
    "one of two": lambda comm: (registered(comm), np.empty(COUNT)),
}

SHM: dict[str, Any] = {"algorithm": "shm"}
CALLS: dict[str, tuple[Callable[..., object], Callable[[list[Array], slice, int], Array]]] = {
    # The call, and the result of a rank, whose part is a slice, from what all have sent.
    "all_reduce": (
        lambda comm, x, out, rows: comm.all_reduce(x, out=out, **SHM),
        lambda sent, part, rank: sum(sent),
    ),
    "scan": (
        lambda comm, x, out, rows: comm.scan(x, out=out, **SHM),
        lambda sent, part, rank: sum(sent[: rank + 1]),
    ),
    "reduce_scatter": (
        lambda comm, x, out, rows: comm.reduce_scatter(x.reshape(rows), out=out, **SHM),
        lambda sent, part, rank: sum(sent)[part],
    ),
    "all_gather": (
        lambda comm, x, out, rows: comm.all_gather(x, out=out.reshape(rows), **SHM),
        lambda sent, part, rank: np.concatenate(sent),
    ),
    "all_to_all": (
        lambda comm, x, out, rows: comm.all_to_all(x.reshape(rows), out=out.reshape(rows), **SHM),
        lambda sent, part, rank: np.concatenate([each[part] for each in sent]),
    ),
}


@by_default_on(2)
@pytest.mark.parametrize("collective", CALLS)
def test_every_mixture_of_arrays_may_follow_every_other(ranks, collective) -> None:
    call, result = CALLS[collective]
    draw, width = np.random.default_rng(3), COUNT // ranks.size
    part = slice(ranks.rank * width, (ranks.rank + 1) * width)
    sends = width if collective == "all_gather" else COUNT
    receives = width if collective == "reduce_scatter" else COUNT
    made = {kind: make(ranks) for kind, make in KINDS.items()}
    names = list(KINDS)
    mixtures = [*product(names[:4], repeat=2), *product(names[4:], repeat=2)] * 2
    for number in draw.permutation(len(mixtures)):
        kind = mixtures[number][ranks.rank % 2]
        for pair in made.values():
            for array in pair:
                array[:] = -7
        given = [draw.integers(1000, size=sends) for _ in range(ranks.size)]
        x, out = made[kind][0][:sends], made[kind][1][:receives]
        x[:] = given[ranks.rank]
        call(ranks, x, out, (ranks.size, width))
        assert np.array_equal(out, result(given, part, ranks.rank)), mixtures[number]
        assert np.array_equal(x, given[ranks.rank]), mixtures[number]
        for other, pair in made.items():
            assert other == kind or all((array == -7).all() for array in pair), mixtures[number]


@by_default_on(2)
def test_the_same_registered_arrays_are_looked_for_once(comm: Communicator) -> None:
    x, out = registered(comm), registered(comm)

    def looked(*arrays: Array) -> set[str]:
        """Return what was called on the way."""
        with cProfile.Profile() as profile:
            for _ in range(5):
                comm.all_reduce(arrays[0], out=arrays[-1], algorithm="shm")
        codes = (each.code for each in profile.getstats())
        return {code.co_name for code in codes if not isinstance(code, str)}

    searching = {"expose", "take_records", "peer_buffer"}
    for arrays in ((x, out), (x,)):
        assert looked(*arrays) >= searching  # these functions still have these names
        # Nor are other views of them.
        assert not looked(*arrays) & searching
        assert not looked(*(each[:] for each in arrays)) & searching


@by_default_on(2)
def test_what_is_kept_for_later_calls_holds_no_array(ranks: Communicator) -> None:
    for make in (partial(registered, ranks), partial(np.empty, COUNT)):
        array = make()
        for _ in range(3):
            all_reduced(ranks, array, array)
        held = [ref(each) for each in (array, array.base) if each is not None]
        del array
        gc.collect()
        assert [each() for each in held] == [None] * len(held)


@by_default_on(2)
def test_memory_and_objects_in_the_place_of_others_are_not_taken_for_them(comm) -> None:
    places, identities = set(), set()
    for number in range(6):  # another array of the same memory
        array, other = registered(comm), registered(comm)
        places.add(array.ctypes.data)
        other[:] = -1
        all_reduced(comm, array, array)
        assert (other == -1).all()
        del array, other
        gc.collect()
        kept = registered(comm) if number == 3 and comm.rank == 0 else None
    assert kept is None
    assert len(places) < 6  # some came again
    whole = comm.empty(COUNT * 4, np.float64)
    whole[:] = -1
    for start in (0, COUNT, 2 * COUNT, 0, 3 * COUNT):  # an object of the same identity
        array = whole[start : start + COUNT]
        identities.add(id(array))
        before = whole.copy()
        all_reduced(comm, array, array)
        before[start : start + COUNT] = array
        assert np.array_equal(whole, before)
        del array
    assert len(identities) < 5  # some came again
