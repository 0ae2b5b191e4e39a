"""Tune on MPI ranks: `auto` follows the file that it writes."""

import io
from pathlib import Path

import numpy as np
import pytest
from one_size import by_default_on

import hpccomm
from hpccomm.calls import policy
from hpccomm.results import reader
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.tools.perf.options import Sizes
from hpccomm.tools.tune.measuring import TuneRequest, policy_of
from hpccomm.tools.tune.tune import tune


@by_default_on(2)
@pytest.mark.mpi(min_size=2)  # one rank has nothing to choose
def test_auto_follows_what_was_tuned(comm: hpccomm.Communicator, tmp_path: Path) -> None:
    file = Path(comm.broadcast_object(str(tmp_path / "t.h5")))
    asked = TuneRequest(
        collectives=("all_reduce", "scatter", "barrier"),
        sizes=Sizes(8, 8192, 32, 0),
        blocks=2,
        seconds=1e-5,
        segments=(),
        deterministic=True,
        registered=True,
        every=False,
        verify=True,
        output=file,
    )
    out = io.StringIO()
    verdicts = tune(comm, asked, out)
    assert {each.call.collective for each in verdicts} == set(asked.collectives)
    assert (out.getvalue() == "") == (comm.rank > 0)
    (table,) = policy.read(str(file))
    assert table.shape == policy_of(comm).shape
    assert len(table.rows) == 2 * len(asked.collectives) + 1 + 2  # the barrier has no arrays
    if comm.rank == 0:
        (run,) = reader.read(file)
        assert run.status == "completed"
        assert {row.collective for row in run.rows} == set(asked.collectives)
        assert all(run.samples(index).shape == (2, comm.size) for index in range(len(run.rows)))
    options = hpccomm.CommOptions(tuning_file=str(file))
    with hpccomm.new_comm(mpi_comm=comm.mpi_comm, options=options) as tuned:
        # Larger than what is gathered in one call of the library, whatever the table prefers to its own reduction.
        for count in (5000, 20_000):
            x = np.ones(count, np.float32)
            row = table.find("all_reduce", "native", x.nbytes)
            choice = tuned.explain("all_reduce", x)
            assert (choice.algorithm, str(file) in choice.reason) == (row.pick.algorithm, True)
            tuned.all_reduce(x)
            assert (x == comm.size).all()
            # A plan knows whether its arrays are registered.
            plan = tuned.plan("all_reduce", tuned.empty(count, np.float32))
            registered = table.find("all_reduce", "registered", x.nbytes)
            # Only what reads other ranks' memory is different there; else they take what plain ones take.
            known = ALGORITHMS["all_reduce"].get(registered.pick.algorithm)
            if known is not None and (known.shared or known.direct):
                row = registered
            assert plan.choice.algorithm == row.pick.algorithm
