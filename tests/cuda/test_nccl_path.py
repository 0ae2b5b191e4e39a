"""The path of a call on device arrays over NCCL, and NCCL's arguments."""

import cupy
import numpy as np
import pytest

from hpccomm import dtypes, settings
from hpccomm.contracts.device import DeviceImplementation, Piece, Span
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.nccl import NcclDispatch
from hpccomm.errors import UsageError
from hpccomm.reductions import PremulSum, ReduceOp
from hpccomm.topology import Topology

F32 = np.dtype(np.float32)
SUM = Signature("all_reduce", F32, (8,), op=ReduceOp.SUM)
BITS = Signature("all_reduce", np.dtype(np.int32), (8,), op=ReduceOp.BOR)


class Library:
    """What NCCL does by itself, as told; it notes what it is given."""

    name, rank, size, device = "nccl", 0, 2, 0

    def __init__(self, knows=lambda _call: True, algo="", *, reads=False):
        self.given, self.exchanged, self.sent = [], [], []
        self.reads, self._knows, self._algo = reads, knows, algo

    def algorithms(self, call):
        pinned = {"all_reduce": ("ring", "tree"), "broadcast": ("ring",)}
        return ("native", *pinned.get(call.collective, ())) if self._knows(call) else ()

    def native(self, call, algorithm):
        def launch(send, recv, stream):
            self.given.append((call, algorithm, (send, recv, stream)))
            if not self.reads:
                return
            found, runtime = np.empty(8, F32), cupy.cuda.runtime
            runtime.memcpyAsync(found.ctypes.data, send, 32, runtime.memcpyDeviceToHost, stream)
            runtime.streamSynchronize(stream)
            self.sent.append(found.tolist())

        return DeviceImplementation(launch)

    def exchange(self, receives, sends, stream):
        self.exchanged.append((list(receives), list(sends), stream))

    def reason(self):
        return f"NCCL_ALGO={self._algo} is set" if self._algo else ""


def path(library):
    return NcclDispatch(library, Topology((0, 0)), settings.merge("nccl", None, None))


def test_auto_takes_nccls_own_collective():
    library = Library()
    choice, way = path(library).decide(SUM, "auto")
    assert way.grouped.begin is None
    way.launch(1, 2, 3)
    assert library.given == [(SUM, "native", (1, 2, 3))]
    assert str(choice) == (
        "all_reduce takes the cuda path over nccl by algorithm native: NCCL has its own"
    )


def test_auto_takes_hpccomms_own_where_nccl_has_none_and_says_so():
    choice, way = path(Library(lambda _call: False)).decide(BITS, "auto")
    assert choice.algorithm == "recursive_doubling"
    assert "NCCL does not have its own all_reduce of bor on int32 with this meaning" in str(choice)
    assert not way.grouped


def test_a_message_between_devices_weighs_more_than_one_on_the_host():
    over_nccl = path(Library(lambda _call: False))
    for nbytes, name in ((128 << 10, "recursive_doubling"), (64 << 20, "ring")):
        choice, _ = over_nccl.decide(BITS._replace(counts=(nbytes // 4,)), "auto")
        assert choice.algorithm == name


def test_explain_tells_the_users_nccl_algo():
    choice, _ = path(Library(algo="Ring")).decide(SUM, "native")
    assert "NCCL_ALGO=Ring is set" in choice.reason
    pinned, _ = path(Library(algo="Ring")).decide(SUM, "tree")
    assert "NCCL_ALGO" not in pinned.reason  # it has a communicator of its own


def test_ring_and_tree_are_nccls_own_where_it_has_them():
    library = Library()
    over_nccl = path(library)
    for name in ("ring", "tree"):
        over_nccl.decide(SUM, name)[1].launch(1, 2, 3)
    assert [name for _, name, _ in library.given] == ["ring", "tree"]
    broadcast = Signature("broadcast", F32, (8,), root=0)
    assert "as asked, NCCL's own" in over_nccl.decide(broadcast, "ring")[0].reason
    assert "as asked, hpccomm's own" in over_nccl.decide(broadcast, "tree")[0].reason
    names = over_nccl.applicable(SUM)
    assert names[:3] == ("native", "ring", "tree")
    assert len(set(names)) == len(names)


def test_in_rank_order_nothing_is_left_to_nccl():
    choice, _ = path(Library()).decide(SUM._replace(deterministic=True), "auto")
    assert "in rank order" in choice.reason
    assert "native" not in path(Library()).applicable(SUM._replace(deterministic=True))


def test_a_factor_that_nccl_does_not_take_is_multiplied_beforehand():
    library = Library(lambda call: not isinstance(call.op, PremulSum), reads=True)
    call = Signature("all_reduce", F32, (8,), op=PremulSum(0.5))
    _, way = path(library).decide(call, "auto")
    assert way.grouped.begin is not None
    x = cupy.asarray(np.arange(8, dtype=F32))
    cupy.cuda.get_current_stream().synchronize()
    way.launch(x.data.ptr, x.data.ptr, 0)
    assert library.sent == [[i * 0.5 for i in range(8)]]
    assert x.get().tolist() == list(range(8))


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_launched_where_there_are_no_elements(known):
    library = Library(lambda _call: known)
    path(library).decide(SUM._replace(counts=(0,)), "auto")[1].launch(0, 0, 0)
    assert library.given == library.exchanged == []


def test_messages_without_elements_are_not_sent_and_have_no_tags():
    library = Library()
    over_nccl = path(library)
    full, empty = Piece(1, Span(64, 4, F32)), Piece(1, Span(0, 0, F32))
    over_nccl.message([empty], [full], 0)[1].launch(0, 0, 7)
    assert library.exchanged == [([], [full], 7)]
    over_nccl.message([empty], [], 0)[1].launch(0, 0, 7)
    assert len(library.exchanged) == 1
    with pytest.raises(UsageError, match=r"tag is 3.*leave it at 0"):
        over_nccl.message([], [full], 3)


def test_a_users_function_that_takes_no_device_arrays_is_refused_before_anything_is_sent():
    library = Library(lambda _call: False)

    def by_lists(a, b):
        return np.add(a.tolist(), b.tolist())

    for dtype in (F32, dtypes.FLOAT8_E5M2):
        call = Signature("all_reduce", dtype, (8,), op=by_lists)
        with pytest.raises(UsageError, match="by_lists"):
            path(library).decide(call, "auto")
    assert library.exchanged == []
