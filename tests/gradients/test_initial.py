"""The initial values of parameters on the ranks.

PyTorch's DistributedDataParallel broadcasts those of rank 0 (``torch/nn/parallel/distributed.py``,
``_sync_module_states``); here they are compared, unless a program says otherwise.
"""

from typing import Any

import numpy as np
import pytest

from hpccomm import Communicator, RankMismatch, UsageError
from hpccomm.dtypes import BFLOAT16, FLOAT8_E4M3FN
from hpccomm.gradients import GradientSync, ShardedOptimizer, sgd
from hpccomm.testing import run_ranks


def model(**other: Any) -> dict[str, Any]:
    return {"w": np.ones((2, 3)), "b": np.zeros(4), "frozen": np.ones(2, "f"), **other}


CHANGES = [
    # Parameter, place, and the value that rank 1 has there.
    ("w", (1, 2), 1.5),
    ("b", ..., 7),
    ("frozen", ..., 2),
    ("b", 1, -0.0),
    ("w", (0, 0), np.nan),
]


def test_values_that_differ_are_named_on_every_rank_when_it_is_made() -> None:
    def body(comm: Communicator) -> None:
        for name, place, value in CHANGES:
            mine = model()
            if comm.rank == 1:
                mine[name][place] = value
            says = f"parameter {name!r} on rank 1, by up to.*initial='broadcast'"
            with pytest.raises(RankMismatch, match=says) as caught:
                GradientSync(comm, mine, frozen=["frozen"])
            assert caught.value.ranks == (1,)
            assert str(caught.value).count("parameter '") == 1
            # The communicator can still be used.
            GradientSync(comm, model(), frozen=["frozen"]).sync()
            GradientSync(comm, mine, initial="ignore").sync()
        many = {f"p{n}": np.full(3, float(comm.rank)) for n in range(20)}
        with pytest.raises(RankMismatch, match=r"'p4' on rank[^;]*; and 15 more; "):
            GradientSync(comm, many)

    run_ranks(3, body)


def test_broadcast_gives_all_ranks_those_of_rank_0_in_any_layout() -> None:
    def body(comm: Communicator) -> None:
        mine = model(
            fortran=np.ones((3, 4), order="F") * np.arange(4.0),
            strided=np.arange(12.0).reshape(2, 6)[:, ::2],
            bfloat=np.ones(3, BFLOAT16),
            float8=np.ones((2, 2), FLOAT8_E4M3FN).T,
            scalar=np.array(2.0),
        )
        right = {name: array.astype("f8") for name, array in mine.items()}
        for array in mine.values():
            array[...] = array + comm.rank
        sync = GradientSync(comm, mine, initial="broadcast")
        for name, array in mine.items():
            np.testing.assert_array_equal(array.astype("f8"), right[name])
        added = np.full(3, 5.0 + comm.rank)
        sync.add("added", added)
        assert added.tolist() == [5.0] * 3
        for array in mine.values():
            array[...] = array + comm.rank
        sync.broadcast_parameters(root=1)
        for name, array in mine.items():
            np.testing.assert_array_equal(array.astype("f8"), right[name] + 1)
        mine["b"].flags.writeable = comm.rank == 0
        error = UsageError if comm.rank else RankMismatch
        with pytest.raises(error, match="'b' is read-only, and would be written; give a copy"):
            GradientSync(comm, mine, initial="broadcast")
        comm.barrier()

    run_ranks(2, body)


def test_a_parameter_that_is_added_is_compared_and_those_that_are_there_are_not() -> None:
    def body(comm: Communicator) -> None:
        mine = model()
        sync = GradientSync(comm, mine)
        mine["w"] += comm.rank  # trained apart, which check_consistency() is for
        with pytest.raises(RankMismatch, match=r"parameter 'c' on ranks 0 and 1") as caught:
            sync.add("c", np.full(2, float(comm.rank)))
        assert "'w'" not in str(caught.value)
        sync.add("c", np.zeros(2))
        sync.configure(accumulate=2)

    run_ranks(2, body)


def test_an_optimiser_whose_state_is_divided_compares_them_too() -> None:
    """Each rank would update its part of its own parameters, and all get the mixture; so with state made of them."""

    def kept(p: Any, g: Any, state: dict[str, Any], step: int) -> None:
        p[:] = state["begin"] - step

    def body(comm: Communicator) -> None:
        mine = {"w": np.full(32, float(comm.rank)), "b": np.zeros(2)}  # some of w for each rank
        with pytest.raises(RankMismatch, match="parameter 'w' on ranks 0 and 1, by up to 1; "):
            ShardedOptimizer(comm, mine, sgd(1.0))
        ShardedOptimizer(comm, mine, sgd(1.0), initial="ignore")
        assert (mine["w"] == comm.rank).all()
        begin: Any = {"state": lambda p: {"begin": p.copy()}, "initial": "broadcast"}
        optimizer = ShardedOptimizer(comm, mine, kept, **begin)
        assert (mine["w"] == 0).all()
        optimizer.step({"w": np.ones(32)})
        assert (mine["w"] == -1).all()

    run_ranks(2, body)
