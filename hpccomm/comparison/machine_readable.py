"""A comparison for programs: JSON, and JUnit's XML, which continuous integration shows as tests."""

import json
import math
from typing import Any
from xml.etree import ElementTree as ET

from hpccomm.comparison.text import change
from hpccomm.comparison.verdict import (
    MEANINGS,
    SLOWER,
    UNDECIDED,
    UNTESTED,
    WRONG,
    CaseVerdict,
    Comparison,
)

VERSION = 1
"""Of the JSON document."""


def as_json(found: Comparison) -> str:
    """Return a comparison as JSON; docs/compare.rst describes it."""
    rules = found.rules
    document = {
        "version": VERSION,
        "failed": found.failed,
        "decided": found.decided,
        "minimum": rules.minimum,
        "level": rules.level,
        "unit": found.unit,
        "variants": list(found.names),
        "launches_needed": found.needed,
        "cases": [_case(each) for each in found.cases],
        "only_base": [case._asdict() for case in found.only_base],
        "only_new": [case._asdict() for case in found.only_new],
        "circumstances": list(found.circumstances),
        "machines": list(found.machines),
        "left_out": list(found.left_out),
    }
    return json.dumps(document, indent=1) + "\n"


def _case(each: CaseVerdict) -> dict[str, Any]:
    return {
        **each.case._asdict(),
        "measure": each.values.measure,
        "base_us": each.values.base.tolist(),
        "new_us": each.values.new.tolist(),
        "ratio": each.ratio.value,
        "ratio_low": _number(each.ratio.low),
        "ratio_high": _number(each.ratio.high),
        "p_slower": each.p_slower,
        "p_faster": each.p_faster,
        "wrong": each.values.wrong,
        "verdict": each.verdict,
    }


def _number(value: float) -> float | None:
    """Return a number as JSON has it, which has no NaN."""
    return None if math.isnan(value) else value


def as_junit(found: Comparison, name: str) -> str:
    """Return a comparison as JUnit's XML: a test for each case, which fails if it is slower or wrong.

    Parameters
    ----------
    found : Comparison
        The comparison.
    name : str
        Of the suite of tests.
    """
    suite = ET.Element(
        "testsuite",
        name=_text(name),
        tests=str(len(found.cases)),
        failures=str(sum(each.verdict in (SLOWER, WRONG) for each in found.cases)),
        errors="0",
        skipped=str(sum(each.verdict in (UNDECIDED, UNTESTED) for each in found.cases)),
    )
    for each in found.cases:
        test = ET.SubElement(
            suite,
            "testcase",
            classname=f"hpccomm.{_text(each.case.collective)}",
            name=_text(str(each.case)),
        )
        said = f"{each.verdict}: {change(each.ratio.value)}; {MEANINGS[each.verdict]}"
        if each.verdict in (SLOWER, WRONG):
            ET.SubElement(test, "failure", message=said, type=each.verdict)
        elif each.verdict in (UNDECIDED, UNTESTED):
            ET.SubElement(test, "skipped", message=said)
        else:
            ET.SubElement(test, "system-out").text = said
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _text(text: str) -> str:
    """Return text without the characters that XML cannot hold, not even escaped."""
    return "".join(
        letter
        if letter in "\t\n" or (letter >= " " and not "\ud800" <= letter <= "\udfff")
        else "?"
        for letter in text
    )
