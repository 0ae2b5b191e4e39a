"""Which table a communicator goes by: a tuned one of its shape, else the nearest built-in one."""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from hpccomm.dispatch.policy import builtin
from hpccomm.dispatch.policy.choosing import Policy
from hpccomm.dispatch.policy.table import Shape, Table
from hpccomm.errors import ConfigurationError
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
    """

    machine: Machine
    tuned: tuple[Table, ...] = ()
    file: str = ""

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
            backend=backend,
            library=self.machine.library,
            ranks=topology.size,
            nodes=topology.num_nodes,
            ranks_per_node=max(Counter(topology.node_of).values()),
            memory=memory,
            processor=self.machine.processor,
            cores=self.machine.cores,
        )

    def check(self, shape: Shape) -> None:
        """Raise unless the tuning file, if there is one, has a table for a shape.

        Raises
        ------
        ConfigurationError
            If it has none; the message says what differs from the nearest of its tables.
        """
        if not self.tuned or self._fitting(shape):
            return
        differences = min((table.shape.differences(shape) for table in self.tuned), key=len)
        raise ConfigurationError(
            f"tuning file {self.file} was measured on another machine shape: "
            f"{'; '.join(differences)}. Measure this one with `hpccomm tune`, under the same mpiexec "
            "and settings as the program, or leave the file out"
        )

    def policy(self, shape: Shape) -> Policy:
        """Return what chooses for the communicators of a shape. The same on all their ranks."""
        table = self._fitting(shape)
        if table is not None:
            return Policy(shape, table, f"tuning file {self.file}, measured on {table.measured}")
        table = builtin.nearest(shape)
        source = f"the built-in table for {table.shape}, measured on {table.measured}"
        if self.tuned:
            logger.info(
                "tuning file %s has no table for a group of %s; it goes by %s",
                self.file,
                shape,
                source,
            )
        return Policy(shape, table, source)

    def _fitting(self, shape: Shape) -> Table | None:
        return next((table for table in reversed(self.tuned) if table.shape == shape), None)
