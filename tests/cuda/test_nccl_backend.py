"""NCCL's own collectives: each has the call's meaning, or is refused."""

import cupy
import numpy as np
import pytest
from device_trials import carried_out
from nccl_ranks import on_devices, ranked

from hpccomm import dtypes
from hpccomm.backends.nccl import collectives, libnccl
from hpccomm.backends.nccl.collectives import Ability, reduction
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp, premul_sum
from hpccomm.testing.conformance.collectives import BLOCKWISE
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, WITH_DATA, Spec
from hpccomm.testing.conformance.oracle import reduction as reduction_of

FLOAT32 = np.dtype(np.float32)
SIZE = 3
UNEVEN = (3, 0, 5)
ROOT = 1

EVERYTHING = frozenset(libnccl.FUNCTIONS)


def ability(version=23203, capability=90, functions=EVERYTHING):
    return Ability(0, SIZE, version, capability, functions)


# What NCCL does as it is meant.


SUM = ReduceOp.SUM
OLD, OTHER = {"version": 22307}, {"capability": 89}
REDUCED = [
    # op, dtype, NCCL, its number of a dtype and how many elements it takes for one (None: it does not)
    *((op, "i4", {}, None) for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)),
    *((SUM, dtype, {}, None) for dtype in ("i2", "u2")),
    (SUM, "c8", {}, (7, 2)),
    (ReduceOp.PROD, "c8", {}, None),
    *(
        (SUM, dtype, how, None if how else (number, 1))
        for dtype, number in ((dtypes.FLOAT8_E4M3FN, 10), (dtypes.FLOAT8_E5M2, 11))
        for how in ({}, OLD, OTHER)  # from 2.24 on, on devices that reduce it
    ),
    # A factor has the width of the datatype; real and imaginary parts have it alike.
    *(
        (premul_sum(3), *each)
        for each in (("i1", {}, (0, 1)), ("u8", {}, (5, 1)), ("f4", {}, (7, 1)))
    ),
    (premul_sum(1 / 3), "f2", {}, (6, 1)),
    *((premul_sum(factor), "f2", {}, None) for factor in (1e6, 1e-9)),  # which it does not hold
    (premul_sum(0.5), "c16", {}, (8, 2)),
    (premul_sum(1j), "c8", {}, None),
    (premul_sum(2), "f4", {"functions": frozenset()}, None),
]


@pytest.mark.parametrize(("op", "dtype", "how", "taken"), REDUCED)
def test_trap_what_nccl_reduces_and_as_what(op, dtype, how, taken):
    found = reduction(op, np.dtype(dtype), ability(**how))
    assert (found and (found.datatype, found.width)) == taken
    if found is not None and op is not SUM:
        assert found.factor.dtype == np.zeros(0, dtype).real.dtype


def test_trap_tree_exists_for_all_reduce_alone():
    def names(collective, op=None, uniform=True, dtype=FLOAT32, **how):
        blocks = 1 if collective in ("all_reduce", "broadcast", "reduce", "scan") else SIZE
        counts = (8,) * blocks
        call = Signature(collective, dtype, counts, counts, uniform=uniform, op=op, root=0)
        return collectives.algorithms(call, ability(**how))

    assert names("all_reduce", SUM) == ("native", "ring", "tree")
    for of in ("reduce", SUM), ("reduce_scatter", SUM), ("broadcast",), ("all_gather",):
        assert names(*of) == ("native", "ring")
    for collective in ("all_to_all", "gather", "scatter"):
        assert names(collective) == ("native",)
        assert names(collective, uniform=False) == ()  # messages of hpccomm's, in one group
    assert names("all_gather", uniform=False) == ("native",)
    moved = np.dtype(dtypes.FLOAT8_E5M2)
    assert names("broadcast", dtype=moved, **OLD) == ("native", "ring")
    assert names("scan", SUM) == names("barrier") == names("all_reduce", np.add) == ()


# What comes out.


@pytest.mark.standin
@pytest.mark.parametrize("version", ["23203", "22703"])
def test_trap_all_to_all_gather_and_scatter_of_nccls_own_from_2_28(version, monkeypatch):
    """Every collective, with them and without, in place too."""
    monkeypatch.setenv("NCCL_CHECK_POINTERS", "1")  # addresses of 0 are refused
    monkeypatch.setenv("STANDIN_NCCL_VERSION", version)

    def main(comm):
        for name in sorted({*WITH_DATA} - {"scan", "neighbor_all_to_all"}):
            for count in (4, UNEVEN) if name in BLOCKWISE else (12,):
                both = name in collectives.PINNABLE and count != UNEVEN
                for algorithm in (None, "ring") if both else (None,):
                    for results in OUT, IN_PLACE:
                        spec = Spec(name, count, root=ROOT, results=(results,))
                        carried_out(comm, spec, algorithm=algorithm)

    on_devices(SIZE, main)


@ranked(SIZE)
def test_every_reduction_that_nccl_does(comm):
    """Those of float8, of which CuPy makes no arrays, ``perf`` checks in test_perf.py."""
    float8 = (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2)
    done = 0
    for dtype in (each for each in dtypes.REDUCIBLE if each not in float8):
        for op in (*ReduceOp, premul_sum(2)):
            call = Signature("all_reduce", dtype, (12,), op=op)
            if collectives.algorithms(call, ability()):
                carried_out(comm, Spec("all_reduce", 12, dtype, op), algorithm="native")
                done += 1
    assert done > 50


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
@ranked(SIZE)
def test_trap_avg_of_integers_wraps_and_goes_towards_zero(comm, dtype):
    """The sum wraps in the dtype; the quotient is that of C."""
    top = np.iinfo(dtype).max
    numbers = np.array([[top, 1, -5], [top, 1, -1], [top, 0, -1]]).astype(dtype)
    x = cupy.asarray(numbers[comm.rank])
    got = comm.all_reduce(x, ReduceOp.AVG, algorithm="native").get()
    np.testing.assert_array_equal(got, reduction_of(ReduceOp.AVG, list(numbers)))


@ranked(SIZE)
def test_trap_an_exception_in_a_group_still_ends_it(comm):
    backend = comm._core.lanes.device.backend  # no call of a user's raises there
    with pytest.raises(ZeroDivisionError), backend.group():
        raise ZeroDivisionError
    # In a group that is still open, this would never start.
    carried_out(comm, Spec("all_reduce", 12))
