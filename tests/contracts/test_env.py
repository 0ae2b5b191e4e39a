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


def test_the_exit_status_says_whether_something_should_change(monkeypatch, capsys):
    assert main(["env"]) == 0
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert main(["env"]) == 0  # not for production, but what it says
    monkeypatch.setenv("NCCL_BUFFSIZE", "8M")
    capsys.readouterr()
    assert main(["env"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("misread    NCCL_BUFFSIZE=8M\n")
    assert "-> NCCL_BUFFSIZE=8388608" in out


def test_hpccomms_own_variables_are_judged(monkeypatch, capsys):
    monkeypatch.setenv("HPCCOMM_TIMEOUT", "soon")
    monkeypatch.setenv("HPCCOMM_TIMOUT", "hidden")
    assert main(["env"]) == 1
    out = capsys.readouterr().out
    assert "misfit     HPCCOMM_TIMEOUT=soon" in out
    assert "give seconds above 0" in out
    assert "unknown    HPCCOMM_TIMOUT\n" in out
    assert "hidden" not in out


def test_nothing_that_may_be_secret_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("NCCL_API_TOKEN", "hidden1")
    monkeypatch.setenv("MY_PASSWORD", "hidden2")
    assert main(["env", "--json"]) == 1
    out = capsys.readouterr().out
    assert "NCCL_API_TOKEN" in out
    assert "MY_PASSWORD" not in out
    assert "hidden" not in out


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


def test_variables_are_explained(capsys):
    assert main(["env", "--list", "NCCL_BUFFSIZE", "HPCCOMM_TIMEOUT", "UCX_TLS"]) == 0
    out = capsys.readouterr().out
    assert "default: auto (4194304)" in out
    assert "default: 1800" in out
    assert main(["env", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 500
    assert main(["env", "--list", "NCCL_BUFSIZE"]) == 2
    assert "did you mean NCCL_BUFFSIZE?" in capsys.readouterr().err


def test_presets_and_models_print_lines_for_a_shell(capsys):
    assert main(["env", "--preset", "debug"]) == 0
    assert "export NCCL_DEBUG=INFO" in capsys.readouterr().out
    assert main(["env", "--for-model", "14G", "--ranks", "64"]) == 0
    assert "64 ranks: each sends 29.6 GB" in capsys.readouterr().out
    assert main(["env", "--preset", "infinyband"]) == 2


def test_presets_rest_on_what_is_up(monkeypatch, capsys):
    def port(device, layer, state="ACTIVE", rate=200.0):
        return {"device": device, "port": 1, "link_layer": layer, "state": state, "rate": rate}

    ports = [
        port("mlx5_3", "InfiniBand", rate=None),
        port("mlx5_1", "Ethernet"),
        port("mlx5_0", "Ethernet"),
        port("mlx5_2", "Ethernet", "DOWN"),
    ]
    links = [
        {"name": "eth0", "state": "up", "speed": 25000}, {"name": "eth1", "state": "down", "speed": 100000},
        {"name": "eth2", "state": "up"},
    ]  # fmt: skip
    found = {"ports": ports, "devices": links}
    monkeypatch.setattr("hpccomm.tools.doctor.reading.read", lambda source, wait: found)
    assert main(["env", "--preset", "roce"]) == 0
    out = capsys.readouterr().out
    assert "here: mlx5_0,mlx5_1 active, Ethernet, 200 Gb/s" in out
    assert "export NCCL_IB_HCA==mlx5_0,mlx5_1\n" in out
    assert "export NCCL_SOCKET_IFNAME==eth0\n" in out
    assert "# NCCL_IB_TC: " in out
    assert "export NCCL_IB_TC" not in out
    assert main(["env", "--preset", "infiniband"]) == 0
    assert "not set: no active InfiniBand port" in capsys.readouterr().out
    assert main(["env", "--for-model", "1G"]) == 0
    assert "mlx5_0 carries 1.07 GB" in capsys.readouterr().out


RANK = """
import os, sys
from hpccomm.backends.bootstrap.launch import launched
from hpccomm.tools.main import main
os.environ["NCCL_BUFFSIZE"] = "4194304" if launched().rank else "8388608"
os.environ["NCCL_DEBUG_FILE"] = f"log.{launched().rank}"
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
    first = next(each for each in report["variables"] if each["name"] == "NCCL_BUFFSIZE")
    assert report["ranks"] == 2
    assert (first["name"], first["verdict"]) == ("NCCL_BUFFSIZE", "differs")
    assert "8388608 on rank 0, 4194304 on rank 1" in first["words"]
    assert [
        each["verdict"] for each in report["variables"] if each["name"] == "NCCL_DEBUG_FILE"
    ] == ["ok"] * 2
    assert "hidden" not in job.stdout
    words = {
        each["name"]: each["words"] for each in report["variables"] if each["place"] == "ranks"
    }
    assert words["HPCCOMM_ALGORITHM"].startswith("must be equal")
    assert "HPCCOMM_RECORD" not in words
    assert words["NCCL_API_TOKEN"] == "not set on rank 0, set on rank 1"
    assert (
        "changed    NCCL_BUFFSIZE: '8388608' before, '4194304' or '8388608' now"
        in report["changes"]
    )
