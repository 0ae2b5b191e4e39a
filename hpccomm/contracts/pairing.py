"""Compares the lists that each rank gives in all_to_all_v and in calls with neighbors.

The check of the first call (`hpccomm.calls.lanes.check`), `hpccomm.calls.program`, `hpccomm.gradients.agreement` and
the verdict on a waiting call (`hpccomm.runtime`) use it.
"""

import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from hpccomm.contracts.collectives import NOBODY
from hpccomm.contracts.signature import Signature

_BALANCE = struct.Struct("<Q")
_MODULUS = 1 << 64

Marks = tuple[int, ...]
"""The identity of a block that is sent or expected: number of the call, sender, receiver, number of the block, and
elements."""

Between = tuple[Sequence[int], Sequence[int]]
"""The elements of each block that a rank sends to another rank, and of each block that it expects from it, in order."""


class Exchanged(NamedTuple):
    """The lists of one rank.

    Attributes
    ----------
    counts, recv_counts : sequence of int
        Elements of the blocks that the rank sends, and of those that it expects.
    peers : sequence of int
        The peer of each block, or ``NOBODY``. Empty if there is one block for each rank, in rank order.
    listed : bool
        Whether ranks list their peers.
    """

    counts: Sequence[int]
    recv_counts: Sequence[int]
    peers: Sequence[int]
    listed: bool

    def between(self, peer: int) -> Between:
        """Return the blocks that this rank exchanges with `peer`."""
        if not self.listed:
            return [self.counts[peer]], [self.recv_counts[peer]]
        blocks = [block for block, each in enumerate(self.peers) if each == peer]
        return [self.counts[block] for block in blocks], [
            self.recv_counts[block] for block in blocks
        ]


def exchanged(call: Signature) -> Exchanged:
    """Return the lists of a call."""
    return Exchanged(call.counts, call.recv_counts, call.peers, call.description.peers)


def between(calls: Sequence[Signature], peer: int) -> list[Between]:
    """Return the blocks that a rank exchanges with `peer`, in each of `calls`."""
    return [exchanged(call).between(peer) for call in calls]


def unfit(rank: int, mine: Between, peer: int, theirs: Between) -> str | None:
    """Return in words how the lists of two ranks differ; None if they fit."""
    (sends, expects), (sent, expected) = mine, theirs
    if len(sends) != len(sent):
        return (
            f"rank {rank} lists rank {peer} as a peer {len(sends)} times, and rank {peer} lists "
            f"rank {rank} {len(sent)} times; let both list each other equally often"
        )
    for one, other, leaving, coming in ((rank, peer, sends, expected), (peer, rank, sent, expects)):
        for went, came in zip(leaving, coming, strict=True):
            if went != came:
                return (
                    f"rank {one} sends {went} elements to rank {other}, which expects {came}; "
                    "let send_counts of one be recv_counts of the other"
                )
    return None


def unpaired(everyone: Sequence[Exchanged]) -> tuple[str, tuple[int, int]] | None:
    """Return in words the first mismatch between two ranks, and these ranks; None without a mismatch.

    `everyone` has the lists of all ranks.
    """
    for rank, own in enumerate(everyone):
        peers = sorted(set(own.peers) - {NOBODY, rank}) if own.listed else range(rank)
        for peer in peers:
            text = unfit(rank, own.between(peer), peer, everyone[peer].between(rank))
            if text is not None:
                return text, (rank, peer)
    return None


def blocks(calls: Sequence[Signature], rank: int) -> Iterator[tuple[Marks, Marks]]:
    """Yield the arguments of `balance` for the blocks of `calls`: pairs of a sent and an expected block."""
    for number, call in enumerate(calls):
        own = exchanged(call)
        for peer in sorted(set(own.peers) - {NOBODY}) if own.listed else range(len(own.counts)):
            sends, expects = own.between(peer)
            for block, (went, came) in enumerate(zip(sends, expects, strict=True)):
                yield (number, rank, peer, block, went), (number, peer, rank, block, came)


def balance(given: Iterable[tuple[Marks, Marks]]) -> bytes:
    """Return 64 bits that sum up a rank's blocks. `balanced` compares those of all ranks.

    Parameters
    ----------
    given : iterable of pairs of tuple of int
        Pairs of a sent block, whose hash is added, and an expected block, whose hash is subtracted.
    """
    total = sum(_hash(*gives) - _hash(*takes) for gives, takes in given)
    return _BALANCE.pack(total % _MODULUS)


def balanced(everyone: Iterable[bytes]) -> bool:
    """Return whether all sent blocks are expected, from the `balance` of every rank.

    If they are not, the result is True with a probability of 2**-64.
    """
    return int(sum(_BALANCE.unpack(each)[0] for each in everyone)) % _MODULUS == 0


def _hash(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def odd_ones(brought: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Return the ranks that differ from the majority; all ranks if there is no majority; none if all are equal.

    Examples
    --------
    >>> odd_ones({0: "max", 1: "sum", 2: "sum"}), odd_ones({0: "max", 1: "sum"}), odd_ones({0: 1, 1: 1})
    ((0,), (0, 1), ())
    """
    groups: dict[Hashable, list[int]] = {}
    for rank, each in brought.items():
        groups.setdefault(each, []).append(rank)
    sizes = sorted(map(len, groups.values()))
    if len(groups) < 2:
        return ()
    most = sizes[-1] if sizes[-1] > sizes[-2] else 0
    return tuple(sorted(rank for ranks in groups.values() if len(ranks) != most for rank in ranks))
