"""From the measurements of all ranks to a line of the table. For rank 0.

`sweep` makes lines of what was measured; `report` and `hpccomm simulate` print them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccomm.results import repetitions
from hpccomm.results.schema import UNCHECKED, Config, Row, Timing
from hpccomm.tools.perf.isolated import RankTimes
from hpccomm.tools.perf.tables import PerfCase, TableNames
from hpccomm.units import grouped, ranges

RANK_0, AVERAGE, MINIMUM, MAXIMUM = range(4)
"""Values of ``-a``."""


def over_ranks(means: NDArray[np.float64], how: int) -> float:
    """Make one time of the ranks' times, as ``-a`` says, whose values number these ways."""
    return float((means[0], means.mean(), means.min(), means.max())[how])


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row with its timing, and what both are computed from.

    Attributes
    ----------
    row : Row
        The measurement.
    timing : Timing
        How it was timed.
    samples : ndarray of float64, shape ``(repetitions, ranks)``
        Seconds of each repetition back to back; no repetitions where they were not taken.
    isolated : ndarray of float64, shape ``(repetitions, ranks, 2)``
        Start and end of each isolated repetition, in seconds on one clock; no repetitions likewise.
    """

    row: Row
    timing: Timing
    samples: NDArray[np.float64]
    isolated: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of the table, out of place and in place.

    Attributes
    ----------
    table : tuple of str
        Collective, backend and algorithm.
    case : PerfCase
        The case.
    config : Config
        The flags.
    ranks : int
        Number of ranks; in a split run, of rank 0's group, whose bandwidths nccl-tests prints.
    sync : str
        How isolated repetitions are started together.
    variant : str
        Name of the interleaved variant; empty without ``--interleave``.
    """

    table: TableNames
    case: PerfCase
    config: Config
    ranks: int
    sync: str = ""
    variant: str = ""

    def row(self, times: Sequence[RankTimes], *, in_place: bool) -> MeasuredRow:
        """Return the row of one half, from the times of all ranks."""
        config, case = self.config, self.case
        seconds, issued = (
            over_ranks(np.array(each), config.average)
            for each in zip(*((rank.seconds, rank.issued) for rank in times), strict=True)
        )
        wrong = UNCHECKED
        if config.validation > 0 and case.collective.what.moves:
            wrong = sum(each.wrong for rank in times for each in rank.wrong)
        row = case.row(
            self.table,
            self.ranks,
            seconds,
            in_place=in_place,
            # As in nccl-tests, the time of the calls is printed in place of the work's, while
            # bandwidths still follow from the work's.
            printed=issued if config.report_cputime else seconds,
            wrong=wrong,
            iterations=config.iterations * max(1, config.graph),
        )
        samples = np.stack([each.samples for each in times], axis=1)
        isolated = [each.isolated for each in times if each.isolated is not None]
        none = np.empty((0, len(times), 2))
        stamps = np.stack([each.stamps for each in isolated], axis=1) if isolated else none
        timing = repetitions.timing(
            samples,
            config.per_iter_skip,
            stamps,
            sync=self.sync if isolated else "",
            late=isolated[0].late if isolated else 0,
            # Two ranks can be wrong in opposite ways.
            clock_error=sum(sorted(each.clock_error for each in isolated)[-2:] or [math.nan]),
            variant=self.variant,
        )
        return MeasuredRow(row, timing, samples, stamps)

    def wrong(self, times: Sequence[RankTimes], *, in_place: bool) -> Iterator[str]:
        """Yield a sentence on each operation that went wrong: rank, index, expected and got.

        It names the lowest rank, and counts the others.
        """
        case, layout = self.case, self.case.arrange(0, self.ranks)
        root = f" root {layout.root}" if layout.root >= 0 else ""
        place = "in place" if in_place else "out of place"
        where = f"{case.collective.name} {case.type_name} {case.op_name}{root}, {layout.nbytes} B, {place}"
        operations = grouped(
            (mismatch.repetition, (rank, mismatch))
            for rank, each in enumerate(times)
            for mismatch in each.wrong
        )
        for repetition, mismatches in operations.items():
            rank, first = mismatches[0]
            timed = f"timed operation {repetition}"
            when = "an operation after the timed ones" if repetition is None else timed
            elements = sum(mismatch.wrong for _, mismatch in mismatches)
            yield (
                f"{where}, {when}: rank {rank}, index {first.index}: expected {first.expected}, "
                f"got {first.got}; {elements} elements are wrong on ranks "
                f"{ranges(rank for rank, _ in mismatches)}"
            )
