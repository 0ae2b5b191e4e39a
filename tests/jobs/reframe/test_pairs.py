"""The ReFrame test of `hpccomm perf pairs`, run by ReFrame."""

import json
from pathlib import Path

import pytest

from .conftest import Reframe


@pytest.mark.slow("ReFrame starts two jobs")
def test_a_slow_pair_fails_and_is_named(reframe: Reframe) -> None:
    session = reframe(
        *("-n", "HpccommPairs", "-r", "-S", "flags=-n,3"),
        *("-P", "expect=bandwidth=1K,bandwidth=1000000G"),
    )
    assert "Ran 2/2 test case(s) from 2 check(s) (1 failure(s)" in session.summary
    passed, failed = sorted(session.cases, key=lambda case: case["result"], reverse=True)
    assert failed["fail_phase"] == "sanity"
    assert "# SLOW pair 0 and 1 (" in failed["fail_reason"]
    verdict = json.loads((Path(passed["outputdir"]) / "verdict.json").read_text())
    (link,) = verdict["links"]
    values = {name.split(":")[-1]: each[0] for name, each in passed["perfvalues"].items()}
    assert values == {
        "latency": link["latency_us"],
        "bandwidth": min(link["there_GBps"], link["back_GBps"]),
    }
