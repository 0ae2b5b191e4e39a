"""The control plane carries bytes between any number of ranks, from and to any root."""

import pytest

from hpccomm.testing import run_ranks


@pytest.mark.parametrize("size", range(1, 10))
def test_every_root_and_who_differs(size: int) -> None:
    # Another length on each, and nothing on rank 2.
    everyone = [bytes([rank]) * ((rank * 37 + 5) % 79) for rank in range(size)]

    def on_rank(comm) -> None:
        control = comm._core.control  # which all else stands on, and no user has
        mine = everyone[comm.rank]
        for root in range(size):
            at_root = comm.rank == root
            assert control.bcast(mine if at_root else None, root) == everyone[root]
            assert control.gather(mine, root) == (everyone if at_root else None)
        assert control.all_gather(mine) == everyone
        assert control.bcast(b"") == b""
        assert control.all_gather(b"") == [b""] * size
        for odd in range(size):  # rank 0 is what the others are compared with
            theirs = b"" if odd and comm.rank == odd else b"same"
            assert control.differing(theirs) == ({0: b"same", odd: b""} if odd else {})
        if size > 2:
            told = control.differing(b"%d" % comm.rank)
            assert told == {rank: b"%d" % rank for rank in range(size)}

    run_ranks(size, on_rank)
