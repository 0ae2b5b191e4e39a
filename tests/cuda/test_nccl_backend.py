"""NCCL's own collectives through CuPy: each has the call's meaning, or is refused."""

from dataclasses import replace

import numpy as np
import pytest
from nccl_ranks import on_ranks, sound
from told import BLOCKWISE, arrays, signature, views

from hpccomm import dtypes
from hpccomm.backends.nccl import collectives, libnccl
from hpccomm.backends.nccl.reductions import Ability, reduction
from hpccomm.contracts.device import Piece, Span
from hpccomm.contracts.signature import Signature
from hpccomm.errors import CommunicationError
from hpccomm.reductions import ReduceOp, premul_sum
from hpccomm.testing.conformance.inputs import reduction as reduction_of

cupy = pytest.importorskip("cupy")
nccl = pytest.importorskip("cupy.cuda.nccl")

FLOAT32 = np.dtype(np.float32)
SIZE = 3
EVEN, UNEVEN = (4, 4, 4), (3, 0, 5)
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
    assert names("all_gather", uniform=False) == ("native",)
    assert names("scan", ReduceOp.SUM) == names("barrier") == ()
    assert names("all_reduce", np.add) == ()


# What comes out.


def part_of(rank, collective, op=ReduceOp.SUM, uniform=True, dtype=FLOAT32):
    """Return a rank's part in a call."""
    blocks = collective in BLOCKWISE
    count = (4 if uniform else UNEVEN) if blocks else sum(EVEN)
    return views(SIZE, collective, count, dtype=dtype, op=op, root=ROOT)[rank]


def carried_out(backend, part, algorithm="native", in_place=False):
    """Return what NCCL left in recv, or None where this rank has none."""
    call = signature(part)
    # Of rooted calls the root alone is in place.
    call = replace(call, in_place=in_place and call.root in (-1, backend.rank))
    send, expected = arrays(part)
    recv = None if expected is None else np.zeros_like(expected)
    if call.collective == "broadcast":
        send, recv = None, recv if send is None else send
    with cupy.cuda.Device(backend.device):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            a = None if send is None else put(send)
            b = None if recv is None else put(recv)
            pinned = backend.native(call, algorithm)
            if pinned.needs is not None and not pinned.needs.done():
                pinned.needs.make()
            source = target = 0
            if a is not None:
                source = a.data.ptr
            if b is not None:
                target = b.data.ptr
            if in_place:
                source, target, b = inside(call, backend.rank, a, b)
            pinned.launch(source, target, stream.ptr)
            stream.synchronize()
            left = None if b is None else b.get()
    if left is None or expected is None:
        return None, expected
    if in_place and call.collective in WITHIN and send is not None:
        left = left[sum(call.counts[: backend.rank]) * call.dtype.itemsize :]
    return left[: expected.nbytes].view(call.dtype), expected


WITHIN = ("reduce_scatter", "scatter")


def put(x):
    """Return the bytes of `x` in device memory; never none, so that there is an address."""
    return cupy.asarray(np.ascontiguousarray(x).view(np.uint8) if x.size else np.zeros(1, np.uint8))


def inside(call, rank, a, b):
    """Return addresses in place at the own block, and the array that the result is in."""
    offset = sum(call.counts[:rank]) * call.dtype.itemsize
    own = call.counts[rank % len(call.counts)] * call.dtype.itemsize
    if call.collective in ("all_reduce", "reduce"):
        return a.data.ptr, a.data.ptr if b is not None else 0, a if b is not None else None
    if call.collective in WITHIN:
        return (a.data.ptr, a.data.ptr + offset, a) if a is not None else (0, b.data.ptr, b)
    if b is None:
        return a.data.ptr, 0, None
    b[offset : offset + own] = a[:own]
    return b.data.ptr + offset, b.data.ptr, b


EACH = [
    (collective, op, uniform)
    for collective, op in (
        ("all_reduce", ReduceOp.SUM),
        ("reduce", ReduceOp.SUM),
        ("broadcast", None),
        ("all_gather", None),
        ("reduce_scatter", ReduceOp.SUM),
        ("all_to_all", None),
        ("gather", None),
        ("scatter", None),
    )
    for uniform in (True, False)
    if uniform or collective not in ("all_reduce", "reduce", "broadcast")
]


@pytest.mark.parametrize("own", [True, False], ids=["nccl-2.28", "older"])
def test_trap_all_to_all_gather_and_scatter_of_nccls_own_from_2_28(own, monkeypatch):
    """Every collective, with them and without."""
    monkeypatch.setenv("NCCL_CHECK_POINTERS", "1")  # addresses of 0 are refused

    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        if not own:
            backend.ability = Ability(
                backend.rank, backend.size, 22703, 90, frozenset(("ncclRedOpDestroy",))
            )
        for collective, op, uniform in EACH:
            for algorithm in ("native", "ring") if (collective, uniform) in PINNED else ("native",):
                part = part_of(rank.rank, collective, op, uniform)
                got, expected = carried_out(backend, part, algorithm)
                np.testing.assert_array_equal(
                    got if expected is not None else None, expected, f"{collective} {uniform}"
                )
        backend.check()
        backend.close()
        return True

    assert sound(on_ranks(SIZE, main)) == [True] * SIZE


PINNED = [(name, True) for name in collectives.PINNABLE]


def test_in_place_at_the_own_block():
    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        for collective, op, uniform in EACH:
            if collective in ("broadcast", "all_to_all"):
                continue
            part = part_of(rank.rank, collective, op, uniform)
            got, expected = carried_out(backend, part, in_place=True)
            if expected is not None:
                np.testing.assert_array_equal(got, expected, f"{collective} {uniform}")
        backend.close()
        return True

    assert sound(on_ranks(SIZE, main)) == [True] * SIZE


def test_every_reduction_that_nccl_does():
    """Same as the host's, of values whose sums are exact; AVG of integers goes towards zero."""
    ops = [*ReduceOp, premul_sum(2)]

    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        done = 0
        for dtype in dtypes.REDUCIBLE:
            for op in ops:
                part = part_of(rank.rank, "all_reduce", op, dtype=dtype)
                if not backend.algorithms(signature(part)):
                    continue
                got, expected = carried_out(backend, part)
                if op is ReduceOp.AVG and dtype.kind not in "iu":  # each is divided first
                    near = {"rtol": 0.2 if dtype.itemsize == 1 else 0.01, "atol": 0.2}
                    assert np.allclose(
                        got.astype(np.complex128), expected.astype(np.complex128), **near
                    )
                else:
                    np.testing.assert_array_equal(got, expected, f"{op} {dtype}")
                done += 1
        backend.close()
        return done

    assert min(sound(on_ranks(SIZE, main))) > 50


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_trap_avg_of_integers_wraps_and_goes_towards_zero(dtype):
    """The sum wraps in the dtype; the quotient is that of C."""
    top = np.iinfo(dtype).max
    numbers = np.array([[top, 1, -5], [top, 1, -1], [top, 0, -1]]).astype(dtype)
    call = Signature("all_reduce", np.dtype(dtype), (3,), op=ReduceOp.AVG, in_place=True)

    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        with cupy.cuda.Device(rank.device):
            x = cupy.asarray(numbers[rank.rank])
            stream = cupy.cuda.get_current_stream()
            backend.native(call, "native").launch(x.data.ptr, x.data.ptr, stream.ptr)
            stream.synchronize()
            got = x.get()
        backend.close()
        return got

    expected = reduction_of(ReduceOp.AVG, list(numbers))
    for got in sound(on_ranks(SIZE, main)):
        np.testing.assert_array_equal(got, expected)


def test_messages_go_together_and_to_oneself():
    """More than a block each way at once: without a group each would wait for the other."""
    count = 300_000

    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        with cupy.cuda.Device(rank.device):
            given = cupy.full(count, rank.rank, np.int32)
            came = cupy.zeros((SIZE, count), np.int32)
            dtype = np.dtype(np.int32)
            stream = cupy.cuda.get_current_stream()
            sends = [Piece(peer, Span(given.data.ptr, count, dtype)) for peer in range(SIZE)]
            receives = [
                Piece(peer, Span(came[peer].data.ptr, count, dtype)) for peer in range(SIZE)
            ]
            nothing = [Piece(0, Span(0, 0, dtype))]
            backend.exchange(receives + nothing, sends + nothing, stream.ptr)
            stream.synchronize()
            got = came.get()
        backend.close()
        return got

    for got in sound(on_ranks(SIZE, main)):
        np.testing.assert_array_equal(got, np.arange(SIZE)[:, None].repeat(count, 1))


def test_trap_an_exception_in_a_group_still_ends_it():
    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        part = part_of(rank.rank, "all_reduce")

        def fail():
            with backend.group():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        # In a group that is still open, this would never start.
        got, expected = carried_out(backend, part)
        np.testing.assert_array_equal(got, expected)
        backend.close()
        return True

    assert sound(on_ranks(SIZE, main)) == [True] * SIZE


def test_trap_a_status_that_cupy_has_no_name_for_is_a_key_error():
    def main(rank):
        backend, why = rank.open()
        assert backend is not None, why
        lost = backend.translate(nccl.NcclError(6))
        usage = backend.translate(nccl.NcclError(5))
        assert type(lost).__name__ == "PeerLost"
        assert type(usage) is CommunicationError
        # Blocking communicators alone: CuPy has no words for a status above 6.
        pending = backend.translate(KeyError(7))
        assert "in progress" in str(pending)
        assert backend.translate(KeyError("x")) is None
        assert backend.translate(ValueError()) is None
        failed = backend.translate(cupy.cuda.runtime.CUDARuntimeError(700))
        assert type(failed) is CommunicationError
        backend.close()
        return True

    assert sound(on_ranks(1, main)) == [True]
