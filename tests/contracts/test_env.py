"""``hpccomm env``: one process, and a job whose ranks differ."""

import json
import os

import pytest
from conftest import Mpiexec

from hpccomm.tools.main import main


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in list(os.environ):
        if name.startswith(("NCCL_", "UCX_", "FI_", "HPCCOMM_DEBUG", "CUDA_", "NVIDIA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


CASES = [
    # Variables, words of the command, its status, what it says and what not.
    ({}, "", 0, [], []),
    ({"NCCL_DEBUG": "INFO"}, "", 0, [], []),  # not for production, but what it says
    (
        {"NCCL_DEBUG": "INFO", "NCCL_BUFFSIZE": "8M"},
        *("", 1, ["misread    NCCL_BUFFSIZE=8M\n", "-> NCCL_BUFFSIZE=8388608"], []),
    ),
    (
        {"HPCCOMM_TIMEOUT": "soon", "HPCCOMM_TIMOUT": "hidden"},
        *("", 1, ["misfit     HPCCOMM_TIMEOUT=soon", "give seconds above 0"], ["hidden"]),
    ),
    ({"HPCCOMM_TIMOUT": "hidden"}, "", 1, ["unknown    HPCCOMM_TIMOUT\n"], ["hidden"]),
    (
        {"NCCL_API_TOKEN": "hidden", "MY_PASSWORD": "hidden"},
        *("--json", 1, ["NCCL_API_TOKEN"], ["MY_PASSWORD", "hidden"]),
    ),
    (
        {},
        *("--list NCCL_BUFFSIZE HPCCOMM_TIMEOUT UCX_TLS", 0),
        *(["default: auto (4194304)", "default: 1800"], []),
    ),
    ({}, "--list NCCL_BUFSIZE", 2, ["did you mean NCCL_BUFFSIZE?"], []),
    ({}, "--preset debug", 0, ["export NCCL_DEBUG=INFO"], []),
    ({}, "--preset infinyband", 2, [], []),
    ({}, "--for-model 14G --ranks 64", 0, ["64 ranks: each sends 29.6 GB"], []),
]


@pytest.mark.parametrize(("variables", "words", "status", "told", "untold"), CASES)
def test_one_process(monkeypatch, capsys, variables, words, status, told, untold):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["env", *words.split()]) == status
    said = "".join(capsys.readouterr())
    assert all(each in said for each in told), said
    assert not any(each in said for each in untold), said


def test_all_variables_are_listed(capsys):
    assert main(["env", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 500


def test_a_saved_report_is_compared(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("NCCL_IB_TC", "106")
    assert main(["env", "--json"]) == 0
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    assert main(["env", "--against", str(saved)]) == 0
    monkeypatch.setenv("NCCL_IB_TC", "96")
    assert main(["env", "--against", str(saved)]) == 1
    assert "changed    NCCL_IB_TC: '106' before, '96' now" in capsys.readouterr().out
    saved.write_text("{}")
    assert main(["env", "--against", str(saved)]) == 2


def test_presets_rest_on_what_is_up(monkeypatch, capsys):
    ports = [
        {"device": device, "port": 1, "link_layer": layer, "state": state, "rate": rate}
        for device, layer, state, rate in (
            ("mlx5_3", "InfiniBand", "ACTIVE", None), ("mlx5_1", "Ethernet", "ACTIVE", 200.0),
            ("mlx5_0", "Ethernet", "ACTIVE", 200.0), ("mlx5_2", "Ethernet", "DOWN", 200.0),
        )
    ]  # fmt: skip
    links = [
        ("eth0", "up", {"speed": 25000}),
        ("eth1", "down", {"speed": 100000}),
        ("eth2", "up", {}),
    ]
    devices = [{"name": name, "state": state, **more} for name, state, more in links]
    found = {"ports": ports, "devices": devices}
    # No machine at hand has such ports; the doctor's own tests read them from planted folders.
    monkeypatch.setattr("hpccomm.tools.doctor.env.read", lambda source, wait: found)

    def said(*words):
        assert main(["env", *words]) == 0
        return capsys.readouterr().out

    out = said("--preset", "roce")
    assert "here: mlx5_0,mlx5_1 active, Ethernet, 200 Gb/s" in out
    assert "export NCCL_IB_HCA==mlx5_0,mlx5_1\n" in out
    assert "export NCCL_SOCKET_IFNAME==eth0\n" in out
    assert "# NCCL_IB_TC: " in out
    assert "export NCCL_IB_TC" not in out
    assert "not set: no active InfiniBand port" in said("--preset", "infiniband")
    assert "mlx5_0 carries 1.07 GB" in said("--for-model", "1G")


RANK = """
import os, sys
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.tools.main import main
os.environ["NCCL_BUFFSIZE"] = "4194304" if launched().rank else "8388608"
if launched().rank:
    os.environ["NCCL_API_TOKEN"] = "hidden"
    os.environ["HPCCOMM_ALGORITHM"] = "ring"
    os.environ["HPCCOMM_RECORD"] = "0"
sys.exit(main(["env", *sys.argv[1:]]) - 1)
"""


def test_ranks_that_differ_are_named_once(mpiexec: Mpiexec, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("NCCL_BUFFSIZE", "8388608")
    assert main(["env", "--json"]) == 0
    saved = tmp_path / "saved.json"
    saved.write_text(capsys.readouterr().out)
    job = mpiexec(2, "-c", RANK, "--json", "--against", saved)
    assert job.returncode == 0, job.stderr
    report = json.loads(job.stdout)
    assert report["ranks"] == 2
    assert "hidden" not in job.stdout
    found = report["variables"]
    first = next(each for each in found if each["name"] == "NCCL_BUFFSIZE")
    assert first["verdict"] == "differs"
    assert "8388608 on rank 0, 4194304 on rank 1" in first["words"]
    words = {each["name"]: each["words"] for each in found if each["place"] == "ranks"}
    assert words["HPCCOMM_ALGORITHM"].startswith("must be equal")
    assert "HPCCOMM_RECORD" not in words
    assert words["NCCL_API_TOKEN"] == "not set on rank 0, set on rank 1"
    changed = "changed    NCCL_BUFFSIZE: '8388608' before, '4194304' or '8388608' now"
    assert changed in report["changes"]
