"""The collectives, as data.

Each collective has one frozen description. It determines everything that depends on the collective: the lengths of
arrays, the rules for arguments and for overlap, the benchmarks, and the results that the proof expects.

All packages that handle collectives read these descriptions: calls, communicator, schedules, results, testing, tools.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from hpccomm.errors import UsageError

Extent = Literal["nothing", "whole", "block", "blocks"]
"""The part of an array that a rank sends or receives: nothing, the whole array, its own block, or a block for
(or from) each rank."""

InPlace = Literal["never", "always", "by default", "on request", "own block"]
"""The ways in which a call may be in place:

- ``"never"``: the call moves no data;
- ``"always"``: the call has one array, `x`, which is read at the root and written elsewhere;
- ``"by default"``: `x` receives the result unless there is an `out`;
- ``"on request"``: `out` may be `x`;
- ``"own block"``: one of `x` and `out` may be this rank's block of the other.
"""

Uneven = Literal["counts", "send_counts and recv_counts"]
"""The lists of an uneven call: rows of each rank's block, or rows to and from each rank."""


NOBODY = -1
"""Stands among the peers of a call for a block that is not exchanged."""


def _one(_ranks: int) -> float:
    return 1.0


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _twice_all_but_own(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class Collective:
    """The description of a collective.

    Attributes
    ----------
    name : str
        Name of the collective, which is that of the call on blocks of one size.
    sends, receives : Extent
        The extents of a rank's sent and received array.
    bus_factor : callable
        ``bus_factor(ranks)`` times size / time is the bus bandwidth, after nccl-tests
        (``doc/PERFORMANCE.md`` and each test's ``GetBw``); 1 if nccl-tests has no such test.
    in_place : InPlace
        The way in which a call may be in place.
    root_sends, root_receives : bool
        Whether only the root sends, or only the root receives.
    reduces : bool
        Whether contributions are folded.
    prefix : bool
        Whether rank i gets the fold of the contributions of ranks 0 to i only.
    uneven : Uneven or None
        The lists that the call on blocks of different sizes takes (its name ends in ``_v``); None if there is no
        such call.
    peers : bool
        Whether the blocks belong to peers that each rank lists, and not to all ranks. Such a collective has one
        call, for blocks of equal and of different sizes.
    """

    name: str
    sends: Extent
    receives: Extent
    bus_factor: Callable[[int], float]
    in_place: InPlace
    root_sends: bool = False
    root_receives: bool = False
    reduces: bool = False
    prefix: bool = False
    uneven: Uneven | None = None
    peers: bool = False

    @property
    def rooted(self) -> bool:
        """Whether the call has a root."""
        return self.root_sends or self.root_receives

    @property
    def moves(self) -> bool:
        """Whether the call moves data at all."""
        return self.sends != "nothing"

    @property
    def blockwise(self) -> bool:
        """Whether the array consists of a block for each rank."""
        return "blocks" in (self.sends, self.receives)

    @property
    def individual(self) -> bool:
        """Whether ranks may give different counts: each its own numbers of sent and received elements."""
        return self.sends == self.receives == "blocks"

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the calls: the call on blocks of one size, and the uneven call if there is one."""
        only = self.uneven is None or self.peers
        return (self.name,) if only else (self.name, f"{self.name}_v")

    def uses(self, rank: int, root: int) -> tuple[bool, bool]:
        """Return whether a rank has a separate array to send, and whether it has an array to receive into."""
        sends = self.sends != "nothing" and self.in_place != "always"
        receives = self.receives != "nothing"
        at_root = rank == root
        return sends and (at_root or not self.root_sends), receives and (
            at_root or not self.root_receives
        )


_ALL = (
    Collective("all_reduce", "whole", "whole", _twice_all_but_own, "by default", reduces=True),
    Collective("broadcast", "whole", "whole", _one, "always", root_sends=True),
    Collective("reduce", "whole", "whole", _one, "by default", root_receives=True, reduces=True),
    Collective("all_gather", "block", "blocks", _all_but_own, "own block", uneven="counts"),
    Collective(
        "reduce_scatter",
        "blocks",
        "block",
        _all_but_own,
        "own block",
        reduces=True,
        uneven="counts",
    ),
    Collective(
        "all_to_all",
        "blocks",
        "blocks",
        _all_but_own,
        "on request",
        uneven="send_counts and recv_counts",
    ),
    Collective(
        "gather", "block", "blocks", _all_but_own, "own block", root_receives=True, uneven="counts"
    ),
    Collective(
        "scatter", "blocks", "block", _all_but_own, "own block", root_sends=True, uneven="counts"
    ),
    Collective(
        "neighbor_all_to_all",
        "blocks",
        "blocks",
        _one,
        "on request",
        uneven="send_counts and recv_counts",
        peers=True,
    ),
    Collective("scan", "whole", "whole", _one, "on request", reduces=True, prefix=True),
    Collective("barrier", "nothing", "nothing", _one, "never"),
)

DESCRIPTIONS: Mapping[str, Collective] = MappingProxyType({each.name: each for each in _ALL})
"""The collectives, by name."""

CALLS: Mapping[str, Collective] = MappingProxyType(
    {name: each for each in DESCRIPTIONS.values() for name in each.calls[:1]}
    | {name: each for each in DESCRIPTIONS.values() for name in each.calls[1:]}
)
"""The collective of each call, by the name of the call: ``all_gather`` and ``all_gather_v`` have the same."""

COLLECTIVES = tuple(DESCRIPTIONS)
"""The names of the collectives. Uneven calls (``all_gather_v``, ...) are the same collectives with other counts."""

REDUCTIONS = frozenset(each.name for each in DESCRIPTIONS.values() if each.reduces)
"""The collectives that fold contributions."""

OF_NCCL_TESTS = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"),
    *("all_to_all_v", "gather", "scatter", "send_recv", "hypercube"),
)
"""The names of the calls that nccl-tests measures, in its order."""

# A scan cannot be verified: no data are known whose every partial fold is exact.
_VERIFIED = tuple(name for name, each in DESCRIPTIONS.items() if not each.prefix)

MEASURED = tuple(dict.fromkeys((*OF_NCCL_TESTS, *_VERIFIED)))
"""The calls that ``hpccomm perf`` measures, in the order of its ``all``: those of nccl-tests first."""

ALIASES = {"alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv"}
"""hpccomm's names of calls that have another name in nccl-tests."""

ROOTED = frozenset(each.name for each in DESCRIPTIONS.values() if each.rooted)
"""The collectives with a root."""

BLOCKWISE = frozenset(each.name for each in DESCRIPTIONS.values() if each.blockwise)
"""The collectives whose counts are those of each rank's block; others count the whole array, or nothing."""


def ring(rank: int, size: int) -> tuple[int, int]:
    """Return the neighbors of a rank on a ring: the previous and the next rank."""
    return (rank - 1) % size, (rank + 1) % size


def counterpart(rank: int, block: int, peers: Callable[[int], Sequence[int]]) -> int:
    """Return the number of the peer's block that is exchanged with a rank's block.

    The k-th entry by which a rank lists a peer belongs to the k-th entry by which the peer lists the rank.

    Parameters
    ----------
    rank : int
        The rank.
    block : int
        The number of the rank's block. Its peer must be a rank.
    peers : callable
        ``peers(rank)`` returns the peers that a rank lists.

    Raises
    ------
    UsageError
        If the peer lists the rank less often.
    """
    own = tuple(peers(rank))
    peer = own[block]
    before = own[:block].count(peer)
    listed = [number for number, other in enumerate(peers(peer)) if other == rank]
    if before >= len(listed):
        raise UsageError(
            f"rank {rank} lists rank {peer} as a peer {own.count(peer)} times, and rank {peer} lists "
            f"rank {rank} {len(listed)} times; let both list each other equally often"
        )
    return listed[before]
