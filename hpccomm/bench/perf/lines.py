"""From what every rank measured to a line of the table. For rank 0."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpccomm.bench.perf.facts import ranges
from hpccomm.bench.perf.measure import Measured, PerfCase
from hpccomm.results.schema import UNCHECKED, Config, Row

if TYPE_CHECKING:
    from hpccomm.bench.perf.verification import Mismatch

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
    case: PerfCase
    ranks: int

    def row(
        self, measured: Sequence[Measured], *, in_place: bool
    ) -> tuple[Row, NDArray[np.float64]]:
        """Return the row of one half, and its samples (seconds, repetition by rank)."""
        samples = np.stack([each.samples for each in measured], axis=1)
        how = self.config.average
        seconds = over_ranks(np.array([each.seconds for each in measured]), how)
        # As in nccl-tests, the time of the calls is printed in place of that of the work, while
        # bandwidths remain those of the work.
        shown = seconds
        if self.config.report_cputime:
            shown = over_ranks(np.array([each.issued for each in measured]), how)
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
            time=shown * 1e6,
            algbw=algbw,
            busbw=algbw * self.case.collective.factor(self.ranks),
            wrong=found if checked else UNCHECKED,
            iterations=self.config.iterations * max(1, self.config.graph),
            finished=time.time(),
        )
        return row, samples

    def wrong(self, measured: Sequence[Measured], *, in_place: bool) -> list[str]:
        """Return a sentence on each operation that went wrong: rank, index, expected and got.

        It tells of the lowest rank, and counts the others.
        """
        layout = self.case.arrange(0, self.ranks)
        root = f" root {layout.root}" if layout.root >= 0 else ""
        where = (
            f"{self.collective} {self.type_name} {self.op_name}{root}, {layout.nbytes} B, "
            f"{'in place' if in_place else 'out of place'}"
        )
        operations: dict[int | None, list[tuple[int, Mismatch]]] = {}
        for rank, each in enumerate(measured):
            for finding in each.findings:
                operations.setdefault(finding.repetition, []).append((rank, finding.mismatch))
        sentences = []
        for repetition, found in operations.items():
            rank, first = found[0]
            when = (
                "an operation after the timed ones"
                if repetition is None
                else f"timed operation {repetition}"
            )
            elements = sum(mismatch.wrong for _, mismatch in found)
            ranks = ranges(rank for rank, _ in found)
            sentences.append(
                f"{where}, {when}: rank {rank}, index {first.index}: expected {first.expected}, "
                f"got {first.got}; {elements} elements are wrong on ranks {ranks}"
            )
        return sentences
