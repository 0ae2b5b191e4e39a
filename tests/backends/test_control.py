"""The control plane carries bytes between any number of ranks, from and to any root."""

import pytest

from hpccomm.testing import run_ranks


def payload(rank: int) -> bytes:
    """A rank's bytes, of another length on each; rank 2 has none."""
    return bytes([rank]) * ((rank * 37 + 5) % 79)


@pytest.mark.parametrize("size", range(1, 10))
def test_every_root_and_who_differs(size: int) -> None:
    def on_rank(comm) -> None:
        control = comm._core.control  # which all else stands on, and no user has
        everyone = [payload(rank) for rank in range(size)]
        for root in range(size):
            mine = payload(root) if comm.rank == root else None
            assert control.bcast(mine, root) == payload(root)
            gathered = control.gather(payload(comm.rank), root)
            assert gathered == (everyone if comm.rank == root else None)
        assert control.all_gather(payload(comm.rank)) == everyone
        assert control.bcast(b"") == b""
        assert control.all_gather(b"") == [b""] * size
        assert control.differing(b"same") == {}
        assert control.differing(b"") == {}
        for odd in range(1, size):
            theirs = b"" if comm.rank == odd else b"same"
            assert control.differing(theirs) == {0: b"same", odd: b""}
        if size > 2:
            told = control.differing(b"%d" % comm.rank)
            assert told == {rank: b"%d" % rank for rank in range(size)}

    run_ranks(size, on_rank)
