"""NCCL without CuPy's binding of it: communicators are made and used by NCCL's own functions.

CuPy means to give its binding up (cupy issues 2244, 9575).
"""

import os
import sys
from importlib import import_module
from types import SimpleNamespace

import cupy
import numpy as np
import pytest
from nccl_ranks import run_ranks
from raw_ranks import status_of

import hpccomm
from hpccomm.backends.nccl import libnccl, own_binding, variables
from hpccomm.backends.nccl.own_binding import RawCommunicator
from hpccomm.bench.perf.memory import DeviceMemory
from hpccomm.doctor import rank

nccl = pytest.importorskip("cupy.cuda.nccl")


@pytest.fixture(params=["absent", "without a library"])
def no_binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take CuPy's binding away."""
    if request.param == "absent":
        monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    else:
        monkeypatch.setattr(nccl, "available", False)


def every_kind(comm):
    """Make calls of each kind, and communicators of each."""
    size, rank = comm.size, comm.rank
    with cupy.cuda.Device(comm.device):
        x = cupy.full(4, rank + 1, np.float32)
        made = comm._core.lanes.device.backend._communicators.native
        assert comm.all_reduce(x).get().tolist() == [size * (size + 1) / 2] * 4
        assert comm.all_gather(cupy.full(1, rank)).ravel().get().tolist() == list(range(size))
        x = cupy.full(size, rank + 1, np.float32)
        assert comm.reduce_scatter(x, op=hpccomm.ReduceOp.MAX).get().tolist() == [size]
        assert (
            comm.reduce(x, 0, op=hpccomm.ReduceOp.MAX) is None or x.get().tolist() == [size] * size
        )
        average = comm.all_reduce(cupy.full(2, rank, np.float32), op=hpccomm.premul_sum(0.5))
        assert average.get().tolist() == [sum(range(size)) / 2] * 2
        ring = comm.all_reduce(cupy.ones(4), algorithm="ring")
        assert ring.get().tolist() == [size] * 4
        y = cupy.zeros(1, int)
        comm.send_recv(cupy.full(1, rank), (rank + 1) % size, y, (rank - 1) % size)
        assert y.get().tolist() == [(rank - 1) % size]
        with comm.batch():
            a, b = comm.all_reduce(cupy.ones(1)), comm.broadcast(cupy.full(1, rank), root=1)
        assert [a.get().tolist(), b.get().tolist()] == [[size], [1]]
        with comm.split(0, name="half") as half:
            assert half.all_reduce(cupy.ones(1)).get().tolist() == [size]
        with pytest.raises(hpccomm.UsageError):
            comm.all_reduce(cupy.ones(4), algorithm="nothing")
    return type(made)


def test_calls_of_each_kind_without_cupys_binding(no_binding):
    assert libnccl.binding() is own_binding
    assert run_ranks(2, every_kind, backend="nccl") == [RawCommunicator] * 2


@pytest.mark.standin
def test_nccl_knows_a_communicator_by_its_name(no_binding, monkeypatch):
    library = import_module("standin.nccl.library")
    del library.names[:]
    run_ranks(2, every_kind, backend="nccl")
    assert {"world", "half"} <= set(library.names)
    del library.names[:]
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22703")  # whose settings have another length
    run_ranks(2, every_kind, backend="nccl")
    assert library.names == []


@pytest.mark.standin
def test_order_of_launches_is_the_communicators_own_where_nccl_has_that(no_binding, monkeypatch):
    """Else it is a variable, which other users of NCCL in the process read as well."""
    library = import_module("standin.nccl.library")
    monkeypatch.delenv(variables.LAUNCH_ORDER, raising=False)
    del library.orders[:]
    run_ranks(2, every_kind, backend="nccl")
    assert set(library.orders) == {1}
    assert variables.LAUNCH_ORDER not in os.environ
    del library.orders[:]
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22809")
    run_ranks(2, every_kind, backend="nccl")
    assert library.orders == []
    assert os.environ.pop(variables.LAUNCH_ORDER) == "1"


@pytest.mark.standin
def test_tools_tell_the_version_without_cupys_binding(no_binding, monkeypatch):
    """A CuPy without NCCL has a module of that name without functions, or none (CuPy 14.2, cupy/cuda/nccl.py)."""
    monkeypatch.delattr(cupy.cuda, "nccl", raising=False)
    monkeypatch.delattr(nccl, "get_version")
    assert rank.gather()["nccl"] == "2.32.3"
    comm = SimpleNamespace(backends={"cuda": "nccl"}, device=0, barrier=None)
    options = SimpleNamespace(config=SimpleNamespace(stream_null=True), timeout=1)
    assert DeviceMemory(comm, options).versions()["nccl"] == "2.32.3"


def test_what_it_raises_is_what_cupys_binding_raises(no_binding):
    for status in (1, 4, 5):
        assert own_binding.NcclError(status).status == status
        assert str(own_binding.NcclError(status)) in str(nccl.NcclError(status))
    with pytest.raises(own_binding.NcclError) as caught:
        own_binding.groupEnd()  # without a beginning
    from hpccomm.backends.nccl.libnccl import translate

    error = translate(caught.value)
    assert isinstance(error, hpccomm.CommunicationError)
    assert "invalid usage" in str(error)


@pytest.mark.standin
def test_settings_of_the_program_reach_each_communicator(monkeypatch):
    """CuPy's binding takes none of them: NcclConfig has split_share alone (cupy_backends/cuda/libs/nccl.pyx)."""
    library = import_module("standin.nccl.library")
    del library.configs[:]
    options = hpccomm.CommOptions(
        nccl_config={"maxCTAs": 8, "netName": "Socket", "CTAPolicy": True}
    )
    assert run_ranks(2, every_kind, backend="nccl", options=options) == [RawCommunicator] * 2
    assert {config["commName"] for config in library.configs} >= {b"world", b"half"}
    for config in library.configs:
        assert {"maxCTAs": 8, "netName": b"Socket", "CTAPolicy": 1}.items() <= config.items()
    assert options.nccl_config["maxCTAs"] == 8


@pytest.mark.standin
@pytest.mark.parametrize(
    ("given", "status"), [({"minCTAs": 8}, 4), ({"minCTAs": 8, "maxCTAs": 8}, 0)]
)
def test_nccl_takes_a_minimum_with_a_maximum_alone(given, status):
    """NCCL 2.30 init.cc: parseCommConfig."""
    unique = own_binding.get_unique_id()

    def made():
        own_binding.NcclCommunicator(1, unique, 0, "alone", given).destroy()

    assert status_of(made) == status


@pytest.mark.standin
def test_a_field_that_nccl_does_not_have_yet_is_refused_on_all_ranks(monkeypatch):
    monkeypatch.setenv("STANDIN_NCCL_VERSION", "22809")
    options = hpccomm.CommOptions(nccl_config={"maxP2pPeers": 4, "maxCTAs": 8})
    with pytest.raises(hpccomm.ConfigurationError) as caught:
        run_ranks(2, every_kind, backend="nccl", options=options)
    assert "maxP2pPeers came with NCCL 2.30.3, and NCCL 2.28.9 is installed" in str(caught.value)
    assert "maxCTAs" not in str(caught.value)


@pytest.mark.standin
def test_variables_are_judged_once_a_process(monkeypatch, caplog):
    monkeypatch.setattr("hpccomm.backends.nccl.opening._warned", False)
    monkeypatch.setenv("NCCL_MAX_CTAS", "4")
    options = hpccomm.CommOptions(nccl_config={"maxCTAs": 8})
    for _ in range(2):
        run_ranks(2, lambda comm: comm.rank, backend="nccl", options=options)
    about = [line for line in caplog.messages if line.startswith("NCCL_MAX_CTAS=4")]
    assert len(about) == 1
    assert "overrides maxCTAs" in about[0]


def test_cupys_binding_makes_the_communicators_as_long_as_there_is_one():
    assert libnccl.binding() is nccl
    assert run_ranks(2, every_kind, backend="nccl") == [nccl.NcclCommunicator] * 2
