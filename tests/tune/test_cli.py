"""hpccomm tune --fit: from a stored run to a description that simulate reads."""

import tomllib
from pathlib import Path

import pytest

from hpccomm.cli.main import main
from hpccomm.cost.network_files import load

ALGORITHMS = "ring,recursive_doubling,binomial,hierarchical"


@pytest.fixture
def simulated(tmp_path):
    """A simulated run of 32 ranks of ib400x32."""
    file = tmp_path / "run.h5"
    command = ["simulate", "all_reduce,all_gather,broadcast", "--cluster", "ib400x32"]
    command += ["--ranks", "32", "--algorithm", ALGORITHMS, "-b", "1K", "-e", "64M", "-f", "16"]
    command += ["--segment", "1G", "--channels", "1", "--output", str(file)]
    assert main(command) == 0
    return file


def test_a_simulated_cluster_is_found(simulated, capsys):
    capsys.readouterr()
    mine = simulated.parent / "mine.toml"
    assert main(["tune", "--fit", str(simulated), "--output", str(mine)]) == 0
    said = capsys.readouterr().out
    assert "32 ranks, 8 a node" in said
    truth, found = load("ib400x32"), load(str(mine))
    for level, known in ((found.inner, truth.inner), (found.across, truth.across)):
        assert level.latency == pytest.approx(known.latency, rel=0.03)
        assert level.bandwidth == pytest.approx(known.bandwidth, rel=0.03)
        assert level.ports == known.ports
    assert found.reduce == pytest.approx(truth.reduce, rel=0.03)
    assert main(["simulate", "all_reduce", "--cluster", str(mine), "-b", "1K", "-e", "1K"]) == 0


def test_without_output_the_description_is_printed(simulated, capsys):
    capsys.readouterr()
    assert main(["tune", "--fit", str(simulated)]) == 0
    table = tomllib.loads(capsys.readouterr().out)  # the report is its comments
    assert table["ranks_per_node"] == 8
    assert table["across"]["bandwidth"] == pytest.approx(49e9, rel=0.03)


def test_a_description_of_other_nodes_is_refused(simulated, capsys):
    assert main(["tune", "--fit", str(simulated), "--cluster", "lab1g"]) == 2
    assert "2 ranks on a node, and the run 8" in capsys.readouterr().err


def test_a_real_run(mpiexec, tmp_path, capsys):
    file = tmp_path / "run.h5"
    command = ["perf", "all_reduce", "--algorithm", "ring", "-b", "1K", "-e", "1M", "-f", "8"]
    mpiexec(2, "-m", "hpccomm", *command, "-n", "5", "--output", str(file))
    assert main(["tune", "--fit", str(file)]) == 0
    said = capsys.readouterr().out
    assert "2 ranks, 2 a node; 8 of 8 rows used" in said
    assert "across" in said
    assert "unknown: the run has one node" in said
    table = tomllib.loads(said)
    assert table["inner"]["latency"] > 0
    Path(tmp_path / "mine.toml").write_text(said)
    assert load(str(tmp_path / "mine.toml")).ranks == 2


def test_rows_of_unknown_algorithms_are_not_used(mpiexec, tmp_path, capsys):
    file = tmp_path / "run.h5"
    command = ["perf", "all_reduce", "--algorithm", "native", "-b", "1K", "-e", "1K", "-n", "2"]
    mpiexec(2, "-m", "hpccomm", *command, "--output", str(file))
    assert main(["tune", "--fit", str(file)]) == 2
    assert "of own algorithms" in capsys.readouterr().err
