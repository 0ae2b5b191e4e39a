"""NCCL by its own functions: communicators with settings, and tools, also where CuPy has no binding of it.

CuPy means to give its binding up (cupy issues 2244, 9575).
"""

import os
import sys
from types import SimpleNamespace

import cupy
import pytest
from device_trials import every_kind
from nccl_ranks import run_ranks

import hpccomm
from hpccomm.backends.nccl import libnccl, variables
from hpccomm.backends.nccl.libnccl import translate
from hpccomm.tools.doctor import job
from hpccomm.tools.perf.arrays import DeviceMemory

nccl = pytest.importorskip("cupy.cuda.nccl")


@pytest.fixture(params=["there", "absent", "without a library"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have CuPy's binding, or take it away: another CuPy is not there."""
    if request.param == "absent":
        # As Python does where a module cannot be imported.
        monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", None)
    elif request.param == "without a library":
        # The stand-in for CuPy always has its NCCL.
        monkeypatch.setattr(nccl, "available", False)


@pytest.mark.standin
@pytest.mark.parametrize(
    ("version", "named", "ordered", "given"),
    [
        ("23203", True, True, {"maxCTAs": 8, "netName": "Socket", "CTAPolicy": True}),
        ("22809", True, False, {}),
        ("22703", False, False, {}),
    ],
)
def test_settings_that_nccl_has(binding, seen, version, named, ordered, given, monkeypatch):
    """Else the order of launches is a variable, which other users of NCCL in the process read as well."""
    monkeypatch.setenv("STANDIN_NCCL_VERSION", version)
    monkeypatch.delenv(variables.LAUNCH_ORDER, raising=False)
    options = hpccomm.CommOptions(nccl_config=dict(given))
    run_ranks(2, every_kind, backend="nccl", options=options)
    configs = [of[-1] for of in seen if of[0] == "ncclCommInitRankConfig"]
    assert len(configs) >= 2 * named  # of both ranks: by hpccomm's own binding, not by CuPy's
    told = {"maxCTAs": 8, "netName": b"Socket", "CTAPolicy": 1}.items() if given else {}.items()
    assert all(told <= each.items() for each in configs)
    assert options.nccl_config == given
    assert {each["commName"] for each in configs} >= ({b"world", b"half"} if named else set())
    of_both = all(("launchOrderImplicit", 1) in each.items() for each in configs)
    assert of_both == (ordered or not named)
    assert (os.environ.pop(variables.LAUNCH_ORDER, None) is None) == ordered


@pytest.mark.standin
def test_tools_tell_the_version(binding, monkeypatch):
    """A CuPy without NCCL has a module of that name without functions, or none (CuPy 14.2, cupy/cuda/nccl.py)."""
    # A change of the stand-in for CuPy.
    monkeypatch.delattr(nccl, "get_version")
    assert job.of_rank()["nccl"] == "2.32.3"
    comm = SimpleNamespace(backends={"cuda": "nccl"}, device=0, barrier=None)
    options = SimpleNamespace(config=SimpleNamespace(stream_null=True), timeout=1)
    assert DeviceMemory(comm, options).versions()["nccl"] == "2.32.3"


def test_what_it_raises_is_what_cupys_binding_raises():
    for status in (1, 4, 5):
        assert libnccl.NcclError(status).status == status
        assert str(libnccl.NcclError(status)) in str(nccl.NcclError(status))
    with pytest.raises(libnccl.NcclError) as caught:
        libnccl.check(libnccl.functions().ncclGroupEnd())  # without a beginning
    assert "invalid usage" in str(translate(caught.value))
    # A rank that is gone; a communicator that does not block; what is no status.
    assert type(translate(libnccl.NcclError(6))) is hpccomm.PeerLost
    assert "unset NCCL_COMM_BLOCKING" in str(translate(libnccl.NcclError(7)))
    assert translate(KeyError(7)) is translate(ValueError()) is None
    failed = cupy.cuda.runtime.CUDARuntimeError(700)
    for each in caught.value, failed:
        assert type(translate(each)) is hpccomm.CommunicationError


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
    # Once a process: this test would have one of its own.
    monkeypatch.setattr("hpccomm.backends.nccl.opening._warned", False)
    monkeypatch.setenv("NCCL_MAX_CTAS", "4")
    monkeypatch.setenv("NCCL_BUFFSIZE", "4194304")  # which is as good as any
    options = hpccomm.CommOptions(nccl_config={"maxCTAs": 8})
    for _ in range(2):
        run_ranks(2, lambda comm: comm.rank, backend="nccl", options=options)
    (about,) = [line for line in caplog.messages if line.startswith("NCCL_")]
    assert "NCCL_MAX_CTAS=4: " in about
    assert "overrides maxCTAs" in about
