"""The output of tune: sizes in order, and whether `auto` by its table is slower than another choice."""

import io
import re

import pytest

from hpccomm.calls.tuning_table import Pick
from hpccomm.testing import run_ranks
from hpccomm.tools.perf.options import Sizes
from hpccomm.tools.tune import tune
from hpccomm.tools.tune.measuring import Confirmation, TunedCall, TuneRequest, arrays

CALL = TunedCall("all_reduce")
RING, TREE = Pick("ring"), Pick("tree")


def test_sizes_are_printed_in_order(tmp_path):
    sizes = Sizes(8, 128, 4, 0)
    flags = (False,) * 4
    request = TuneRequest(("all_reduce",), sizes, 1, 1e-5, (), *flags, tmp_path / "t.h5")
    out = io.StringIO()
    run_ranks(2, lambda comm: tune.tune(comm, request, out))
    printed = [int(size) for size in re.findall(r"^ +(\d+)  ", out.getvalue(), re.MULTILINE)]
    assert printed == sorted(printed)
    assert {8, 32, 128} <= set(printed)


@pytest.mark.parametrize(("chosen", "slower"), [(TREE, False), (RING, True)])
def test_noise_between_calls_that_are_the_same_is_no_slower_choice(chosen, slower):
    found = Confirmation(CALL, 1024, 1.2e-6, {TREE: 1.0e-6, RING: 1.25e-6}, chosen)
    said = tune.confirmed([found])
    assert f"within 10% of the fastest fixed choice at {1 - slower} of 1 sizes" in said
    line = "slower: all_reduce, 1024 bytes: ring 1.20 us, tree 1.00 us, 1.20 times as long"
    assert (line in said) == slower


def test_a_scan_is_measured_in_place():
    arguments = TunedCall("scan").arguments
    (((x,), keywords),) = run_ranks(1, lambda comm: arguments(comm, 64, arrays(64), "auto"))
    assert keywords["out"] is x
