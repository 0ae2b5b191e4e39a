"""Which table a communicator goes by: a tuned one of its shape, else the nearest built-in one."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hpccomm.dispatch.policy import builtin
from hpccomm.dispatch.policy.choosing import Policy
from hpccomm.dispatch.policy.table import Shape, Table
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import typical
from hpccomm.topology import Topology

logger = logging.getLogger("hpccomm")


class Machine(NamedTuple):
    """What the ranks of a job run on; rank 0's, and with that the same for all.

    Attributes
    ----------
    library : str
        The MPI library and its version; empty where there is none.
    processor : str
        Its model.
    cores : int
        Of a node.
    """

    library: str
    processor: str
    cores: int


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that the communicators of a job choose from.

    Attributes
    ----------
    machine : Machine
        Where it runs.
    tuned : tuple of Table
        Those of the tuning file; the last of a shape counts. Empty without one.
    file : str
        The tuning file's name.
    network : Network
        The links of the cluster, on which algorithms are compared where no table fits.
    """

    machine: Machine
    tuned: tuple[Table, ...] = ()
    file: str = ""
    network: Network = field(default_factory=typical)

    def shape(self, backend: str, topology: Topology, memory: str) -> Shape:
        """Return the shape of a communicator.

        Parameters
        ----------
        backend : str
            Its name.
        topology : Topology
            Its ranks.
        memory : str
            As `Shape` has it.
        """
        return Shape(
            **self.machine._asdict(),
            backend=backend,
            ranks=topology.size,
            nodes=topology.num_nodes,
            ranks_per_node=max(Counter(topology.node_of).values()),
            memory=memory,
        )

    def misfit(self, shape: Shape) -> str:
        """Say why the tuning file has no table for a shape, and what to do; empty if it has one."""
        if not self.tuned or self._fitting(shape):
            return ""
        differences = min((table.shape.differences(shape) for table in self.tuned), key=len)
        return (
            f"tuning file {self.file} does not fit this job, and is left aside: "
            f"{'; '.join(differences)}. auto goes by {self._built_in(shape)[1]}. To use a table of "
            "this job, run `hpccomm tune` under the same mpiexec and settings, or leave the file out"
        )

    def policy(self, shape: Shape) -> Policy:
        """Return what chooses for the communicators of a shape. The same on all their ranks."""
        network = self.network.placed(shape.ranks, shape.ranks_per_node, typical())
        table = self._fitting(shape)
        if table is not None:
            source = f"tuning file {self.file}, measured on {table.measured}"
            return Policy(shape, table, source, network)
        table, source = self._built_in(shape)
        if self.tuned:
            logger.info(
                "tuning file %s has no table for %s; auto goes by %s", self.file, shape, source
            )
        return Policy(shape, table, source, network)

    @staticmethod
    def _built_in(shape: Shape) -> tuple[Table, str]:
        """Return the nearest table that comes with the package, and its name in words."""
        table = builtin.nearest(shape)
        return table, f"the built-in table for {table.shape}, measured on {table.measured}"

    def _fitting(self, shape: Shape) -> Table | None:
        return next((table for table in reversed(self.tuned) if table.shape == shape), None)
