"""Finds the table of a communicator: a tuned one of its shape, else the nearest built-in one.

Made by each call of `hpccomm.new_comm`; communicators made from that one share it.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccomm.calls.policy.choosing import Policy
from hpccomm.calls.policy.table import Shape, Table
from hpccomm.topology import Topology

if TYPE_CHECKING:
    from hpccomm.schedules.cost.network import Network

logger = logging.getLogger("hpccomm")

_BUILT_IN = Path(__file__).parent / "measured.json"


@cache
def documents() -> list[dict[str, Any]]:
    """Return the documents of the tables that come with the package."""
    tables: list[dict[str, Any]] = json.loads(_BUILT_IN.read_text(encoding="utf-8"))
    return tables


@cache
def nearest(shape: Shape) -> Table:
    """Return the built-in table whose shape is nearest. The same for equal shapes.

    What matters most comes first: how many nodes there are, what moves the data, how memory is
    shared, the library, then the number of ranks. A processor is not looked at: a table tells where
    one way overtakes another, and that differs less between processors than their speeds.
    """

    def distance(document: Mapping[str, Any]) -> tuple[float, ...]:
        other = Shape(**document["shape"])
        return (
            (shape.nodes == 1) != (other.nodes == 1),
            shape.backend != other.backend,
            shape.memory != other.memory,
            _vendor(shape.library) != _vendor(other.library),
            abs(math.log2(shape.ranks_per_node / other.ranks_per_node)),
            abs(math.log2(shape.nodes / other.nodes)),
        )

    return Table.of(min(documents(), key=distance))


def _vendor(library: str) -> str:
    """Return the name of a library without its version."""
    return " ".join(word for word in library.split() if not any(map(str.isdigit, word)))


class Machine(NamedTuple):
    """The machine of a job: rank 0's, and so equal on all ranks.

    Attributes
    ----------
    library : str
        The MPI library and its version; empty without one.
    processor : str
        Its model.
    cores : int
        Of a node.
    """

    library: str
    processor: str
    cores: int


class Tables(NamedTuple):
    """The tables that the communicators of a job choose from.

    Attributes
    ----------
    machine : Machine
        This machine.
    tuned : tuple of Table
        The tables of the tuning file; the last of a shape counts. Empty without one.
    file : str
        The tuning file's name.
    links : tuple of str
        The name and the TOML text of the network on which algorithms are compared where no table
        fits; empty for a typical one. Few calls need it, so that it is read when one does.
    """

    machine: Machine
    tuned: tuple[Table, ...] = ()
    file: str = ""
    links: tuple[str, ...] = ()

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
        """Return the policy of communicators of a shape. The same on all their ranks."""
        network = cache(partial(self._network, shape))
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

    def _network(self, shape: Shape) -> "Network":
        """Return the links between the ranks of a shape."""
        from hpccomm.schedules.cost.network import parse, typical

        described = typical()
        if self.links:
            name, text = self.links
            described = parse(text, name, name)
        return described.placed(shape.ranks, shape.ranks_per_node, typical())

    @staticmethod
    def _built_in(shape: Shape) -> tuple[Table, str]:
        """Return the nearest table that comes with the package, and its name in words."""
        table = nearest(shape)
        return table, f"the built-in table for {table.shape}, measured on {table.measured}"

    def _fitting(self, shape: Shape) -> Table | None:
        return next((table for table in reversed(self.tuned) if table.shape == shape), None)
