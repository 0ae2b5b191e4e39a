"""Descriptions of networks: accepted ones, refused ones, and the ready ones."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpccomm.errors import ConfigurationError, UsageError
from hpccomm.schedules.cost.network import Level, Network, dump, load, parse, ready

PAIRS = """
nodes = 4
ranks_per_node = 2
reduce = 5e9
[inner]
latency = 1e-6
bandwidth = 4e9
[across]
latency = 5e-5
bandwidth = 117700000
"""


def read(text):
    return parse(text, "pairs", "pairs.toml")


def test_what_is_left_out_has_its_default(tmp_path):
    file = tmp_path / "pairs.toml"
    file.write_text(PAIRS)
    inner = Level(1e-6, 4e9, ports=2)
    across = Level(5e-5, 117.7e6, 2, "full", 0.0, math.inf, math.inf)
    assert load(str(file)) == read(PAIRS) == Network("pairs", 8, 2, 5e9, inner, across, math.inf)


@pytest.mark.parametrize("name", ready())
def test_ready_networks_are_read_and_come_back_from_their_text(name):
    network = load(name)
    assert network.name == name
    assert network.description
    assert parse(dump(network), name, name) == network


def test_the_ready_ones_are_those_that_are_named():
    names = "ethernet100 ib400x32 lab1g nvlink8 pcie8 typical typical_gpus"
    assert " ".join(ready()) == names
    assert (load("nvlink8").ranks, load("nvlink8").across) == (8, None)
    ib = load("ib400x32")
    assert (ib.nodes, ib.ranks_per_node, ib.across.ports) == (32, 8, 8)


def test_a_name_that_is_nothing_lists_the_ready_ones(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'ib400' is not a ready network.*nvlink8.*TOML"):
        load("ib400")
    with pytest.raises(ConfigurationError, match="directory"):
        load(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not text"):
        load(str(tmp_path / "binary"))


REFUSED = Path(__file__).with_name("refused_networks.txt").read_text().splitlines()


@pytest.mark.parametrize("line", [line for line in REFUSED if " | " in line])
def test_what_does_not_fit_is_said(line):
    old, new, said = (each.strip() for each in line.replace("{zeros}", "0" * 420).split("|"))
    assert old in PAIRS
    with pytest.raises(ConfigurationError) as caught:
        read(PAIRS.replace(old, new.replace("; ", "\n"), 1))
    assert "pairs.toml" in str(caught.value)
    assert said in str(caught.value)


def test_levels_that_are_missing_are_named():
    without_across = PAIRS[: PAIRS.index("[across]")]
    with pytest.raises(ConfigurationError, match=r"several nodes .* add a table \[across\]"):
        read(without_across)
    assert read(without_across.replace("nodes = 4", "nodes = 1")).across is None
    with pytest.raises(ConfigurationError, match=r"several ranks .* add a table \[inner\]"):
        read("nodes = 1\nranks_per_node = 2\nreduce = 1")
    with pytest.raises(ConfigurationError, match="inner is 3; make it a table"):
        read("nodes = 1\nranks_per_node = 2\nreduce = 1\ninner = 3")


def test_resizing_changes_the_number_of_nodes():
    network = read(PAIRS)
    assert network.resized(5).nodes == 3
    assert network.resized(5).topology().node_of == (0, 0, 1, 1, 2)
    assert network.node(np.arange(5)).tolist() == [0, 0, 1, 1, 2]
    assert network.resized(1).nodes == 1
    assert load("nvlink8").resized(3).ranks == 3
    with pytest.raises(UsageError, match=r"nvlink8 is one node of 8 ranks, and 9 were asked for"):
        load("nvlink8").resized(9)
    with pytest.raises(UsageError, match="at least 1"):
        network.resized(0)


def test_any_text_of_a_description_comes_back():
    network = replace(load("lab1g"), description='"a" \\ ü \n \U000f0000 \udc80')
    wanted = replace(network, description=network.description.replace("\udc80", "\ufffd"))
    assert parse(dump(network), "lab1g", "odd") == wanted
