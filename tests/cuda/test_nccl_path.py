"""The path of a call on device arrays over NCCL, and NCCL's arguments."""

import cupy
import numpy as np
import pytest

from hpccomm import settings
from hpccomm.contracts.device import DeviceImplementation, Piece, Span
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.nccl import NcclDispatch
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp
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


class Staged:
    """The way through the host, as told; it notes why it is taken."""

    def __init__(self):
        self.taken = []

    def applicable(self, _call):
        return ("native", "shm")

    def decide(self, call, algorithm, reason):
        self.taken.append((call.op, algorithm, reason))
        return None, DeviceImplementation(start=lambda _send, _recv, _stream: iter(()))


def path(library, staged=None):
    given = settings.merge("nccl", None, None)
    return NcclDispatch(library, Topology((0, 0)), given, staged or Staged())


def test_auto_takes_nccls_own_collective():
    library = Library()
    choice, way = path(library).decide(SUM, "auto")
    assert way.groups
    way.alone()(1, 2, 3)
    assert library.given == [(SUM, "native", (1, 2, 3))]
    assert str(choice) == (
        "all_reduce takes the cuda path over nccl by algorithm native: NCCL has its own"
    )


def test_auto_leaves_to_the_host_what_nccl_lacks_and_says_so():
    staged = Staged()
    _, way = path(Library(lambda _call: False), staged).decide(BITS, "auto")
    assert way.launch is None
    assert staged.taken == [
        (ReduceOp.BOR, "auto", "nccl has no all_reduce of bor on int32 of its own")
    ]


def test_what_only_moves_data_stays_on_the_device():
    """NCCL has no neighbors, but messages."""
    call = Signature("neighbor_all_to_all", F32, (4, 4), (4, 4), (1, 1), uniform=False)
    choice, way = path(Library(lambda _call: False)).decide(call, None)
    assert (choice.algorithm, choice.path) == ("linear", "cuda")
    assert "over its messages" in choice.reason
    assert not way.groups


def test_a_named_algorithm_runs_over_nccls_messages_where_the_device_folds():
    staged = Staged()
    over_nccl = path(Library(), staged)
    choice, way = over_nccl.decide(SUM, "recursive_doubling")
    assert "as asked, hpccomm's own; over its messages" in choice.reason
    assert way.launch is not None
    for call, name in ((SUM, "shm"), (SUM._replace(deterministic=True), "native")):
        over_nccl.decide(call, name)
        assert staged.taken.pop() == (ReduceOp.SUM, name, "as asked")


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


def test_in_rank_order_nothing_is_left_to_nccl():
    staged = Staged()
    path(Library(), staged).decide(SUM._replace(deterministic=True), "auto")
    assert [why for _, _, why in staged.taken] == [
        "contributions are folded in one order by the host"
    ]


def test_trap_in_place_all_to_all_sends_from_a_copy_on_whichever_rank():
    """NCCL's works out of place alone, and ranks that are in place must call it like the others."""
    library = Library(reads=True)
    call = Signature("all_to_all", F32, (4, 4), (4, 4), in_place=True)
    _, way = path(library).decide(call, "auto")
    x = cupy.asarray(np.arange(8, dtype=F32))
    cupy.cuda.get_current_stream().synchronize()
    way.alone()(x.data.ptr, x.data.ptr, 0)
    given, _, (send, recv, _) = library.given[0]
    assert not given.in_place
    assert send != recv == x.data.ptr
    assert library.sent == [list(range(8))]


@pytest.mark.parametrize("algorithm", ["auto", "recursive_doubling"])
def test_nothing_is_launched_where_there_are_no_elements(algorithm):
    library = Library()
    path(library).decide(SUM._replace(counts=(0,)), algorithm)[1].launch(0, 0, 0)
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
