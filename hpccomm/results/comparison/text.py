"""A comparison as a table of text, the worst cases first; and as JSON and JUnit's XML for other programs.

`hpccomm compare` and ``perf --interleave`` print the table.
"""

import json
import math
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from hpccomm.results.comparison.matching import BUSBW, METRICS, TIME
from hpccomm.results.comparison.verdict import (
    FAILURES,
    MEANINGS,
    OPEN,
    UNDECIDED,
    UNTESTED,
    CaseVerdict,
    Comparison,
)
from hpccomm.units import figure, xml_text


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


VERSION = 1
"""Of the JSON document."""

_SAME = ("failed", "decided", "across", "unit", "circumstances", "machines", "left_out", "others")
"""The fields with the same name in the document and in `Comparison`."""


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; docs/how_to/compare.rst describes it."""
    rules = comparison.rules
    document = {
        "version": VERSION,
        **{name: getattr(rules, name) for name in ("minimum", "level", "metric")},
        **{name: getattr(comparison, name) for name in _SAME},
        "variants": comparison.names,
        "launches_needed": comparison.needed,
        "cases": [_case(each, rules.metric) for each in comparison.cases],
        "only_base": [case._asdict() for case in comparison.only_base],
        "only_new": [case._asdict() for case in comparison.only_new],
    }
    return json.dumps(document, indent=1) + "\n"


def _case(each: CaseVerdict, metric: str) -> dict[str, Any]:
    base, new = (side.tolist() for side in each.shown(metric))
    unit = "busbw" if metric == BUSBW else "us"
    return {
        **each.case._asdict(),
        "measure": each.values.measure,
        "across": dict(each.values.across),
        f"base_{unit}": base,
        f"new_{unit}": new,
        "ratio": each.ratio.value,
        "ratio_low": _number(each.ratio.low),
        "ratio_high": _number(each.ratio.high),
        "p_slower": each.p_slower,
        "p_faster": each.p_faster,
        "wrong": each.values.wrong,
        "verdict": each.verdict,
    }


def _number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if math.isnan(value) else value


def as_junit(comparison: Comparison, name: str) -> str:
    """Return a comparison as JUnit's XML: a test for each case, which fails if it is slower or wrong.

    Parameters
    ----------
    comparison : Comparison
        The comparison.
    name : str
        Of the suite of tests.
    """
    metric = comparison.rules.metric
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(comparison.cases)),
        failures=str(sum(each.verdict in FAILURES for each in comparison.cases)),
        errors="0",
        skipped=str(sum(each.verdict in OPEN for each in comparison.cases)),
    )
    properties = ET.SubElement(suite, "properties")
    for key, value in (("across", ", ".join(comparison.across)), ("metric", METRICS[metric])):
        ET.SubElement(properties, "property", name=key, value=value)
    for each in comparison.cases:
        names = {"classname": f"hpccomm.{each.case.collective}", "name": str(each.case)}
        test = ET.SubElement(suite, "testcase", names)
        said = f"{each.verdict}: {change(each.ratio.value, metric)}; {MEANINGS[each.verdict]}"
        if each.verdict in FAILURES:
            ET.SubElement(test, "failure", message=said, type=each.verdict)
        elif each.verdict in OPEN:
            ET.SubElement(test, "skipped", message=said)
        else:
            ET.SubElement(test, "system-out").text = said
    ET.indent(suite)
    return xml_text(ET.tostring(suite, encoding="unicode", xml_declaration=True)) + "\n"
