"""A comparison for programs: JSON, and JUnit's XML, which continuous integration shows.

`hpccomm.cli.compare` writes it.
"""

import json
import math
from typing import Any
from xml.etree import ElementTree as ET

from hpccomm.comparison.matching import BUSBW, METRICS
from hpccomm.comparison.text import change
from hpccomm.comparison.verdict import FAILURES, MEANINGS, OPEN, CaseVerdict, Comparison
from hpccomm.drawing.xml import xml_text

VERSION = 1
"""Of the JSON document."""

_SAME = ("failed", "decided", "across", "unit", "circumstances", "machines", "left_out", "others")
"""The fields with the same name in the document and in `Comparison`."""


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; docs/compare.rst describes it."""
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
