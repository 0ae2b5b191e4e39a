"""Whether ranks' own lists fit together, in all_to_all_v and calls with neighbors.

The check of the first call and the verdict on a waiting call ask it.
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
"""A block given or taken: its giver, its taker, and its size."""

Between = tuple[Sequence[int], Sequence[int]]
"""The blocks from a rank to another one, and back: elements of each, in order."""


class Exchanged(NamedTuple):
    """The lists of one rank.

    Attributes
    ----------
    counts, recv_counts : sequence of int
        Elements of its sent and expected blocks.
    peers : sequence of int
        The peer of each, or ``NOBODY``; empty for one block a rank, by rank.
    listed : bool
        Whether ranks list their peers.
    """

    counts: Sequence[int]
    recv_counts: Sequence[int]
    peers: Sequence[int]
    listed: bool

    def between(self, peer: int) -> Between:
        """Return this rank's exchange with another one."""
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
    """Return a rank's exchange with another one in each of some calls."""
    return [exchanged(call).between(peer) for call in calls]


def unfit(rank: int, mine: Between, peer: int, theirs: Between) -> str | None:
    """Return the mismatch between two ranks; None without one."""
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
    """Return the mismatch and its ranks; None without one. `everyone` has all ranks' lists."""
    for rank, own in enumerate(everyone):
        peers = sorted(set(own.peers) - {NOBODY, rank}) if own.listed else range(rank)
        for peer in peers:
            text = unfit(rank, own.between(peer), peer, everyone[peer].between(rank))
            if text is not None:
                return text, (rank, peer)
    return None


def blocks(calls: Sequence[Signature], rank: int) -> Iterator[tuple[Marks, Marks]]:
    """Yield the arguments of `balance` for the blocks of some calls: sent and expected ones."""
    for number, call in enumerate(calls):
        own = exchanged(call)
        for peer in sorted(set(own.peers) - {NOBODY}) if own.listed else range(len(own.counts)):
            sends, expects = own.between(peer)
            for block, (went, came) in enumerate(zip(sends, expects, strict=True)):
                yield (number, rank, peer, block, went), (number, peer, rank, block, came)


def balance(given: Iterable[tuple[Marks, Marks]]) -> bytes:
    """Return a number of 64 bits: `balanced` tells whether all that ranks give is what others take.

    Parameters
    ----------
    given : iterable of pairs of tuple of int
        A rank's given block, whose hash is added, and its taken block, whose hash is subtracted.
    """
    total = sum(_hash(*gives) - _hash(*takes) for gives, takes in given)
    return _BALANCE.pack(total % _MODULUS)


def balanced(everyone: Iterable[bytes]) -> bool:
    """Return whether all that ranks give is what others take. Where it is not, this is so by chance alone."""
    return int(sum(_BALANCE.unpack(each)[0] for each in everyone)) % _MODULUS == 0


def _hash(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def odd_ones(brought: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Return the ranks that differ from the majority; all, without a majority.

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
