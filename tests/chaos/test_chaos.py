"""Seeded faults on real jobs: 40 of them and every loss that ranks go on after, or those that CHAOS_SEEDS names.

``CHAOS_SEEDS=1-300`` names 300. hpccomm's promises, `expected`, are the truth, and NumPy's results.
"""

import json
import os

import pytest

from chaos.cases import deal
from chaos.judging import judge
from chaos.running import run

LOSSES = (60, 126, 317, 794, 876, 1065, 1096, 1223, 1254)
"""Of each operation one case of three or four ranks that lose one in its midst, and go on without it. Of splits none:
Open MPI 5.0.11 may crash where it hears of a loss for a communicator that it is making."""
FIRST, _, LAST = os.environ.get("CHAOS_SEEDS", "0-39").partition("-")
SEEDS = [*range(int(FIRST), int(LAST or FIRST) + 1)]
CASES = [deal(seed) for seed in (SEEDS if "CHAOS_SEEDS" in os.environ else [*SEEDS, *LOSSES])]


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
