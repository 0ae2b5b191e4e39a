"""Which runs can be compared, and what else differs between them."""

from dataclasses import replace

from appending import example_info

from hpccomm.results.facts import circumstances, differences, fingerprint
from hpccomm.tools.perf.facts import together


def test_another_processor_or_placement_is_another_machine_and_another_version_is_not():
    one = replace(example_info(), machine={"processor": "a", "kernel": "Linux 6"})
    assert fingerprint(one)["ranks of nodes"] == "2 x 2"
    assert not differences(one, one)
    assert differences(one, replace(one, machine={"processor": "b"})) == ["processor: a and b"]
    assert not differences(one, replace(one, machine={}))  # an older run, which does not say
    spread = tuple(replace(rank, node=rank.rank) for rank in one.ranks)
    assert differences(one, replace(one, ranks=spread)) == ["ranks of nodes: 2 x 2 and 4 x 1"]
    newer = replace(one, versions={**one.versions, "nccl": "2.33"}, environment={})
    assert not differences(one, newer)
    assert circumstances(one, newer) == [
        "version of nccl: 2.32.3 and 2.33",
        "NCCL_DEBUG: INFO and not set",
    ]


def test_facts_of_nodes_that_differ_say_how_many_are_which():
    nodes = {0: {"cores": "64"}, 1: {"cores": "64", "fabric": "mlx5_0"}, 2: {"cores": "128"}}
    assert together(nodes) == {
        "cores": "64 on 2 nodes; 128 on 1 node",
        "fabric": "unknown on 2 nodes; mlx5_0 on 1 node",
    }
