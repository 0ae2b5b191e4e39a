"""The part of the cores that processes of others took while a run was measured, as it is stored with the run.

`hpccomm.tools.doctor.sources.others` counts it. A verdict that drains, fails or compares is undecided where
nodes were busy: times say nothing there about the nodes, the network or the libraries.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hpccomm.settings import BUSY

ENTRY = "others"
"""The entry of a run's facts that holds it."""


class Others(NamedTuple):
    """What other processes took, as far as it is known: nothing is of runs of older versions.

    Attributes
    ----------
    hosts : sequence of str
        Of each rank.
    before, during : sequence of float
        For each rank, the part of the cores that it may use: while the ranks rested before the run, and from then until its
        end; -1 if unknown.
    limit : float
        The part, during a run, above which a node is busy.
    """

    hosts: Sequence[str] = ()
    before: Sequence[float] = ()
    during: Sequence[float] = ()
    limit: float = BUSY

    @property
    def busy(self) -> list[int]:
        """The ranks that others kept busy."""
        return [rank for rank, part in enumerate(self.during) if part > self.limit]

    @property
    def failed(self) -> str:
        """The word for what takes too long."""
        return "undecided: busy" if self.busy else "FAILED"

    @property
    def line(self) -> str:
        """A line of comment about the rank that has most of them; empty if nothing is known."""
        if (most := max(self.during, default=-1.0)) < 0:
            return ""
        rank, verdict = self.during.index(most), f"; busy, above {self.limit:.0%}" * bool(self.busy)
        took = f"{most:.0%} of the cores of {self.hosts[rank]}, {self.before[rank]:.0%} before"
        return f"# {'Other processes':20s} : {took}{verdict}\n"

    def store(self, writer: Any) -> None:
        """Add it to the entries of a run that is being written; `writer` is a `hpccomm.results.writer.Writer` or None."""
        if writer is not None:
            writer.add_entry(ENTRY, self._asdict())


UNKNOWN = Others()
