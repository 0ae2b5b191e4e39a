"""The output of tune: sizes in order, and whether `auto` by its table is slower than another choice."""

import numpy as np
import pytest

from hpccomm.calls.tuning_table import Pick
from hpccomm.testing import run_ranks
from hpccomm.tools.output import Progress
from hpccomm.tools.perf.options import Sizes
from hpccomm.tools.tune import tune
from hpccomm.tools.tune.measuring import Confirmation, SizeTimes, TunedCall, TuneRequest

CALL = TunedCall("all_reduce")
RING, TREE = Pick("ring"), Pick("tree")


class Bench:
    """Measures a size between two others last, as where the fastest choice changes."""

    def __init__(self, comm):
        self.comm = comm

    def sweep(self, call, sizes, report):
        found = [
            SizeTimes(size, {}, {RING: size * 1e-6}, {RING: np.ones((1, 1))}) for size in sizes
        ]
        for times in sorted(found, key=lambda each: each.nbytes == 32):
            report(times)
        return found


def test_sizes_are_printed_in_order(tmp_path):
    sizes = Sizes(8, 128, 4, 0)
    flags = (False,) * 4
    request = TuneRequest(("all_reduce",), sizes, 1, 1e-5, (), *flags, tmp_path)

    def on_rank(comm):
        said = []
        tune.Sweeps(request, None, said.append, Progress(None)).run(Bench(comm), CALL)
        return "".join(said)

    (said,) = run_ranks(1, on_rank)
    lines = [line for line in said.splitlines() if not line.startswith("#")]
    assert [line.split()[0] for line in lines] == ["8", "32", "128"]


@pytest.mark.parametrize(("chosen", "slower"), [(TREE, False), (RING, True)])
def test_noise_between_calls_that_are_the_same_is_no_slower_choice(chosen, slower):
    found = Confirmation(CALL, 1024, 1.2e-6, {TREE: 1.0e-6, RING: 1.25e-6}, chosen)
    said = tune.confirmed([found])
    assert f"within 10% of the fastest fixed choice at {1 - slower} of 1 sizes" in said
    line = "slower: all_reduce, 1024 bytes: ring 1.20 us, tree 1.00 us, 1.20 times as long"
    assert (line in said) == slower
