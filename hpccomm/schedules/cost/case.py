"""What a formula is asked about: a call on a network, and what its messages cost there."""

import math
from dataclasses import dataclass, replace

from hpccomm.contracts.signature import Signature
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.path import Path, Reach
from hpccomm.schedules.cost.step import Step
from hpccomm.schedules.schedule import Tuning


@dataclass(frozen=True, slots=True)
class Case:
    """A call on a network, whose ranks fill its nodes one after the other.

    Attributes
    ----------
    network : Network
        The ranks and what connects them.
    call : Signature
        What is asked for.
    tuning : Tuning
        What the algorithm is told.
    streams : int
        How many calls like this one the nodes run side by side.
    crowded : bool
        Whether messages queue where ranks share a port. Then a rank that waits for its turn does
        not wait for latencies too: others' messages pass meanwhile.
    """

    network: Network
    call: Signature
    tuning: Tuning
    streams: int = 1
    crowded: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.network.ranks

    @property
    def per_node(self) -> int:
        """Ranks of the fullest node."""
        return min(self.network.ranks_per_node, self.network.ranks)

    @property
    def one_node(self) -> bool:
        """Whether all ranks share a node."""
        return self.network.nodes == 1

    @property
    def far(self) -> Reach:
        """How far apart ranks are at most."""
        return Reach.INNER if self.one_node else Reach.ACROSS

    @property
    def reaches(self) -> tuple[Reach, ...]:
        """How far apart ranks may be."""
        inner = (Reach.INNER,) if self.per_node > 1 else ()
        return inner if self.one_node else (*inner, Reach.ACROSS)

    @property
    def within(self) -> "Case":
        """What the ranks of one node do among themselves, as those of all other nodes."""
        return replace(self, network=replace(self.network, ranks=self.per_node))

    @property
    def between(self) -> "Case":
        """What the ranks at one place of all nodes do, as those at all other places."""
        network = replace(self.network, ranks=self.network.nodes, ranks_per_node=1, inner=None)
        return replace(self, network=network, streams=self.per_node)

    def inject(
        self, reach: Reach, elements: float, flows: int = 1, *, both_ways: bool = True
    ) -> Path:
        """Return the time in which messages of `elements` pass their sender's port.

        Parameters
        ----------
        reach : Reach
            Where they go.
        elements : float
            Of each.
        flows : int
            Ranks of a node that send one at the same time.
        both_ways : bool
            Whether messages come in at the same time, which a half-duplex port cannot take.
        """
        level = self.network.across if reach else self.network.inner
        if level is None:
            return Path()
        messages, elements = self._held(level, reach, elements, flows, both_ways=both_ways)
        if reach:
            return Path(across_messages=messages, across_elements=elements)
        return Path(inner_messages=messages, inner_elements=elements)

    def hop(self, reach: Reach, elements: float, flows: int = 1, *, both_ways: bool = True) -> Path:
        """Return the time from the start of such messages until the last has arrived."""
        level = self.network.across if reach else self.network.inner
        queued = level is not None and self._crowd(level, flows) > 1
        waited = Path(across_latencies=not queued) if reach else Path(inner_latencies=not queued)
        return waited + self.inject(reach, elements, flows, both_ways=both_ways)

    def _crowd(self, level: Level, flows: int) -> int:
        """Return how many messages queue at a port."""
        return -(-flows * self.streams // level.ports) if self.crowded else 1

    def _held(
        self, level: Level, reach: Reach, elements: float, flows: int, *, both_ways: bool
    ) -> tuple[int, float]:
        """Return messages and elements that one port would take as long for."""
        messages = self._crowd(level, flows)
        times = 2 if both_ways and level.duplex == "half" else 1
        messages *= times
        # What a node's ports share is passed at both ends between nodes, and once within a node.
        shared = self._shared(level, flows * self.streams, times if reach else 1)
        return messages, elements * max(messages, shared)

    def step(
        self,
        reach: Reach,
        elements: float,
        flows: int = 1,
        local: Path = Path(),  # noqa: B008 - it is frozen
        *,
        both_ways: bool = True,
    ) -> Step:
        """Return the step that ends with such messages."""
        return Step(
            self.hop(reach, elements, flows, both_ways=both_ways),
            self.inject(reach, elements, flows, both_ways=both_ways),
            local,
        )

    def swap(self, distance: int, elements: float, local: Path = Path()) -> Step:  # noqa: B008
        """Return the step in which ranks at `distance`, a power of two, exchange `elements`.

        Ranks are paired within blocks of twice the distance.
        """
        width = self.network.ranks_per_node
        crosses = not self.one_node and width % (2 * distance) != 0
        flows = min(distance, self.per_node) if crosses and width % distance else self.per_node
        return self.step(Reach(crosses), elements, flows, local)

    def _shared(self, level: Level, flows: int, times: int) -> float:
        """Return how much longer `flows` messages of each node take than one on a port.

        All nodes are taken to send at once. What the ports of a node share takes as many messages
        `times`.
        """
        if level.node_bandwidth == level.total_bandwidth == math.inf:
            return 0.0
        everywhere = flows * self.network.nodes
        return level.bandwidth * max(
            times * flows / level.node_bandwidth, everywhere / level.total_bandwidth
        )
