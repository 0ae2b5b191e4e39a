"""Ranks with another model or other settings learn it over MPI, and can go on."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from one_size import by_default_on

from hpccomm.errors import RankMismatch, UsageError
from hpccomm.gradients import GradientSync

if TYPE_CHECKING:
    import hpccomm


def model(dtype: Any = np.float32) -> dict[str, Any]:
    return {"w": np.zeros((8, 4), dtype), "b": np.zeros(4, np.float32)}


def gradients(comm: "hpccomm.Communicator", of: Any = None, **settings: Any) -> GradientSync:
    return GradientSync(comm, model() if of is None else of, **settings)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    # What the last rank gives, and what is told of it.
    "a name": (
        {"of": {"v": model()["w"], "b": model()["b"]}},
        "parameter 'v' is missing on rank 0",
    ),
    "a shape": ({"of": {**model(), "b": np.zeros(5, "f")}}, r"'b' is float32 \(4,\) on rank 0"),
    "a dtype": ({"of": model(np.float64)}, r"'w' is float32 \(8, 4\) on rank 0 and float64"),
    "the order": ({"of": dict(reversed(model().items()))}, "number 0 is parameter 'w' on rank 0"),
    "bucket size": ({"bucket_bytes": 999}, "bucket_bytes is 26214400 on rank 0 and 999"),
    "an option": ({"deterministic": True}, "deterministic is False on rank 0 and True"),
    "accumulation": ({"accumulate": 2}, "accumulate is 1 on rank 0 and 2"),
    "frozen": ({"frozen": ["b"]}, "frozen is .* on rank 0 and .*'b'"),
}


@by_default_on(2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_is_named_on_every_rank(comm: "hpccomm.Communicator", what: str) -> None:
    last = comm.size - 1
    settings, text = OTHERS[what]
    with pytest.raises(RankMismatch, match=f"{text}.*rank {last}") as caught:
        gradients(comm, **settings if comm.rank == last else {})
    assert caught.value.ranks == (last,)
    sync = gradients(comm)
    sync.gradients["w"][...] = comm.rank
    assert sync.sync()
    assert (sync.gradients["w"] == (comm.size - 1) / 2).all()


@pytest.mark.mpi(min_size=2)
def test_an_argument_that_is_wrong_on_one_rank_is_told_to_the_others(
    comm: "hpccomm.Communicator",
) -> None:
    last = comm.size - 1
    error, text = (
        (UsageError, "^bucket_bytes is 0")
        if comm.rank == last
        else (RankMismatch, f"rank {last} raised an error: bucket_bytes is 0")
    )
    with pytest.raises(error, match=text):
        gradients(comm, bucket_bytes=0 if comm.rank == last else 1)
    assert gradients(comm).sync()


def test_ready_and_sync_in_one_step_are_refused_where_they_are_mixed(
    comm: "hpccomm.Communicator",
) -> None:
    sync = gradients(comm)
    sync.ready("b")
    with pytest.raises(UsageError, match="end it by wait"):
        sync.sync()
    sync.ready("w")
    assert sync.wait()
