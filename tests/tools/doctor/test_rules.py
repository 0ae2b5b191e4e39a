"""Each rule fires on a planted tree, and does not on the same tree without the fault.

The trees are data: see tests/helpers/planted_trees. A rule that compares nodes gets the sound tree on one, and the
fault on the other; where any other value is one, `ODD` has it.
"""

import json

import pytest
from planted_trees import FAULTS as PLANTED
from planted_trees import HEALTHY, SOUND

from hpccomm.tools.doctor import rule as judge
from hpccomm.tools.doctor.rules import RULES

OTHER = {"host.boot_id": "9b0d3f0e-0000-4000-8000-000000000002"}
"""What a sound second node has otherwise."""
ODD = {
    rule.id: ({}, {rule.reads[0].rstrip("?").replace("*", "0"): "another"})
    for rule in RULES
    if rule.id.startswith("alike.")
}
"""Another value of what must be equal on all nodes, which the sound nodes have."""
FAULTS = ODD | PLANTED
BY_ID = {rule.id: rule for rule in RULES}


def planted(tree, facts):
    """A copy of a tree with other facts; a number leads into a list."""
    tree = json.loads(json.dumps(tree))  # nothing is shared
    for path, value in facts.items():
        *folders, last = path.split(".")
        into = tree
        for folder in folders:
            into = into[int(folder)] if isinstance(into, list) else into.setdefault(folder, {})
        into[int(last) if isinstance(into, list) else last] = value
    return tree


def judged(rule, tree, other):
    trees = {"n0": tree, "n1": other} if rule.over == "nodes" else {"n1": other}
    (found,) = judge.judge(trees, [rule])
    return found


@pytest.mark.parametrize("rule", RULES, ids=BY_ID)
def test_a_rule_fires_on_its_fault_alone(rule, monkeypatch):
    monkeypatch.delenv("HPCCOMM_BUSY")  # users have the default
    assert rule.id in FAULTS, f"{rule.id} has no fault in tests/helpers/planted_trees"
    both, fault = FAULTS[rule.id]
    sound = planted(SOUND, both)
    other = planted(sound, OTHER)
    well = judged(rule, sound, other)
    assert well.status == "ok", well
    ill = judged(rule, sound, planted(other, fault))
    assert ill.status == rule.severity, ill
    assert all(sentence and "None" not in sentence for sentence in ill.evidence)


def test_each_fault_has_a_rule_and_each_rule_its_words():
    assert set(FAULTS) == set(BY_ID)
    assert len(BY_ID) == len(RULES)
    for rule in RULES:
        assert rule.question.endswith("?"), rule.id
        assert rule.remedy, rule.id
        assert rule.reads, rule.id
        assert rule.severity in ("note", "warn", "fail")


TRANSPORTS = {
    "OMPI_MCA_btl=^sm": ("Open MPI", True),
    "OMPI_MCA_btl=^ofi": ("Open MPI", False),
    "OMPI_MCA_btl=self,sm": ("Open MPI", False),
    "UCX_TLS=tcp": ("Open MPI", False),  # ob1 does not read it
    "OMPI_MCA_pml=ucx UCX_TLS=rc_x,self": ("Open MPI", True),
    "OMPI_MCA_pml=ucx UCX_TLS=rc,shm": ("Open MPI", False),
    "I_MPI_FABRICS=ofi": ("Intel MPI", True),
    "I_MPI_FABRICS=shm:ofi": ("Intel MPI", False),
    "MPICH=x": ("MPICH", False),
}
"""What Open MPI's, UCX's and Intel MPI's guides say of these variables."""


def test_a_list_of_transports_is_read_as_the_library_reads_it():
    for setting, (vendor, fires) in TRANSPORTS.items():
        variables = dict(each.split("=", 1) for each in setting.split())
        tree = planted(SOUND, {"mpi.vendor": vendor, "ranks.0.variables": variables})
        found = judged(BY_ID["mpi.shared_memory"], SOUND, tree)
        assert (found.status == "warn") is fires, setting


def test_a_process_alone_in_a_batch_job_is_not_the_job():
    one = {"mpi.launcher": None, "mpi.launched": 1, "mpi.world": 1}
    for rule in ("slurm.tasks", "slurm.nodes", "slurm.components"):
        assert judged(BY_ID[rule], SOUND, planted(SOUND, FAULTS[rule][1] | one)).status == "ok"


def test_what_stock_systems_have_is_no_warning_to_a_process_alone():
    stock = {
        "host.numa_balancing": 1,
        "limits.ptrace_scope": 1,
        "limits.shared_memory": {"bytes": 64 << 20, "free": 64 << 20},
    }
    alone = planted(SOUND, stock)
    alone["ranks"] = [{"rank": 0}]
    of = ["host.numa_balancing", "limits.ptrace_scope", "limits.shared_memory"]
    found = judge.judge({"n0": alone}, [BY_ID[rule] for rule in of])
    assert [each.status for each in found] == ["note", "ok", "ok"]
    assert "NOTE     host.numa_balancing" in "\n".join(judge.lines(found, {"n0": alone}))


def test_a_healthy_node_gets_no_warning():
    for facts, rules in HEALTHY.values():
        other = planted(planted(SOUND, OTHER), facts)
        for rule in rules.split():
            found = judged(BY_ID[rule], SOUND, other)
            assert found.status == "ok", found


def test_a_gpu_that_is_missing_from_the_whole_node_is_named():
    whole = {"gpus.count": 0, "slurm.variables": {}}
    found = judged(BY_ID["gpus.seen"], SOUND, planted(SOUND, whole))
    assert found.evidence == ("1 GPU on the bus, and the driver shows 0",)


def test_a_link_that_went_and_came_is_not_called_a_lost_packet():
    fault = {"network.devices.0.rising": {"carrier_changes": 2}}
    found = judged(BY_ID["network.losses"], SOUND, planted(SOUND, fault))
    said = "eno1 lost packets or its link while it was watched: carrier_changes +2"
    assert found.evidence == (said,)
