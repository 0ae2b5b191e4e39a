"""Device arrays through pinned host memory: in parts, in order, and in memory of their own."""

import cupy
import numpy as np
import pytest
from nccl_ranks import run_ranks

from front.device_calls import DeviceTrial
from hpccomm.communicator.lanes.message import ARRAYS, wire_tag
from hpccomm.contracts.device import Piece, Span
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch import staged
from hpccomm.dispatch.parts import ROW_BYTES, parts
from hpccomm.dispatch.staged import StagedDispatch
from hpccomm.errors import BufferMismatch, UsageError
from hpccomm.memory.cuda import pinned
from hpccomm.memory.cuda.pinned import Pool, copied
from hpccomm.memory.cuda.streams import make_event, record
from hpccomm.reductions import ReduceOp
from hpccomm.runtime.waiting import drive
from hpccomm.testing.conformance.oracle import IN_PLACE, OUT, SEMANTICS, Spec
from hpccomm.testing.conformance.trials import trial

PART = 1 << 12
"""Bytes of a part here: small arrays have several."""

F64 = np.dtype(np.float64)
LENGTHS = [0, 1, PART // 8, PART // 8 + 1, 5 * PART // 8 + 3]


@pytest.fixture(autouse=True)
def late(monkeypatch):
    """Have the stand-in's streams do their work late, by up to a millisecond at random."""
    monkeypatch.setenv("STANDIN_DELAY", "0.001")


def signature(name, count, size, **more):
    blockwise = name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    counts = (count,) * size if blockwise else (count,)
    op = ReduceOp.SUM if name in ("all_reduce", "reduce", "reduce_scatter", "scan") else None
    root = size - 1 if name in ("broadcast", "reduce", "gather", "scatter") else -1
    recv_counts = counts if name == "all_to_all" else ()
    return Signature(name, F64, counts, recv_counts, op=op, root=root, **more)


# Which parts.


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "scatter", "all_to_all"])
@pytest.mark.parametrize("size", [1, 3])
def test_parts_hold_each_byte_once_and_are_as_many_on_all_ranks(collective, size) -> None:
    count = 5 * ROW_BYTES // 8 + 7
    call = signature(collective, count, size)
    of_ranks = [parts(call, rank, size, PART) for rank in range(size)]
    assert len({len(each) for each in of_ranks}) == 1
    assert len(of_ranks[0]) > 4
    for rank, cut in enumerate(of_ranks):
        lengths = [int(each[0]) * 8 for each in call.lengths(np.array([rank]))]
        for which, nbytes in zip(("send", "recv"), lengths, strict=True):
            touched = np.zeros(nbytes, int)
            for part in cut:
                rows = getattr(part, which)
                if rows is None:
                    continue
                for row in range(rows.height):
                    first = rows.offset + row * rows.pitch
                    touched[first : first + rows.width] += 1
            assert (touched == 1).all()


def test_uneven_calls_stay_whole() -> None:
    # Each rank would have its own number of parts, and none of a block of nothing.
    counts = (100 * PART, 0, 3)
    call = Signature("all_gather", F64, counts, uniform=False)
    for rank in range(3):
        (part,) = parts(call, rank, 3, PART)
        assert part.call == call
        assert part.send.nbytes == 8 * counts[rank]
        assert part.recv.nbytes == 8 * sum(counts)


# What comes out.


def path_of(comm, part_bytes=PART, host=None):
    backend = comm._core.backend
    device = comm.device

    def wire(tag, dtype):
        return wire_tag(tag, ARRAYS, dtype)

    return StagedDispatch(
        host or comm._core.lanes.host.dispatch,
        backend.messages,
        device,
        wire,
        "the test says so",
        part_bytes,
    )


def carried_out(comm, path, call, send, recv, *, algorithm="auto", deterministic=False):
    """Run one call on the current stream, and return what `recv` holds then."""
    way = path.decide(call, algorithm, deterministic)
    stream = cupy.cuda.get_current_stream().ptr
    pointers = [0 if each is None else each.data.ptr for each in (send, recv)]
    run(comm, way.start(*pointers, stream))
    return None if recv is None else cupy.asnumpy(recv)


def run(comm, steps):
    drive(steps, timeout=30, gate=comm._core.calls.gate, expired=lambda _: TimeoutError())


def values(rank, count):
    return np.random.default_rng([rank, count]).integers(-99, 99, count).astype(F64)


def every_collective(comm, count, in_place):
    path, results = path_of(comm), (IN_PLACE if in_place else OUT,)
    for name in SEMANTICS:
        if name == "neighbor_all_to_all":
            continue
        host = trial(
            comm, Spec(name, count, F64, root=comm.size - 1, results=results), frozen=False
        )
        host.fill()
        device = DeviceTrial(host, cupy)
        device.to_device()
        x, out = device.twins.get("x"), device.twins.get("out")
        send, recv = (None, x) if name == "broadcast" else (x, out)
        inside = in_place and send is not None and recv is not None
        carried_out(comm, path, signature(name, count, comm.size, in_place=inside), send, recv)
        device.to_host()
        host.check(host.target, f"{name} of {count}")


def on_its_device(comm, function, *args):
    with cupy.cuda.Device(comm.device):
        return function(comm, *args)


@pytest.mark.pairs
@pytest.mark.standin
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", LENGTHS)
def test_every_collective_in_parts(count, in_place, size) -> None:
    run_ranks(size, on_its_device, every_collective, count, in_place)


@pytest.mark.standin
@pytest.mark.parametrize("algorithm", ["pairwise", "shm"])
def test_exchanged_parts_do_not_share_their_memory(algorithm) -> None:
    """Blocks of several rows: what is sent and what is received then lies alike in every part."""

    def exchange(comm):
        count = 2 * ROW_BYTES // 8 + 3
        x = values(comm.rank, comm.size * count)
        out = cupy.full(x.size, 77.0)
        cupy.cuda.Device().synchronize()
        call = signature("all_to_all", count, comm.size)
        got = carried_out(comm, path_of(comm), call, cupy.asarray(x), out, algorithm=algorithm)
        everyone = [values(rank, x.size).reshape(comm.size, -1) for rank in range(comm.size)]
        assert np.array_equal(got, np.concatenate([blocks[comm.rank] for blocks in everyone]))

    run_ranks(3, on_its_device, exchange)


@pytest.mark.standin
def test_rows_farther_apart_than_cudas_limit_are_copied_one_by_one(monkeypatch) -> None:
    monkeypatch.setattr(pinned, "_LARGEST_PITCH", 100)
    run_ranks(3, on_its_device, every_collective, LENGTHS[-1], False)


@pytest.mark.standin
def test_deterministic_results_have_the_hosts_bits_whatever_the_parts() -> None:
    def sums(comm):
        x = (np.random.default_rng(comm.rank).random(4 * PART) * 10.0**comm.rank).astype(np.float32)
        expected = comm.all_reduce(x.copy(), deterministic=True)
        call = Signature("all_reduce", x.dtype, (x.size,), op=ReduceOp.SUM, in_place=True)
        y = cupy.asarray(x)
        got = carried_out(comm, path_of(comm), call, y, y, deterministic=True)
        assert got.tobytes() == expected.tobytes()

    run_ranks(4, on_its_device, sums)


# What goes on at once.


def test_a_part_is_copied_while_the_one_before_is_communicated(monkeypatch) -> None:
    log = []
    real = copied

    def logged(*args, to_host):
        log.append("fetch" if to_host else "return")
        real(*args, to_host=to_host)

    monkeypatch.setattr(staged, "copied", logged)

    def four_parts(comm):
        class Host:
            """The host's way, which notes when it is asked to begin."""

            def applicable(self, call, deterministic):
                return comm._core.lanes.host.dispatch.applicable(call, deterministic)

            def decide(self, call, algorithm, deterministic):
                way = comm._core.lanes.host.dispatch.decide(call, algorithm, deterministic)

                def start(send, recv):
                    log.append("communicate")
                    return way.start(send, recv)

                return type(way)(way.choice, start)

        x = cupy.arange(4 * PART // 8, dtype=F64)
        call = Signature("all_reduce", F64, (x.size,), op=ReduceOp.SUM, in_place=True)
        log.clear()  # of what the communicator tried when it was made
        got = carried_out(comm, path_of(comm, host=Host()), call, x, x)
        assert np.array_equal(got, np.arange(x.size))

    run_ranks(1, on_its_device, four_parts)
    middle = ["fetch", "communicate", "return"]
    assert log == ["fetch", *middle, *middle, *middle, "communicate", "return"]


# Pinned memory.


def held_up(stream):
    """Put enough on a stream that it is not done at once; return an event behind it."""
    with stream:
        # Allocated for this stream: nobody else has the memory before the stream is done with it.
        x = cupy.empty(1000, F64)
        for _ in range(50):
            x.fill(1.0)  # and not x + 1, which leaves most bytes of freed memory as they are
    event = make_event()
    record(event, stream.ptr)
    return event


@pytest.mark.standin
def test_trap_pinned_memory_is_kept_until_the_copy_from_it_is_done(monkeypatch) -> None:
    monkeypatch.setenv("STANDIN_DELAY", "0.01")
    pool = Pool()
    block = pool.take(1000, 0)
    stream = cupy.cuda.Stream(non_blocking=True)
    pool.give_back(block, held_up(stream))
    assert pool.take(1000, 0) is not block
    stream.synchronize()
    assert pool.take(1000, 0) is block


def test_pinned_memory_is_used_again_and_kept_up_to_a_bound() -> None:
    pool = Pool(kept=1 << 16)
    blocks = [pool.take(1 << 15, 0) for _ in range(3)]
    assert len({block.pointer for block in blocks}) == 3
    for block in blocks:
        pool.give_back(block)
    assert pool.take(1 << 15, 0) is blocks[0]
    assert pool.take(20000, 0) is blocks[1]  # a little smaller
    assert pool.take(1 << 15, 0) is blocks[2]  # beyond the bound, but calls have three at one time
    assert pool.take(100, 0) not in blocks
    for block in blocks:
        pool.give_back(block)
    for _ in range(1000):  # which need little
        pool.give_back(pool.take(100, 0))
    again = [pool.take(1 << 15, 0) for _ in range(3)]
    assert sum(block in blocks for block in again) < 3


@pytest.mark.standin
def test_what_calls_pin_together_stays_pinned(monkeypatch) -> None:
    """cudaFreeHost waits for the device (CUDA Runtime API), and pinning takes as long as copying."""
    made = []
    block_of = pinned.PinnedBlock
    monkeypatch.setattr(pinned, "PinnedBlock", lambda *of: made.append(of) or block_of(*of))
    pool = Pool(kept=1 << 20)
    for _ in range(5):
        blocks = [pool.take(3 << 20, 0) for _ in range(2)]
        for block in blocks:
            pool.give_back(block)
    assert len(made) == 2
    del blocks, block
    made.clear()
    lost = pool.take(40 << 20, 0)
    del lost  # a call that failed
    for _ in range(1500):
        pool.give_back(pool.take(1000, 0))
    assert sum(each.bytes.size for each in pool._free) <= 1 << 20


# Messages.


def test_messages_of_one_tag_leave_in_order_whichever_copy_is_ready_first() -> None:
    def two(comm):
        path = path_of(comm)
        x, y = cupy.full(10, 1.0), cupy.full(10, 2.0)
        slow, quick = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        cupy.cuda.Device().synchronize()
        held_up(slow)

        def piece(array):
            return Piece(0, Span(array.data.ptr, array.size, F64))

        first = path.message([], [piece(x)], 5).start(0, 0, slow.ptr)
        second = path.message([], [piece(y)], 5).start(0, 0, quick.ptr)
        out = [cupy.zeros(10) for _ in range(2)]
        cupy.cuda.Device().synchronize()
        landing = [path.message([piece(each)], [], 5).start(0, 0, quick.ptr) for each in out]
        under_way = [second, first, *landing]
        while under_way:
            under_way = [steps for steps in under_way if next(steps, None) is not None]
        quick.synchronize()  # where the results are ordered
        assert [float(cupy.asnumpy(each)[0]) for each in out] == [1.0, 2.0]

    run_ranks(1, on_its_device, two)


@pytest.mark.standin
def test_messages_match_those_of_host_arrays_and_their_sizes_are_checked() -> None:
    def exchange(comm):
        peer = 1 - comm.rank
        host, device = np.arange(6.0), cupy.arange(6, dtype=F64)
        if comm.rank:
            comm.send(device + 1.0, peer, 3)
            comm.recv(device, peer, 3)
            assert np.array_equal(cupy.asnumpy(device), host)
        else:
            out = np.empty(6)
            comm.recv(out, peer, 3)
            assert np.array_equal(out, host + 1.0)
            comm.send(host, peer, 3)
        if comm.rank:
            comm.send(device[:5], peer)
        else:
            with pytest.raises(BufferMismatch, match="40 bytes"):
                comm.recv(device, peer)
        assert np.array_equal(cupy.asnumpy(comm.all_reduce(cupy.full(3, 2.0))), np.full(3, 4.0))

    run_ranks(2, on_its_device, exchange)


# What is refused.


@pytest.mark.standin
def test_the_choice_is_the_hosts_and_says_why_arrays_are_staged() -> None:
    def told(comm):
        x = cupy.zeros(4 * PART, F64)
        call = Signature("all_reduce", F64, (x.size,), op=ReduceOp.SUM, in_place=True)
        path = path_of(comm)
        choice = path.decide(call, "ring", False).choice
        assert (choice.path, choice.backend, choice.algorithm) == ("staged", "loopback", "ring")
        assert choice.segment == PART
        assert "the test says so" in str(choice)
        with pytest.raises(UsageError, match="ring"):
            path.decide(call, "bruck", False)
        assert comm.explain("all_reduce", x).path == "staged"
        assert comm.backends == {"host": "loopback", "cuda": "staged"}

    run_ranks(2, on_its_device, told)
