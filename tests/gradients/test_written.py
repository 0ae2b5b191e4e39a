"""Gradients in buckets that were not written since the last step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpccomm import Communicator, UsageError
from hpccomm.dtypes import BFLOAT16
from hpccomm.gradients import GradientSync
from hpccomm.testing import run_ranks

SMALL = {"first_bucket_bytes": 1, "min_bucket_bytes": 0, "bucket_bytes": 64}


def made(comm: Communicator, **settings: Any) -> tuple[GradientSync, dict[str, Any]]:
    """Return a synchronisation, and views that are held, as PyTorch's parameters hold them."""
    model = {"w": np.zeros((40, 50)), "b": np.zeros(3, "f"), "n": np.zeros(5, BFLOAT16)}
    sync = GradientSync(comm, model, **settings)
    return sync, dict(sync.gradients)


def step(sync: GradientSync, way: str) -> bool:
    if way == "sync":
        return sync.sync()
    for name in ("n", "b", "w"):
        sync.ready(name)
    return sync.wait()


@pytest.mark.parametrize("way", ["sync", "ready"])
@pytest.mark.parametrize(
    "settings",
    [{}, SMALL, {"bucketing": False}, {"op": "sum"}, {"accumulate": 2}, {"deterministic": True}],
    ids=str,
)
def test_what_nobody_has_written_is_named_on_every_rank(way: str, settings: dict[str, Any]) -> None:
    def body(comm: Communicator) -> str:
        sync, views = made(comm, **settings)
        micro = settings.get("accumulate", 1)
        for number in range(3):
            for view in views.values():
                view[...] = 1 + comm.rank + number
            for _ in range(micro):
                step(sync, way)
        for _ in range(micro - 1):
            step(sync, way)
        with pytest.raises(UsageError) as caught:
            step(sync, way)
        # That step is over, and the next one is as any.
        for view in views.values():
            view[...] = comm.rank
        for _ in range(micro):
            there = step(sync, way)
        assert there
        return str(caught.value)

    for said in run_ranks(2, body):
        assert all(f"'{name}'" in said for name in "wbn")
        assert "on ranks 0 and 1" in said
        assert "the bits of the last results" in said


def written(view: Any, value: float) -> None:
    view[...] = value


LEGITIMATE: dict[str, Callable[[GradientSync, dict[str, Any], int, int], object]] = {
    "zeros": lambda sync, views, number, rank: None,
    "NaN": lambda sync, views, number, rank: [written(v, np.nan) for v in views.values()][:0],
    "the same on each rank": lambda sync, views, number, rank: [
        written(sync.gradients[name], 3) for name in views
    ],
    "the same on one rank, others on others": lambda sync, views, number, rank: [
        written(v, rank) for v in views.values()
    ],
    "the same after zero()": lambda sync, views, number, rank: (
        sync.zero(),
        [written(v, 3) for v in views.values()],
    ),
    "one of them is constant": lambda sync, views, number, rank: (
        written(views["b"], 24),
        written(views["n"], 2),
        written(views["w"], rank + number),
    ),
    "results were read": lambda sync, views, number, rank: (
        written(views["w"], 1 + rank) if not number else sync.gradients["w"].sum()
    ),
    "a single element has changed": lambda sync, views, number, rank: views["w"].__setitem__(
        (0, 0), number + rank
    ),
}


@pytest.mark.parametrize("way", ["sync", "ready"])
@pytest.mark.parametrize("case", LEGITIMATE)
def test_gradients_that_may_be_as_they_were_are_taken(case: str, way: str) -> None:
    def body(comm: Communicator) -> None:
        for settings in ({}, SMALL):
            sync, views = made(comm, **settings)
            for number in range(4):
                LEGITIMATE[case](sync, views, number, comm.rank)
                assert step(sync, way)

    run_ranks(3, body)


def test_one_rank_and_arrays_that_are_given_are_not_looked_at() -> None:
    def body(comm: Communicator) -> None:
        sync, views = made(comm)
        for view in views.values():
            view[...] = 3
        given = {name: np.full_like(view, 3) for name, view in views.items()}
        for _ in range(3):
            if comm.size == 1:
                assert sync.sync()
            assert sync.sync(given)
            for name, grad in given.items():
                sync.ready(name, grad)
            assert sync.wait()

    for ranks in (1, 2):
        run_ranks(ranks, body)


def test_clipped_results_and_another_layout() -> None:
    def body(comm: Communicator) -> None:
        sync, views = made(comm)
        for view in views.values():
            view[...] = 1 + comm.rank
        sync.sync()
        sync.clip_by_global_norm(0.5)
        with pytest.raises(UsageError, match="were not written since the last step"):
            sync.sync()
        sync.configure(**SMALL)  # the values stay, in other memory
        assert sync.sync()

    run_ranks(2, body)
