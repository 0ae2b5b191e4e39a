"""hpccomm fit: from a stored run to a description that simulate reads; and the arguments of tune."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hpccomm.bench.fit import stored_runs
from hpccomm.cli.main import main
from hpccomm.errors import ConfigurationError
from hpccomm.results import reader
from hpccomm.results.run import choose
from hpccomm.schedules.cost.network_files import dump, load, parse, ready

ALGORITHMS = "ring,recursive_doubling,binomial,hierarchical"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A simulated run of 32 ranks of ib400x32, which no test changes."""
    file = tmp_path_factory.mktemp("simulated") / "run.h5"
    command = ["simulate", "all_reduce,all_gather,broadcast", "--cluster", "ib400x32"]
    command += ["--ranks", "32", "--algorithm", ALGORITHMS, "-b", "1K", "-e", "64M", "-f", "16"]
    command += ["--segment", "1G", "--channels", "1", "--output", str(file)]
    assert main(command) == 0
    return file


def test_a_simulated_cluster_is_found(simulated, tmp_path, capsys):
    capsys.readouterr()
    mine = tmp_path / "mine.toml"
    assert main(["fit", str(simulated), "--output", str(mine)]) == 0
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
    assert main(["fit", str(simulated)]) == 0
    table = tomllib.loads(capsys.readouterr().out)  # the report is its comments
    assert table["ranks_per_node"] == 8
    assert table["across"]["bandwidth"] == pytest.approx(49e9, rel=0.03)


def test_a_description_of_other_nodes_is_refused(simulated, capsys):
    assert main(["fit", str(simulated), "--cluster", "lab1g"]) == 2
    assert "2 ranks on a node, and the run 8" in capsys.readouterr().err


@pytest.mark.parametrize("cluster", [[], ["--cluster", "ib400x32"]])
def test_one_rank_gives_a_description_that_can_be_read(tmp_path, cluster, capsys):
    run, mine = str(tmp_path / "run.h5"), str(tmp_path / "mine.toml")
    command = ["simulate", "all_reduce", "--cluster", "ib400x32", "--ranks", "1"]
    assert main([*command, "-b", "1M", "-e", "2M", "--output", run]) == 0
    assert main(["fit", run, "--output", mine, *cluster]) == 0
    assert load(mine).resized(1).ranks == 1


def test_rows_of_no_time_are_not_used(tmp_path, capsys):
    free, run = tmp_path / "free.toml", str(tmp_path / "run.h5")
    free.write_text(
        "nodes = 1\nranks_per_node = 4\nreduce = 5e9\n[inner]\nlatency = 0\nbandwidth = inf\n"
    )
    command = ["simulate", "all_reduce,all_gather", "--cluster", str(free), "--algorithm", "ring"]
    assert main([*command, "-b", "1K", "-e", "4K", "-f", "2", "--output", run]) == 0
    capsys.readouterr()
    assert main(["fit", run]) == 0
    said = capsys.readouterr().out
    assert "not used: 3 rows, took no time" in said
    assert "nan" not in said


def test_a_bandwidth_without_end_is_warned_of(tmp_path, capsys):
    free, run = tmp_path / "free.toml", str(tmp_path / "run.h5")
    free.write_text(
        "nodes = 1\nranks_per_node = 4\nreduce = inf\n[inner]\nlatency = 1e-6\nbandwidth = inf\n"
    )
    command = ["simulate", "all_gather", "--cluster", str(free), "--algorithm", "ring"]
    assert main([*command, "-b", "1K", "-e", "4K", "-f", "2", "--output", run]) == 0
    capsys.readouterr()
    assert main(["fit", run]) == 0
    said = capsys.readouterr().out
    assert tomllib.loads(said)["inner"]["bandwidth"] == float("inf")
    assert "warning: bandwidth = inf is written for inner" in said


def test_channels_are_the_run_s_unless_given(simulated):
    run = choose(reader.read(simulated), None)
    network = stored_runs.described(run, None)
    for given, used in ((None, 1), (4, 4)):
        rows = stored_runs.usable(run, network, segment=None, channels=given)
        assert {row.tuning.channels for row in rows.measurements} == {used}


def test_a_segment_of_nothing_is_refused(simulated, capsys):
    assert main(["fit", str(simulated), "--segment", "0"]) == 2
    assert "nothing would move" in capsys.readouterr().err


def test_the_results_file_is_not_overwritten(simulated, tmp_path, capsys):
    before = simulated.read_bytes()
    assert main(["fit", str(simulated), "--output", str(simulated)]) == 2
    assert "ending in .toml" in capsys.readouterr().err
    alias = tmp_path / "run.toml"
    alias.symlink_to(simulated)
    assert main(["fit", str(simulated), "--output", str(alias)]) == 2
    assert "the results file itself" in capsys.readouterr().err
    assert simulated.read_bytes() == before


@pytest.mark.parametrize("name", ready())
def test_what_is_dumped_can_be_parsed(name):
    network = replace(load(name), description='"a" \\ \n \U000f0000 \udc80')
    wanted = replace(network, description=network.description.replace("\udc80", "\ufffd"))
    assert parse(dump(network), name, name) == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reduce = 1" + "0" * 400, "reduce is a huge integer; give bytes a second"),
        ("reduce = 1" + "0" * 5000, "is not TOML"),
        ("reduce = 1e-320", "reduce is 1e-320; give bytes a second"),
        ("reduce = 1\noverhead = 1" + "0" * 400, "overhead is a huge integer; give seconds"),
    ],
)
def test_numbers_that_cannot_be_reckoned_with_are_refused(given, said):
    with pytest.raises(ConfigurationError, match=said):
        parse(f"nodes = 1\nranks_per_node = 1\n{given}\n", "odd", "odd")


def test_nodes_without_end_are_refused():
    with pytest.raises(ConfigurationError, match="nodes is a huge integer; give an integer"):
        parse("nodes = 1" + "0" * 400 + "\nranks_per_node = 1\nreduce = 1\n", "odd", "odd")


def test_a_real_run(shared_job, tmp_path, capsys):
    file = tmp_path / "run.h5"
    command = ["perf", "all_reduce", "--algorithm", "ring", "-b", "1K", "-e", "1M", "-f", "8"]
    shared_job(2, "-m", "hpccomm", *command, "-n", "5", "--output", str(file))
    assert main(["fit", str(file)]) == 0
    said = capsys.readouterr().out
    assert "2 ranks, 2 a node; 8 of 8 rows used" in said
    assert "across" in said
    assert "unknown: the run has one node" in said
    table = tomllib.loads(said)
    assert table["inner"]["latency"] > 0
    Path(tmp_path / "mine.toml").write_text(said)
    assert load(str(tmp_path / "mine.toml")).ranks == 2


def test_rows_of_unknown_algorithms_are_not_used(shared_job, tmp_path, capsys):
    file = tmp_path / "run.h5"
    command = ["perf", "all_reduce", "--algorithm", "native", "-b", "1K", "-e", "1K", "-n", "2"]
    shared_job(2, "-m", "hpccomm", *command, "--output", str(file))
    assert main(["fit", str(file)]) == 2
    assert "of own algorithms" in capsys.readouterr().err


def test_one_rank_has_nothing_to_choose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCCOMM_BACKEND", "loopback")
    assert main(["tune"]) == 2
    assert "there is but one rank" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["magic"], "'magic' is not a collective"),
        (["--seconds", "0"], "is not a time"),
        (["--segments", "64K,0"], "nothing would move"),
        (["-b", "1M", "-e", "1K"], "give sizes that ascend"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, said, capsys):
    assert main(["tune", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x.h5", "--output", "y.h5"], "give one ending in .toml"),
        (["x.h5", "--blocks", "3"], "hpccomm fit has no flag --blocks; "),
        ([], "the following arguments are required: RUNS.h5"),
        (["none.h5"], "none.h5"),
        (["none.h5", "--channels", "0"], "an integer from 1"),
    ],
)
def test_what_does_not_fit_a_fit_is_refused(arguments, said, capsys):
    assert main(["fit", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_tune_does_not_fit(capsys):
    assert main(["tune", "--fit"]) == 2
    assert "hpccomm tune has no flag --fit; " in capsys.readouterr().err
