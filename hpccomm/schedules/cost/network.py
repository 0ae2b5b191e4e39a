"""The description of a cluster: costs of messages, folds and copies, and shared links.

A network has up to two levels: `inner` connects the ranks of a node, `across` the nodes. Each has a
latency, and ports of a bandwidth; ports may be fewer than a node's ranks, which then share them.
The parameters are those of LogGP, with bandwidth for its G: A. Alexandrov, M. Ionescu, K. Schauser,
C. Scheiman, "LogGP: incorporating long messages into the LogP model", 1995.

The rules of time:

- A message between ranks of one node passes its level's ports: out of the sender's, into the
  receiver's. A message between nodes passes the `across` ports of the two ranks, and no others. It
  also passes what all ports of a node share (`node_bandwidth`), out of the one node and into the
  other, or once inside a node; and what all nodes share (`total_bandwidth`).
- A message occupies a port for ``gap + bytes / bandwidth`` seconds, and a shared link for ``bytes /
  bandwidth``. Each takes messages one at a time: a channel's messages round by round, and a round's
  messages in the order in which their senders were ready. A message that waits at one does not hold
  the others.
- Ports are full duplex (out of a node and into it independently) or half duplex (one message at a
  time either way). The shared links of a node are likewise.
- Once a message has passed all of them its sender may go on; it has arrived `latency` later.
- A rank folds and copies one thing at a time: k sources of b bytes take ``(k - 1) * b / reduce``
  seconds, a copy (or k = 1) ``b / copy``.
- Each call takes `overhead` seconds on every rank before its first message.

`rounds` prices schedules by it, `terms` estimates by it, and the policy of ``auto`` holds one.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from hpccomm.errors import UsageError
from hpccomm.schedules.schedule import Column
from hpccomm.topology import Topology

Duplex = Literal["full", "half"]


@dataclass(frozen=True, slots=True)
class Level:
    """The connection of the ranks of a node, or of the nodes.

    Attributes
    ----------
    latency : float
        Seconds from the passage of a message's last byte through the ports to its arrival.
    bandwidth : float
        Bytes a second of one port, in one direction.
    ports : int
        Of a node; from 1 to its ranks. Ranks take them in turn: local rank modulo ports.
    duplex : str
        ``"full"``, or ``"half"``: a port takes either direction, one at a time.
    gap : float
        Seconds that a message occupies a port in addition to its bytes.
    node_bandwidth : float
        Bytes a second of all ports of a node together; infinite unless they share something, such
        as memory or an uplink.
    total_bandwidth : float
        Bytes a second of all nodes together, such as a spine's; infinite if they share nothing.
    """

    latency: float
    bandwidth: float
    ports: int
    duplex: Duplex = "full"
    gap: float = 0.0
    node_bandwidth: float = math.inf
    total_bandwidth: float = math.inf


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster. Ranks are numbered node by node; the last node may have fewer.

    Attributes
    ----------
    name : str
        Its file's name, without folder and ending.
    ranks, ranks_per_node : int
        Ranks in all, and on each node but perhaps the last.
    reduce : float
        Bytes a second that a rank folds into others.
    inner, across : Level or None
        Within a node and between nodes; None where there is nothing to connect.
    copy : float
        Bytes a second that a rank copies; infinite where that is not counted.
    overhead : float
        Seconds that each call takes on every rank.
    description : str
        A sentence.
    """

    name: str
    ranks: int
    ranks_per_node: int
    reduce: float
    inner: Level | None
    across: Level | None
    copy: float = math.inf
    overhead: float = 0.0
    description: str = ""

    @property
    def nodes(self) -> int:
        """Nodes that have ranks."""
        return -(-self.ranks // self.ranks_per_node)

    def node(self, rank: Column) -> Column:
        """Return the node of each of `rank`."""
        return rank // self.ranks_per_node

    def topology(self) -> Topology:
        """Return which ranks share a node."""
        return Topology(tuple(rank // self.ranks_per_node for rank in range(self.ranks)))

    def placed(self, ranks: int, per_node: int, fallback: "Network") -> "Network":
        """Return links like these between other ranks, with a number of ranks a node.

        All nodes count as full. A level that has a port for each rank keeps one for each; a level
        that this network does not have is that of `fallback`.
        """

        def level(own: Level | None, other: Level | None, full: int) -> Level | None:
            chosen, whole = (own, self.ranks_per_node) if own else (other, fallback.ranks_per_node)
            if chosen is None or not full:
                return None
            ports = per_node if chosen.ports == whole > 1 else min(chosen.ports, per_node)
            return dataclasses.replace(chosen, ports=ports)

        return dataclasses.replace(
            self,
            ranks=ranks,
            ranks_per_node=per_node,
            inner=level(self.inner, fallback.inner, per_node > 1),
            across=level(self.across, fallback.across, ranks > per_node),
        )

    def resized(self, ranks: int) -> "Network":
        """Return the same network with another number of ranks, and so of nodes.

        The last node is filled in part if `ranks` is not a multiple of the ranks of a node.

        Raises
        ------
        UsageError
            If they need more than one node, and nothing connects nodes.
        """
        if ranks < 1:
            raise UsageError(f"{self.name} with {ranks} ranks: give at least 1")
        if ranks > self.ranks_per_node and self.across is None:
            raise UsageError(
                f"{self.name} is one node of {self.ranks_per_node} ranks, and {ranks} were asked "
                "for; give fewer, or a network that has [across], which connects nodes"
            )
        return dataclasses.replace(self, ranks=ranks)
