"""How NCCL is bound to an algorithm: by each call's settings from 2.32 on, else by communicators.

The settings are ncclCollConfig_t's algSelection and forceAlgSelection, as nccl.h of 2.32.3 describes them.
"""

import os

import cupy
import numpy as np
import pytest
from nccl_ranks import on_devices

import hpccomm

pytestmark = pytest.mark.standin

HALF = hpccomm.premul_sum(0.5)
BY_CALL, BY_COMMUNICATOR = "each call names it to NCCL", "on a communicator of its own"


def selected(seen):
    """Return which collectives named which algorithms to NCCL."""
    return {tuple(of) for name, *of in seen if name == "settings"}


def by_algorithms(comm, nccl_made):
    """Make calls by an algorithm; return how NCCL is held to it, and by which values of NCCL_ALGO communicators are."""
    size = comm.size
    x, out = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
    plan = comm.plan("all_reduce", x, algorithm="ring", out=out)
    for call, each in (
        (lambda: comm.all_reduce(x, out=out, algorithm="tree"), size),
        (lambda: comm.all_reduce(x, HALF, out=out, algorithm="ring"), size / 2),
        (plan, size),
    ):
        assert call().get().tolist() == [each] * 4
    for call in (comm.all_gather, comm.reduce_scatter, comm.broadcast, comm.reduce):
        call(cupy.ones(4), algorithm="ring")
    with comm.batch():
        summed = comm.all_reduce(cupy.ones(2), algorithm="ring")
    assert summed.get().tolist() == [size] * 2
    own = comm.explain("all_reduce", x).reason
    assert "NCCL_ALGO=allreduce:tree is set" in own or "NCCL_ALGO" not in os.environ
    reason = comm.explain("all_reduce", x, algorithm="ring").reason
    return reason, {each.algorithms.text for each in nccl_made() if each.rank == comm.rank}


def test_from_2_32_on_each_call_names_its_algorithm(seen, nccl_made):
    for reason, made in on_devices(2, by_algorithms, nccl_made):
        assert BY_CALL in reason
        assert made == {""}, "no communicator is made for it"
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    assert {kind for kind, _ in selected(seen)} == set(kinds)
    assert {text for _, text in selected(seen)} == {"Ring", "Tree"}


@pytest.mark.parametrize(
    "variables",
    [
        {"STANDIN_NCCL_VERSION": "23105"},  # whose settings of a call are shorter
        {"STANDIN_NCCL_VERSION": "22501"},
        {"NCCL_ALGO": "allreduce:tree"},  # which leaves the communicator no ring
    ],
)
def test_else_a_communicator_is_pinned(seen, nccl_made, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for reason, made in on_devices(2, by_algorithms, nccl_made):
        assert BY_COMMUNICATOR in reason
        assert "NCCL_ALGO" not in reason
        assert made == {variables.get("NCCL_ALGO", ""), "Ring", "Tree"}
    assert not selected(seen)
    assert os.environ.get("NCCL_ALGO") == variables.get("NCCL_ALGO")
