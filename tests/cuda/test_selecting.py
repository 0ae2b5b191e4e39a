"""How NCCL is bound to an algorithm: by each call's settings from 2.32 on, else by communicators.

The settings are ncclCollConfig_t's algSelection and forceAlgSelection, as nccl.h of 2.32.3 describes them.
"""

import os
from importlib import import_module

import cupy
import numpy as np
import pytest
from nccl_ranks import on_devices, ranked

import hpccomm
from front.device_graphs import capture

pytestmark = pytest.mark.standin

HALF = hpccomm.premul_sum(0.5)
BY_CALL, BY_COMMUNICATOR = "each call names it to NCCL", "on a communicator of its own"


@pytest.fixture
def selected():
    """Return what calls named to the stand-in's NCCL."""
    found = import_module("standin.nccl.library").selected
    del found[:]
    return found


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


def test_from_2_32_on_each_call_names_its_algorithm(selected, nccl_made):
    for reason, made in on_devices(2, by_algorithms, nccl_made):
        assert BY_CALL in reason
        assert made == {""}, "no communicator is made for it"
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
    assert {kind for kind, _ in selected} == set(kinds)
    assert {text for _, text in selected} == {"Ring", "Tree"}


@pytest.mark.parametrize(
    "variables",
    [
        {"STANDIN_NCCL_VERSION": "23105"},  # whose settings of a call are shorter
        {"STANDIN_NCCL_VERSION": "22501"},
        {"NCCL_ALGO": "allreduce:tree"},  # which leaves the communicator no ring
    ],
)
def test_else_a_communicator_is_pinned(selected, nccl_made, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for reason, made in on_devices(2, by_algorithms, nccl_made):
        assert BY_COMMUNICATOR in reason
        assert "NCCL_ALGO" not in reason
        assert made == {variables.get("NCCL_ALGO", ""), "Ring", "Tree"}
    assert selected == []
    assert os.environ.get("NCCL_ALGO") == variables.get("NCCL_ALGO")


@ranked(2)
def test_a_captured_call_needs_no_communicator_that_was_made_before(comm, selected):
    with cupy.cuda.Stream(non_blocking=True) as own:
        x, out = cupy.ones(4), cupy.zeros(4)
        comm.all_reduce(x, out=out)
        own.synchronize()
        with capture(own) as graph:
            comm.all_reduce(x, out=out, algorithm="ring")
        out.fill(0)
        graph[0].launch(own)
        assert out.get(own).tolist() == [comm.size] * 4
    assert set(selected) == {("all_reduce", "Ring")}
