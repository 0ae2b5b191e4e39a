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


CHANGES = {
    "an element": lambda m: m["w"].__setitem__((1, 2), 1.5),
    "another parameter": lambda m: m["b"].fill(7),
    "a frozen one": lambda m: m["frozen"].fill(2),
    "the sign of a zero": lambda m: m["b"].__setitem__(1, -0.0),
    "NaN": lambda m: m["w"].__setitem__((0, 0), np.nan),
}
NAMES = dict(zip(CHANGES, ("w", "b", "frozen", "b", "w"), strict=True))


@pytest.mark.parametrize("change", CHANGES)
def test_values_that_differ_are_named_on_every_rank_when_it_is_made(change: str) -> None:
    def body(comm: Communicator) -> str:
        mine = model()
        if comm.rank == 1:
            CHANGES[change](mine)
        with pytest.raises(RankMismatch) as caught:
            GradientSync(comm, mine, frozen=["frozen"])
        assert caught.value.ranks == (1,)
        GradientSync(comm, model(), frozen=["frozen"]).sync()  # the communicator can still be used
        GradientSync(comm, mine, initial="ignore").sync()
        return str(caught.value)

    for said in run_ranks(3, body):
        assert f"parameter {NAMES[change]!r} on rank 1, by up to" in said
        assert said.count("parameter '") == 1
        assert "initial='broadcast'" in said


def test_many_that_differ_are_counted() -> None:
    def body(comm: Communicator) -> None:
        many = {f"p{n}": np.full(3, float(comm.rank)) for n in range(20)}
        with pytest.raises(RankMismatch, match=r"'p4' on rank[^;]*; and 15 more; "):
            GradientSync(comm, many)

    run_ranks(2, body)


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


def test_what_does_not_fit_is_an_error_on_every_rank() -> None:
    def body(comm: Communicator) -> None:
        with pytest.raises(UsageError, match=r"initial is 'brodcast'.*did you mean broadcast"):
            GradientSync(comm, model(), initial="brodcast")  # type: ignore[arg-type]
        with pytest.raises(
            RankMismatch, match="initial is 'check' on rank 0 and 'ignore' on rank 1"
        ):
            GradientSync(comm, model(), initial="ignore" if comm.rank else "check")
        mine = model()
        mine["b"].flags.writeable = comm.rank == 0
        error = UsageError if comm.rank else RankMismatch
        with pytest.raises(error, match="'b' is read-only, and would be written; give a copy"):
            GradientSync(comm, mine, initial="broadcast")
        comm.barrier()

    run_ranks(2, body)


def test_an_optimiser_whose_state_is_divided_compares_them_too() -> None:
    """Each rank would update its part of its own parameters, and all get the mixture."""

    def body(comm: Communicator) -> None:
        mine = {"w": np.full(5, float(comm.rank)), "b": np.zeros(2)}
        with pytest.raises(RankMismatch, match="parameter 'w' on ranks 0 and 1, by up to 1; "):
            ShardedOptimizer(comm, mine, sgd(1.0))
        with pytest.raises(UsageError, match=r"initial is None.*check, broadcast, ignore"):
            ShardedOptimizer(comm, mine, sgd(1.0), initial=None)  # type: ignore[arg-type]
        ShardedOptimizer(comm, mine, sgd(1.0), initial="ignore")
        assert (mine["w"] == comm.rank).all()
        optimizer = ShardedOptimizer(comm, mine, sgd(1.0), initial="broadcast")
        assert (mine["w"] == 0).all()
        optimizer.step({"w": np.ones(5)})
        assert (mine["w"] == -1).all()

    run_ranks(2, body)


def test_state_begins_with_the_parameters_that_were_broadcast() -> None:
    """State of each rank's own parameters would keep the ranks' parts apart."""

    def kept(p: Any, g: Any, state: dict[str, Any], step: int) -> None:
        p[:] = state["begin"]

    def body(comm: Communicator) -> None:
        mine = {"w": np.full(32, 1.0 + comm.rank)}  # some for each rank
        optimizer = ShardedOptimizer(
            comm, mine, kept, state=lambda p: {"begin": p.copy()}, initial="broadcast"
        )
        optimizer.step({"w": np.ones(32)})
        assert (mine["w"] == 1).all()

    run_ranks(2, body)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_rank_without_samples_may_have_nan(overlapped: bool) -> None:
    """The mean over no samples is 0 / 0, and a weight of 0 takes no part."""

    def body(comm: Communicator) -> None:
        for nonfinite in ("keep", "skip", "raise"):
            sync = GradientSync(comm, model(), op="weighted", nonfinite=nonfinite)  # type: ignore[arg-type]
            mine = np.nan if comm.rank == 0 else np.inf if comm.rank == 1 else 6.0
            weight = 0 if comm.rank < 2 else comm.rank
            grads = {name: np.full_like(array, mine) for name, array in model().items()}
            if overlapped:
                sync.weigh(weight)
                for name, grad in grads.items():
                    sync.ready(name, grad)
                assert sync.wait()
            else:
                assert sync.sync(grads, weight=weight)
            for view in sync.gradients.values():
                np.testing.assert_allclose(view, 6, rtol=1e-6)

    run_ranks(4, body)
