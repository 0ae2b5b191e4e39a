"""The request of a simulation: the calls, the network, and how to time them.

`hpccomm.cli.simulate` makes it from the flags.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpccomm import dtypes
from hpccomm.bench.perf.options import Options
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import dump
from hpccomm.schedules.schedule import Tuning
from hpccomm.topology import Topology

EVENTS = "events"
COST = "cost"
TERMS = "terms"
MODELS = (EVENTS, COST, TERMS)
"""The models that can time a call."""


@dataclass(frozen=True)
class SimulationRequest:
    """The request of a simulation.

    Attributes
    ----------
    options : Options
        As of perf; `algorithms` is None for the choices of ``auto``.
    network : Network
        Of all simulated ranks.
    model : str
        One of `MODELS`.
    segment : int
        Bytes of a segment.
    channels : int
        Rounds that may be under way at the same time.
    skew : float
        Seconds within which ranks enter a call.
    seed : int
        Of the random entry times.
    """

    options: Options
    network: Network
    model: str
    segment: int
    channels: int
    skew: float
    seed: int

    @cached_property
    def starts(self) -> NDArray[np.float64]:
        """When each rank enters a call: the same for every call, so that they compare."""
        return np.random.default_rng(self.seed).random(self.network.ranks) * self.skew

    @property
    def facts(self) -> dict[str, str]:
        """The simulation, as a results file describes it."""
        network = self.network
        return {
            "cluster": f"{network.name}: {network.ranks} ranks, {network.ranks_per_node} a node, "
            f"{network.nodes} nodes",
            "model": self.model,
            "network": dump(network),
            "channels": str(self.channels),
            "segment": f"{self.segment} B",
            "skew": f"{self.skew:g} s, seed {self.seed}",
        }

    def tuning(self, dtype: dtypes.DType) -> Tuning:
        """Return the parameters of an algorithm."""
        elements = max(1, self.segment // dtype.itemsize)
        return Tuning(elements, self.channels, self._topology)

    @cached_property
    def _topology(self) -> Topology:
        return self.network.topology()
