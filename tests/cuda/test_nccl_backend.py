"""NCCL's own collectives through CuPy: each has the call's meaning, or is refused."""

from dataclasses import replace

import numpy as np
import pytest
from device_trials import carried_out
from nccl_ranks import ranked

from hpccomm import dtypes
from hpccomm.backends.nccl import collectives, libnccl
from hpccomm.backends.nccl.collectives import Ability, reduction
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CommunicationError
from hpccomm.reductions import ReduceOp, premul_sum
from hpccomm.testing.conformance.collectives import BLOCKWISE
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, SEMANTICS, Spec
from hpccomm.testing.conformance.oracle import reduction as reduction_of

cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

FLOAT32 = np.dtype(np.float32)
SIZE = 3
UNEVEN = (3, 0, 5)
ROOT = 1

EVERYTHING = frozenset(libnccl.FUNCTIONS)


def ability(version=23203, capability=90, functions=EVERYTHING):
    return Ability(0, SIZE, version, capability, functions)


# What NCCL does as it is meant.


def test_trap_nccl_has_no_bitwise_and_of_complex_only_sums():
    can = ability()
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        assert reduction(op, np.dtype(np.int32), can) is None
    complex64 = np.dtype(np.complex64)
    assert reduction(ReduceOp.PROD, complex64, can) is None
    found = reduction(ReduceOp.SUM, complex64, can)
    assert found is not None
    assert (found.datatype, found.width) == (7, 2)


def test_trap_nccl_has_no_16_bit_integers():
    for dtype in (np.int16, np.uint16):
        assert reduction(ReduceOp.SUM, np.dtype(dtype), ability()) is None


def test_trap_float8_from_2_24_on_devices_that_reduce_it():
    for dtype, number in ((dtypes.FLOAT8_E4M3FN, 10), (dtypes.FLOAT8_E5M2, 11)):
        found = reduction(ReduceOp.SUM, dtype, ability())
        assert found is not None
        assert found.datatype == number
        assert reduction(ReduceOp.SUM, dtype, ability(version=22307)) is None
        assert reduction(ReduceOp.SUM, dtype, ability(capability=89)) is None
        moved = Signature("broadcast", dtype, (4,), root=0)
        assert collectives.algorithms(moved, ability(version=22307)) == ("native", "ring")


def test_trap_premul_sum_takes_its_scalar_at_the_width_of_the_datatype():
    for dtype in (np.int8, np.uint64, np.float16, np.float32, np.float64):
        found = reduction(premul_sum(3), np.dtype(dtype), ability())
        assert found is not None
        assert found.factor is not None
        assert found.factor.dtype == dtype
    found = reduction(premul_sum(0.5), np.dtype(np.complex128), ability())
    assert found is not None
    assert found.factor is not None
    assert found.factor.dtype == np.float64  # real and imaginary parts alike
    assert reduction(premul_sum(1j), np.dtype(np.complex64), ability()) is None
    assert reduction(premul_sum(2), FLOAT32, ability(functions=frozenset())) is None


@pytest.mark.parametrize("factor", [1e6, 1e-9])
def test_a_factor_that_a_narrow_float_does_not_hold_is_not_for_nccl(factor):
    assert reduction(premul_sum(factor), np.dtype(np.float16), ability()) is None
    assert reduction(premul_sum(1 / 3), np.dtype(np.float16), ability()) is not None


def test_trap_tree_exists_for_all_reduce_alone():
    def names(collective, op=None, uniform=True):
        counts = (
            (8,) if collective in ("all_reduce", "broadcast", "reduce", "scan") else (8,) * SIZE
        )
        call = Signature(collective, FLOAT32, counts, counts, uniform=uniform, op=op, root=0)
        return collectives.algorithms(call, ability())

    assert names("all_reduce", ReduceOp.SUM) == ("native", "ring", "tree")
    for collective in ("reduce", "reduce_scatter"):
        assert names(collective, ReduceOp.SUM) == ("native", "ring")
    for collective in ("broadcast", "all_gather"):
        assert names(collective) == ("native", "ring")
    for collective in ("all_to_all", "gather", "scatter"):
        assert names(collective) == ("native",)
        assert names(collective, uniform=False) == ()  # messages of hpccomm's, in one group
    assert names("all_gather", uniform=False) == ("native",)
    assert names("scan", ReduceOp.SUM) == names("barrier") == ()
    assert names("all_reduce", np.add) == ()


# What comes out.


def backend_of(comm):
    """Return NCCL's side of a communicator."""
    return comm._core.lanes.device.backend


@pytest.mark.parametrize("own", [True, False], ids=["nccl-2.28", "older"])
@ranked(SIZE)
def test_trap_all_to_all_gather_and_scatter_of_nccls_own_from_2_28(comm, own, monkeypatch):
    """Every collective, with them and without, in place too."""
    monkeypatch.setenv("NCCL_CHECK_POINTERS", "1")  # addresses of 0 are refused
    backend = backend_of(comm)
    if not own:
        some = frozenset(("ncclRedOpDestroy",))
        backend.ability = replace(backend.ability, version=22703, functions=some)
    for name in sorted(SEMANTICS.keys() - {"scan", "neighbor_all_to_all"}):
        for count in (4, UNEVEN) if name in BLOCKWISE else (12,):
            both = name in collectives.PINNABLE and count != UNEVEN
            for algorithm in (None, "ring") if both else (None,):
                for results in OUT, IN_PLACE:
                    spec = Spec(name, count, root=ROOT, results=(results,))
                    carried_out(comm, spec, algorithm=algorithm)
    backend.check()


@ranked(SIZE)
def test_every_reduction_that_nccl_does(comm):
    """Those of float8, of which CuPy makes no arrays, ``perf`` checks in test_perf.py."""
    float8 = (dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2)
    done = 0
    for dtype in (each for each in dtypes.REDUCIBLE if each not in float8):
        for op in (*ReduceOp, premul_sum(2)):
            call = Signature("all_reduce", dtype, (12,), op=op)
            if collectives.algorithms(call, backend_of(comm).ability):
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
    with pytest.raises(ZeroDivisionError), backend_of(comm).group():
        raise ZeroDivisionError
    # In a group that is still open, this would never start.
    carried_out(comm, Spec("all_reduce", 12))


def test_trap_a_status_that_cupy_has_no_name_for_is_a_key_error():
    assert type(libnccl.translate(nccl.NcclError(6))).__name__ == "PeerLost"
    assert type(libnccl.translate(nccl.NcclError(5))) is CommunicationError
    # Blocking communicators alone: CuPy has no words for a status above 6.
    assert "in progress" in str(libnccl.translate(KeyError(7)))
    assert libnccl.translate(KeyError("x")) is libnccl.translate(ValueError()) is None
    failed = libnccl.translate(cupy.cuda.runtime.CUDARuntimeError(700))
    assert type(failed) is CommunicationError
