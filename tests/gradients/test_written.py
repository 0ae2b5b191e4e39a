"""Gradients that nobody has written since the last step are named; those that may be as they were, in loops of users, are taken."""

from collections.abc import Callable
from itertools import product
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


SETTINGS: list[dict[str, Any]] = [
    {},
    SMALL,
    {"bucketing": False},
    {"op": "sum"},
    {"accumulate": 2},
    {"deterministic": True},
]


@pytest.mark.parametrize("way", ["sync", "ready"])
def test_what_nobody_has_written_is_named_on_every_rank(way: str) -> None:
    def refused(comm: Communicator, settings: dict[str, Any]) -> None:
        sync, views = made(comm, **settings)
        micro = settings.get("accumulate", 1)
        for number in range(3):
            for view in views.values():
                view[...] = 1 + comm.rank + number
            for _ in range(micro):
                step(sync, way)
        for _ in range(micro - 1):
            step(sync, way)
        says = r"on ranks 0 and 1.*the bits of the last results"
        with pytest.raises(UsageError, match=says) as caught:
            step(sync, way)
        assert all(f"'{name}'" in str(caught.value) for name in views)
        # That step is over, and the next one is as any.
        for view in views.values():
            view[...] = comm.rank
        for _ in range(micro):
            there = step(sync, way)
        assert there

    run_ranks(2, lambda comm: [refused(comm, each) for each in SETTINGS])


def fill(views: dict[str, Any], *values: float) -> None:
    """Write to each view, from one value for all or one for each."""
    for view, value in zip(views.values(), values * len(views), strict=False):
        view[...] = value


LEGITIMATE: dict[str, Callable[[GradientSync, dict[str, Any], int, int], object]] = {
    "zeros": lambda sync, views, number, rank: None,
    "NaN": lambda sync, views, number, rank: fill(views, np.nan),
    "the same on each rank": lambda sync, views, number, rank: fill(dict(sync.gradients), 3),
    "the same on one rank": lambda sync, views, number, rank: fill(views, rank),
    "the same after zero()": lambda sync, views, number, rank: (sync.zero(), fill(views, 3)),
    "two are constant": lambda sync, views, number, rank: fill(views, rank + number, 24, 2),
    "results were read": lambda sync, views, number, rank: (
        sync.gradients["w"].sum() if number else fill({"w": views["w"]}, 1 + rank)
    ),
    "one element has changed": lambda sync, views, number, rank: views["w"].__setitem__(
        (0, 0), number + rank
    ),
}


@pytest.mark.parametrize("way", ["sync", "ready"])
def test_gradients_that_may_be_as_they_were_are_taken(way: str) -> None:
    def body(comm: Communicator) -> None:
        for case, settings in product(LEGITIMATE, ({}, SMALL)):
            sync, views = made(comm, **settings)
            for number in range(4):
                LEGITIMATE[case](sync, views, number, comm.rank)
                assert step(sync, way), case

    run_ranks(3, body)


def test_one_rank_arrays_that_are_given_clipped_results_and_another_layout() -> None:
    def body(comm: Communicator) -> None:
        sync, views = made(comm)
        fill(views, 3)
        given = {name: np.full_like(view, 3) for name, view in views.items()}
        for _ in range(3):
            if comm.size == 1:
                assert sync.sync()
            assert sync.sync(given)
            for name, grad in given.items():
                sync.ready(name, grad)
            assert sync.wait()
        if comm.size > 1:
            fill(views, 1 + comm.rank)
            sync.sync()
            sync.clip_by_global_norm(0.5)
            with pytest.raises(UsageError, match="were not written since the last step"):
                sync.sync()
            sync.configure(**SMALL)  # the values stay, in other memory
            assert sync.sync()

    for ranks in (1, 2):
        run_ranks(ranks, body)
