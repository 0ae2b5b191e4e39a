"""40 seeded faults on real jobs; ``python -m tests.chaos`` runs any number."""

import pytest

from chaos.cases import deal
from chaos.judging import judge
from chaos.report import Ran, shortfall
from chaos.running import Unavailable, find_mpi, run


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_a_fault(seed: int):
    case = deal(seed)
    try:
        seen = run(case, find_mpi())
    except Unavailable as why:
        pytest.skip(str(why))
    verdict = judge(case, seen)
    assert not verdict.shortfalls, shortfall(Ran(case, seen, verdict), "python -m tests.chaos")
