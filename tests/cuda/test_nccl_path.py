"""Which calls on device arrays NCCL carries out, which go over its messages, and which by the host."""

import cupy
import numpy as np
import pytest
from nccl_ranks import ranked

from hpccomm import ReduceOp

OWN = "NCCL has its own"
MESSAGES = "as asked, hpccomm's own; over its messages"
LACKS = "nccl has no all_reduce of bor on int32 of its own"
IN_ORDER = "contributions are folded in one order by the host"


@ranked(2)
def test_the_choice_says_who_has_a_call(comm):
    x, bits = cupy.ones(8, np.float32), cupy.ones(8, np.int32)
    assert str(comm.explain("all_reduce", x)) == (
        f"all_reduce takes the cuda path over nccl by algorithm native: {OWN}"
    )
    for call, given, how, path, reason in (
        ("broadcast", x, {"algorithm": "ring"}, "cuda", "as asked, NCCL's own"),
        ("broadcast", x, {"algorithm": "tree"}, "cuda", "as asked, hpccomm's own"),
        ("all_reduce", x, {"algorithm": "recursive_doubling"}, "cuda", MESSAGES),
        # test_on_device.py has what else goes by the host.
        ("all_reduce", bits, {"op": ReduceOp.BOR}, "staged", LACKS),
        ("all_reduce", x, {"deterministic": True}, "staged", IN_ORDER),
    ):
        choice = comm.explain(call, given, **how)
        assert choice.path == path, (how, choice)
        assert reason in choice.reason, (how, choice)
    # NCCL has no neighbors, but messages.
    choice = comm.explain("neighbor_all_to_all", x, [1 - comm.rank] * 2, [4, 4], [4, 4])
    assert (choice.algorithm, choice.path) == ("linear", "cuda")
    assert "over its messages" in choice.reason


@pytest.mark.standin
@ranked(2)
def test_nothing_is_launched_where_there_are_no_elements(comm, seen):
    def given():
        return [name for name, *_ in seen if name in ("all_reduce", "message")]

    for count in (1, 0):
        for algorithm in ("native", "recursive_doubling"):
            comm.barrier()
            before = len(given())
            comm.barrier()
            comm.all_reduce(cupy.ones(count, np.float32), algorithm=algorithm)
            comm.barrier()
            assert (len(given()) > before) == bool(count), (count, algorithm)
