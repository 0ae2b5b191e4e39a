"""Two variants measured in one launch, in turns, and compared at once (``--interleave``).

A machine's other work changes within seconds, and two launches differ by more than many an effect.
So each size is measured by both variants, one right after the other, in a random order; then the
next size; and all of it again in several passes. A pass is the unit of the comparison.

`hpccomm.bench.perf.sweep` measures by it where there are two variants.
"""

from collections.abc import Sequence

from hpccomm.bench.perf.lines import MeasuredRow
from hpccomm.bench.perf.report import Report
from hpccomm.bench.perf.tables import TableNames
from hpccomm.comparison import text
from hpccomm.comparison.launches import LaunchRow
from hpccomm.comparison.matching import matched_passes
from hpccomm.comparison.verdict import compare_passes
from hpccomm.results import table


class InterleavedReport(Report):
    """Writes a run of two variants down: it stores their rows, and prints how they compare."""

    _measured: dict[str, list[LaunchRow]]

    @property
    def _names(self) -> tuple[str, str]:
        return self.info.series["base"], self.info.series["new"]

    def begin(self, tables: Sequence[TableNames]) -> None:
        """Print what stands before the passes of a collective."""
        self._measured = {name: [] for name in self._names}
        collectives, *others = zip(*tables, strict=True)
        backends, algorithms = (" and ".join(dict.fromkeys(names)) for names in others)
        header = table.run_header(self.info, collectives[0], backends, algorithms)
        self.show(f"{header}#\n# Interleaved, in random order: {' and '.join(self._names)}\n")

    def add(self, halves: Sequence[MeasuredRow], wrong: Sequence[str]) -> None:
        """Add the rows of a variant."""
        self.keep(halves)
        self.complain(wrong)
        for half in halves:
            self._measured[half.timing.variant].append(LaunchRow(half.row, half.timing))

    def finish(self) -> None:
        """Print the comparison of a collective."""
        comparison = compare_passes(matched_passes(*self._measured.values()), self._names)
        self.show(f"#\n{text.text(comparison)}\n")
