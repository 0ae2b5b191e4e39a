"""Seeded faults on real jobs: 40 of them, or those that CHAOS_SEEDS names, as ``CHAOS_SEEDS=1-300``."""

import json
import os

import pytest

from chaos.cases import deal
from chaos.judging import judge
from chaos.running import run

FIRST, _, LAST = os.environ.get("CHAOS_SEEDS", "0-39").partition("-")
CASES = [deal(seed) for seed in range(int(FIRST), int(LAST or FIRST) + 1)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.kind}-{case.operation}-{case.seed}" for case in CASES]
)
def test_a_fault(launcher, open_mpi, case):
    seen = run(case, launcher, open_mpi)
    if isinstance(seen, str):
        pytest.skip(seen)
    print(case, seen.stdout, seen.stderr, json.dumps(seen.events, indent=1), sep="\n")
    shortfalls = judge(case, seen)
    again = f"again: CHAOS_SEEDS={case.seed} python -m pytest tests/chaos --all"
    assert not shortfalls, "\n".join([*(f"{name}: {what}" for name, what in shortfalls), again])
