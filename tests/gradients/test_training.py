"""Training on several ranks gives the parameters that one process gives, in every way to give gradients."""

from itertools import product

import pytest
from chosen import pairwise
from trainings import LAYOUTS, MODES, WITHIN, Case, all_bits, alone, bits, difference, steps

from hpccomm.testing import run_ranks

EVERY = [Case(*each) for each in product(MODES, LAYOUTS, (1, 2, 3, 4), WITHIN, (False, True))]
# Every two values meet in a case; every second case is for runs of all cases alone.
CHOSEN = [
    pytest.param(case, id=str(case), marks=[pytest.mark.thorough] if number % 2 else [])
    for number, case in enumerate(pairwise(EVERY, vars))
]


@pytest.mark.parametrize("case", CHOSEN)
def test_ranks_train_as_one_process_does(case: Case) -> None:
    models = run_ranks(case.ranks, lambda comm: steps(comm, case))
    assert difference(models[0], alone(case.dtype)) <= WITHIN[case.dtype]
    assert {bits(each) for each in models} == {bits(models[0])}


@pytest.mark.parametrize("ranks", [3, 4])
def test_deterministic_training_has_the_same_bits_in_every_way(ranks: int) -> None:
    found = run_ranks(ranks, all_bits)
    assert len(set.union(*found)) == 1
