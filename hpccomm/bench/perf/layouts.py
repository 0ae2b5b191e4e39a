"""The contents of each rank's arrays for a given size, for `measure` and `tables`.

The sizes are nccl-tests'. The size of a case is the larger of the bytes that one rank sends and
receives in full. The count is the one passed to the call. Collectives that work on one block a rank
round the block down to a multiple of 16 bytes.
"""

from dataclasses import dataclass

from hpccomm.bench.perf.patterns import REDUCED
from hpccomm.bench.perf.verification import RankSlice
from hpccomm.contracts.collectives import Collective, counterpart, ring

Segments = tuple[RankSlice, ...]

ALIGNMENT = 16
"""A block is a multiple of this number of bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The contents of one rank's arrays in one case. Numbers are elements, except `nbytes`.

    Attributes
    ----------
    nbytes : int
        The printed size, in bytes.
    count : int
        The printed count.
    inputs : tuple of RankSlice or None
        What the input array holds; None without an input.
    outputs : tuple of RankSlice or None
        What the output array must hold afterwards; None without an output.
    input_at, output_at : int
        In place: the offsets of input and output in the one array.
    root : int
        The root, or -1.
    send_counts, recv_counts : tuple of int
        Of all_to_all_v.
    """

    nbytes: int
    count: int
    inputs: Segments | None
    outputs: Segments | None
    input_at: int = 0
    output_at: int = 0
    root: int = -1
    send_counts: tuple[int, ...] = ()
    recv_counts: tuple[int, ...] = ()

    @property
    def input_size(self) -> int:
        """Elements of the input array."""
        return sum(segment.count for segment in self.inputs or ())

    @property
    def output_size(self) -> int:
        """Elements of the output array."""
        return sum(segment.count for segment in self.outputs or ())


@dataclass(frozen=True, slots=True)
class Member:
    """A rank among the ranks of a case, and the root of the case."""

    rank: int
    ranks: int
    root: int


def layout(collective: Collective, size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of a collective's arrays on one rank.

    Parameters
    ----------
    collective : Collective
        The collective; all its blocks have one size.
    size : int
        Bytes.
    itemsize : int
        Bytes of an element.
    member : Member
        The rank.
    """
    rank, ranks, root = member.rank, member.ranks, member.root
    if not collective.moves:
        return Layout(0, 0, None, None)
    if collective.peers:
        return _peer_blocks(size, itemsize, member)
    n = _block(size, itemsize, ranks) if collective.blockwise else size // itemsize
    inputs = (RankSlice(rank, 0, n * ranks if collective.sends == "blocks" else n),)
    # A rank receives its block of each other rank's input, or all of that input.
    start = n * rank if collective.sends == "blocks" else 0
    if collective.receives == "blocks":
        outputs = tuple(RankSlice(source, start, n) for source in range(ranks))
    else:
        outputs = (RankSlice(REDUCED if collective.reduces else root, start, n),)
    own_block = collective.in_place == "own block"
    return Layout(
        n * ranks * itemsize if collective.blockwise else n * itemsize,
        n,
        None if collective.root_sends and rank != root else inputs,
        None if collective.root_receives and rank != root else outputs,
        input_at=n * rank if own_block and collective.sends == "block" else 0,
        output_at=n * rank if own_block and collective.receives == "block" else 0,
        root=root if collective.rooted else -1,
    )


def _block(size: int, itemsize: int, ranks: int) -> int:
    """Return the elements of one rank's block when all blocks together are about `size` bytes."""
    return (size // itemsize // ranks) & ~(ALIGNMENT // itemsize - 1)


def _peer_blocks(size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of blocks that ranks exchange with their neighbors on a ring."""
    rank, ranks = member.rank, member.ranks
    peers = ring(rank, ranks)
    n = _block(size, itemsize, len(peers))
    outputs = tuple(
        RankSlice(peer, n * counterpart(rank, block, lambda each: ring(each, ranks)), n)
        for block, peer in enumerate(peers)
    )
    total = n * len(peers)
    return Layout(total * itemsize, n, (RankSlice(rank, 0, total),), outputs)


def ring_shift(size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of send_recv: each rank sends to the next one."""
    n = size // itemsize
    before = (member.rank - 1) % member.ranks
    return Layout(n * itemsize, n, (RankSlice(member.rank, 0, n),), (RankSlice(before, 0, n),))


def uneven_exchange(size: int, itemsize: int, member: Member) -> Layout:
    """Return the layout of all_to_all_v: `uneven_bytes` from each rank to each."""
    rank, ranks = member.rank, member.ranks
    n = _block(size, itemsize, ranks)
    total = n * ranks * itemsize
    # One row is enough: what a rank sends depends only on the distance.
    by_distance = [uneven_bytes(total, 0, peer, ranks) // itemsize for peer in range(ranks)]
    send = tuple(by_distance[(peer - rank) % ranks] for peer in range(ranks))
    recv = tuple(by_distance[(rank - peer) % ranks] for peer in range(ranks))
    outputs = tuple(
        RankSlice(
            source, sum(by_distance[(peer - source) % ranks] for peer in range(rank)), recv[source]
        )
        for source in range(ranks)
    )
    inputs = (RankSlice(rank, 0, sum(send)),)
    return Layout(sum(send) * itemsize, n, inputs, outputs, send_counts=send, recv_counts=recv)


def uneven_bytes(total: int, source: int, target: int, ranks: int) -> int:
    """Return the bytes that `source` sends to `target` in all_to_all_v: more to farther ranks.

    It is nccl-tests' generated pattern: in proportion to the distance from source to target,
    rounded down to 16 bytes.
    """
    if ranks == 1:
        return total & ~(ALIGNMENT - 1)
    distance = (target - source) % ranks
    return distance * total // (ranks * (ranks - 1) // 2) & ~(ALIGNMENT - 1)
