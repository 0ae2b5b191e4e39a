"""A comparison as a table of text, the worst cases first.

`hpccomm compare` and ``perf --interleave`` print it.
"""

import math

import numpy as np

from hpccomm.comparison.matching import BUSBW, METRICS, TIME
from hpccomm.comparison.verdict import MEANINGS, UNDECIDED, UNTESTED, CaseVerdict, Comparison
from hpccomm.results.table import figure


def text(comparison: Comparison) -> str:
    """Return the table, what was compared, and the verdict as a whole, with line ends."""
    lines = [f"# Differs between the sides: {each}" for each in comparison.circumstances]
    lines += [f"# The machines differ: {each}" for each in comparison.machines]
    lines += [f"# Left out: {each}" for each in comparison.left_out]
    lines += comparison.others.splitlines()
    if any(comparison.names):
        names = [name or "all" for name in comparison.names]
        lines += [f"# Base: {names[0]}", f"# New:  {names[1]}"]
    metric = comparison.rules.metric
    if comparison.rules.across:
        same = f"{', '.join(comparison.rules.across)}: the same on both sides"
        lines.append(
            f"# Across {', '.join(comparison.across) or same}; compared: {METRICS[metric]}"
        )
    sides = (f"{side} {'GB/s' if metric == BUSBW else 'us'}" for side in ("base", "new"))
    heading = ("case", *sides, "change", "95 % interval", "p", comparison.unit, "verdict")
    table = [heading, *(_cells(each, metric) for each in comparison.cases)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if column in (0, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    for side, cases in (("base", comparison.only_base), ("new", comparison.only_new)):
        lines += [f"# Only on the {side} side: {case}" for case in cases]
    return "".join(f"{line}\n" for line in [*lines, *_closing(comparison)])


def change(ratio: float, metric: str = TIME) -> str:
    """Return a ratio of times in words: ``5.1 % slower``; of the bus bandwidth that it means, ``4.9 % less``."""
    if math.isnan(ratio):
        return ""
    if metric == BUSBW:
        return f"{abs(1 / ratio - 1) * 100:.1f} % {'less' if ratio >= 1 else 'more'}"
    return f"{abs(ratio - 1) * 100:.1f} % {'slower' if ratio >= 1 else 'faster'}"


def _cells(each: CaseVerdict, metric: str) -> tuple[str, ...]:
    values, ratio = each.values, each.ratio
    medians = [figure(float(np.median(side)), 9).strip() for side in each.shown(metric)]
    low, high = (1 / ratio.high, 1 / ratio.low) if metric == BUSBW else ratio[1:]
    interval = "" if math.isnan(low) else f"{low - 1:+.1%} to {high - 1:+.1%}"
    p = min(each.p_slower, each.p_faster)
    return (
        f"{each.case} ({values.measure})",
        *medians,
        change(ratio.value, metric),
        interval,
        "" if each.verdict == UNTESTED else f"{p:.2g}",
        f"{len(values.base)} and {len(values.new)}",
        each.verdict,
    )


def _closing(comparison: Comparison) -> list[str]:
    rules, counts = comparison.rules, comparison.counts
    lines = [
        "#",
        f"# {', '.join(f'{number} {each}' for each, number in counts.items()) or 'no case'}; a change below "
        f"{rules.minimum:.1%} does not count; equal sides are found to differ once in {1 / rules.level:.0f} comparisons",
    ]
    lines += [f"# {each}: {MEANINGS[each].replace('launches', comparison.unit)}" for each in counts]
    if not comparison.counts.keys().isdisjoint((UNDECIDED, UNTESTED)):
        lines.append(
            f"# This many cases need {comparison.needed} {comparison.unit} a side at least: hpccomm perf ... "
            + ("--passes" if comparison.unit == "passes" else "--launches")
        )
    return lines
