"""Which algorithm a call takes, and which it may."""

import numpy as np
import pytest

from hpccomm import policy
from hpccomm.algorithms import ALGORITHMS
from hpccomm.contracts.signature import COLLECTIVES, REDUCTIONS, Signature
from hpccomm.errors import UsageError
from hpccomm.reductions import ReduceOp

RANKS = 4
SIZES = (0, 512, 513, 4 * 4096, 4 * 4096 + 1, 1 << 28)


def ask(collective: str, count: int = 1, *, uniform: bool = True) -> Signature:
    op = ReduceOp.SUM if collective in REDUCTIONS else None
    return Signature(collective, np.dtype(np.float32), (count,), uniform=uniform, op=op)


def decide(call: Signature, name: str = "auto", **given: bool) -> policy.Decision:
    facts = {"native": False, "shared": False, "deterministic": False, **given}
    return policy.decide(call, name, RANKS, backend="mpi", **facts)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_auto_takes_what_applies(
    collective: str, count: int, uniform: bool, deterministic: bool
) -> None:
    call = ask(collective, count, uniform=uniform)
    ordered = deterministic and collective in REDUCTIONS
    names = policy.applicable(call, native=False, shared=False, deterministic=ordered)
    decision = decide(call, deterministic=ordered)
    assert decision.algorithm in names
    named = policy.BY_BYTES[collective]
    if collective == "all_to_all" and not uniform:
        wanted = named.large
    elif count <= 512:
        wanted = named.small
    else:
        wanted = named.middle if count <= RANKS * 4096 else named.large
    assert decision.algorithm == wanted


def test_ranks_with_their_own_counts_choose_alike() -> None:
    counts = ((0, 1 << 20), (1, 0), (0, 0))
    calls = [
        Signature("all_to_all", np.dtype(np.uint8), mine, theirs, uniform=False)
        for mine in counts
        for theirs in counts
    ]
    assert len({decide(call).algorithm for call in calls}) == 1


def test_the_backends_own_way_comes_first_and_folds_in_no_order() -> None:
    call = ask("all_reduce")
    assert decide(call, native=True).algorithm == "native"
    assert decide(call, native=True, deterministic=True).algorithm != "native"
    with pytest.raises(UsageError, match="give one of 'auto', 'ring'"):
        decide(call, "native", native=True, deterministic=True)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_does_not_apply_is_refused_with_what_does(collective: str) -> None:
    every = {name for named in ALGORITHMS.values() for name in named}
    own = ALGORITHMS[collective]
    fits = [name for name, each in own.items() if not each.shared]
    for name in [*sorted(every - set(fits)), "magic", ""]:
        with pytest.raises(UsageError) as caught:
            decide(ask(collective), name)
        listed = ", ".join(repr(each) for each in ("auto", *fits))
        assert str(caught.value).endswith(f"give one of {listed}")


def test_memory_that_ranks_share_and_blocks_of_one_size_are_conditions() -> None:
    call = ask("all_to_all", uniform=False)
    assert decide(ask("all_to_all"), "bruck").algorithm == "bruck"
    with pytest.raises(UsageError, match="this all_to_all_v over mpi"):
        decide(call, "bruck")
    assert decide(ask("all_to_all"), "shm", shared=True).algorithm == "shm"
    with pytest.raises(UsageError):
        decide(ask("all_to_all"), "shm")
