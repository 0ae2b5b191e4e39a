"""From what every rank measured to a line of the table. For rank 0."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.perf.measure import Case, Finding, Measured
from hpccomm.results.schema import UNCHECKED, Config, Row

RANK_0, AVERAGE, MINIMUM, MAXIMUM = range(4)
"""Values of ``-a``."""


def over_ranks(means: NDArray[np.float64], how: int) -> float:
    """Make one time of the ranks' times, as ``-a`` says."""
    return float(
        {
            RANK_0: means[0],
            AVERAGE: means.mean(),
            MINIMUM: means.min(),
            MAXIMUM: means.max(),
        }[how]
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table, out of place and in place."""

    collective: str
    backend: str
    algorithm: str
    type_name: str
    op_name: str
    config: Config
    case: Case
    ranks: int

    def row(
        self, measured: Sequence[Measured], *, in_place: bool
    ) -> tuple[Row, NDArray[np.float64]]:
        """Return the row of one half, and its samples (seconds, repetition by rank)."""
        samples = np.stack([each.seconds for each in measured], axis=1)
        seconds = over_ranks(samples.mean(axis=0), self.config.average)
        layout = self.case.arrange(0, self.ranks)
        algbw = layout.nbytes / 1e9 / seconds if seconds > 0 else math.inf
        checked = self.config.validation > 0 and self.case.collective.moves
        found = sum(finding.mismatch.wrong for each in measured for finding in each.findings)
        row = Row(
            collective=self.collective,
            backend=self.backend,
            algorithm=self.algorithm,
            dtype=self.type_name,
            op=self.op_name,
            root=layout.root,
            bytes=layout.nbytes,
            count=layout.count,
            in_place=in_place,
            time=seconds * 1e6,
            algbw=algbw,
            busbw=algbw * self.case.collective.factor(self.ranks),
            wrong=found if checked else UNCHECKED,
            iterations=self.config.iterations,
            finished=time.time(),
        )
        return row, samples

    def wrong(self, measured: Sequence[Measured], *, in_place: bool) -> list[str]:
        """Return a sentence on each wrong result: which case, rank, index, expected and got."""
        layout = self.case.arrange(0, self.ranks)
        root = f" root {layout.root}" if layout.root >= 0 else ""
        where = (
            f"{self.collective} {self.type_name} {self.op_name}{root}, {layout.nbytes} B, "
            f"{'in place' if in_place else 'out of place'}"
        )
        return [
            f"{where}, {_when(finding)}: rank {rank}, index {finding.mismatch.index}: "
            f"expected {finding.mismatch.expected}, got {finding.mismatch.got}; "
            f"{finding.mismatch.wrong} elements of this rank are wrong"
            for rank, each in enumerate(measured)
            for finding in each.findings
        ]


def _when(finding: Finding) -> str:
    if finding.repetition is None:
        return "operation after the timed ones"
    return f"timed operation {finding.repetition}"
