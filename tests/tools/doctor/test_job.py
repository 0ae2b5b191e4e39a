"""The doctor on a job: nodes side by side, MPI that fails, and the command line on this machine."""

import json
import sys
from typing import get_args

import pytest
from damage import called, output
from planted_trees import SOUND

from hpccomm.tools.doctor import job
from hpccomm.tools.doctor import rule as judge
from hpccomm.tools.doctor.rules import RULES

ALIKE = [rule for rule in RULES if rule.area == "alike"]


def nodes():
    """Trees of n0 to n3."""
    trees = {f"n{number}": json.loads(json.dumps(SOUND)) for number in range(4)}
    for number, tree in enumerate(trees.values()):
        tree["host"]["boot_id"] = f"boot {number}"
        tree["mpi"]["nodes"] = 4
        tree["slurm"]["variables"] = {}
    return trees


def faults(found):
    return {each.rule.id: each for each in found if each.status in ("warn", "fail")}


def test_equal_nodes_are_told_once_and_the_odd_one_by_name():
    trees = nodes()
    assert faults(judge.judge(trees, RULES)) == {}
    trees["n3"]["gpus"]["driver"] = "570.12"
    trees["n3"]["host"]["thp"] = "never"
    found = judge.judge(trees, RULES)
    assert set(faults(found)) == {"alike.driver", "alike.huge_pages", "host.huge_pages"}
    assert faults(found)["alike.driver"].evidence == ("3 of 4 nodes: 580.65.06; n3: 570.12",)
    assert faults(found)["host.huge_pages"].nodes == ("n3",)
    text = "\n".join([*judge.head(trees), *judge.lines(found, trees)])
    assert text.count("580.65.06 (n0, n1, n2)") == 1
    assert "host.huge_pages on 1 of 4 nodes (n3)" in text
    assert "remedy: echo madvise" in text
    assert text.endswith("\nin all   3 warnings"), text
    # Dicts are compared item by item, and a node without a fact is odd.
    trees = nodes()
    trees["n2"]["packages"]["mpi4py"] = "4.0.3"
    del trees["n1"]["packages"]["cupy-cuda12x"]
    del trees["n3"]["gpus"]["count"]
    found = faults(judge.judge(trees, ALIKE))
    assert found["alike.packages"].evidence == (
        "cupy-cuda12x: 3 of 4 nodes: 14.2.0; n1: none",
        "mpi4py: 3 of 4 nodes: 4.1.2; n2: 4.0.3",
    )
    assert found["alike.gpu_count"].evidence == ("3 of 4 nodes: 2; n3: none",)
    # Against a golden node, whatever differs does on all.
    golden = json.loads(json.dumps(SOUND))
    golden["host"]["kernel"] = "5.15.0-91-generic"
    found = judge.against(nodes(), golden, "golden.json", RULES)
    assert [(each.rule.id, each.evidence) for each in found if each.status == "warn"] == [
        ("against.kernel", (f"golden.json: 5.15.0-91-generic; {node}: 5.15.0-122-generic",))
        for node in nodes()
    ]


def test_what_was_not_looked_at_is_skipped_with_its_reason():
    tree = json.loads(json.dumps(SOUND))
    tree["kernel_log"] = {"unread": {"": "the log is closed"}}
    tree["limits"] = {"unread": {"memory": "no group is to be seen"}}
    del tree["ranks"]
    tree["unread"] = {"ranks": "MPI did not start"}
    reasons = {each.rule.id: each.reason for each in judge.judge({"n0": tree}, RULES)}
    expected = {
        "gpus.xid": "the log is closed",
        "limits.memory": "no group is to be seen",
        "limits.ports": "there is no limits.ports here",
        "host.clocks": "the job has one node",
        "mpi.cores": "MPI did not start",
    }
    assert reasons.items() >= expected.items()
    alone = {"ranks": [{"unread": {"peers": "the node has one rank"}}]}
    assert judge.missing(alone, "ranks.*.peers") == "the node has one rank"


def test_nodes_of_one_name_are_kept_apart():
    names = ["n", "m", "n", "n"]
    assert list(job.named([(name, {}) for name in names])) == ["n", "m", "n#2", "n#3"]


START = """
import json, os, sys, time
def say(**news): os.write(int(sys.argv[1]), (json.dumps(news) + '\\n').encode())
"""


@pytest.fixture
def child(monkeypatch):
    """Put a program in the place of the one that uses MPI: no MPI fails at will."""

    def put(program):
        monkeypatch.setattr(job, "PROGRAM", (sys.executable, "-c", START + program))  # see above

    return put


ALONE = "say(trees={'n0': {'mpi': {'started': True, 'world': 1}, 'ranks': []}})"


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("say(phase='MPI_Init'); print('no such component', flush=True); os.abort()", "MPI_Init was killed by SIGABRT; it printed: no such component"),
        ("say(phase='MPI_Init'); sys.exit(16)", "MPI_Init ended with status 16"),
        ("say(phase='MPI_Init'); time.sleep(60)", "MPI_Init did not come back within 0.5 s"),
        ("raise SystemExit('no module')", "the process ended with status 1; it printed: no module"),
        (f"{ALONE}; say(phase='MPI_Finalize'); os.abort()", "MPI_Finalize was killed by SIGABRT"),
    ],
)  # fmt: skip
def test_mpi_that_fails_is_a_finding(child, monkeypatch, program, failure):
    if "sleep" in program:
        monkeypatch.setattr(job, "PATIENCE", 0.5)  # nobody waits a minute
    child(program)
    trees = job.gather(["packages"])
    (tree,) = trees.values()
    assert tree["mpi"]["failure"] == failure
    if "trees" in program:
        assert tree["mpi"]["started"]
        return
    assert tree["packages"]["python"], "what needs no MPI is there"
    found = {each.rule.id: each for each in judge.judge(trees, RULES)}
    assert found["mpi.starts"].evidence == (failure,)
    assert found["mpi.threads"].reason == "MPI did not start"


def test_processes_that_do_not_see_each_other_are_said_not_to(child, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    child(f"{ALONE}; say(phase='')")
    (tree,) = job.gather([]).values()
    assert tree["unread"] == {"ranks": "the 2 processes of the job do not see each other"}
    assert "ranks" not in tree
    assert tree["nccl"]["unread"][""] == "NCCL's own diagnostics run with --nccl only"


def test_a_missing_library_is_a_finding(monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    status, printed, _ = called("doctor", "--only", "mpi")
    assert status == 1
    assert "FAIL     mpi.loads: Does mpi4py load an MPI library?" in printed
    assert "no MPI library can be loaded" in printed
    assert "unset MPI4PY_LIBMPI=/nowhere/libmpi.so" in " ".join(printed.split())
    assert "mpi4py loads no MPI library (mpi: starts, launch" in printed


def test_nccl_s_findings_are_translated(child):
    """Lines of NCCL's guide, Diagnostics and RAS."""
    child(f"""
assert os.environ['NCCL_RUN_DIAGNOSTICS'] == os.environ['NCCL_RUN_RAS_DIAGNOSTICS'] == '1'
assert sys.argv[3] == 'nccl'
{ALONE}; say(nccl=''); say(phase='')
print('n0:1 NCCL DIAG === NCCL Diagnostics ===')
print('n0:1 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across 8 ranks in comm 0x1')
print('n0:1 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification')
print('n0:1 NCCL DIAG [INFO] NCCL environment: mismatch in comm 0x1234 for NCCL_DEBUG')
print('n0:1 NCCL DIAG [INFO] NCCL environment: NCCL_DEBUG=INFO on rank(s) {{0,1,2,3}}')
print('n0:1 NCCL DIAG RAS diagnostics completed in 12.3 ms across 8 RAS peers')
""")
    only = "nccl.says_p2p,nccl.says_ecc,nccl.says_nvlink"
    printed = output("doctor", "--nccl", "--only", only)
    assert "WARN     nccl.says_p2p" in printed
    assert "only 52/56 GPU-to-GPU peer accesses passed verification" in printed
    assert "remedy: look at gpus.peers, gpus.xid and the links" in printed
    assert "ok       nccl: says_ecc" in printed
    assert "(nccl: says_nvlink)" in printed
    (tree,) = job.gather([], nccl=True).values()
    assert tree["nccl"]["says"]["NCCL environment"][1] == "NCCL_DEBUG=INFO on rank(s) {0,1,2,3}"
    for said, reason in (("CuPy is not installed", "CuPy is not installed"), ("", "from 2.31 on")):
        child(f"{ALONE}; say(nccl={said!r}); print('NCCL version 2.28.3')")
        (tree,) = job.gather([], nccl=True).values()
        assert tree["nccl"]["unread"][""].endswith(reason)


@pytest.mark.slow("a job of its own, with a process beside each rank, and MPI once more")
def test_every_rank_is_looked_at_and_a_later_look_is_compared(mpiexec, tmp_path):
    done = mpiexec(2, "-m", "hpccomm", "doctor", "--json")
    saved = done.stdout[done.stdout.index("{") :]
    document = json.loads(saved)
    ((name, tree),) = document["nodes"].items()
    assert [each["rank"] for each in tree["ranks"]] == [0, 1]
    assert tree["mpi"]["world"] == tree["mpi"]["launched"] == 2
    assert tree["ranks"][0]["libraries"]["libmpi"]
    statuses = {each["id"]: each["status"] for each in document["diagnoses"]}
    assert set(statuses.values()) <= set(get_args(judge.Status))
    assert statuses["mpi.launch"] == "ok"
    assert statuses["limits.peers_memory"] in ("ok", "warn")
    kernel = tree["host"]["kernel"]
    file = tmp_path / "golden.json"
    file.write_text(saved.replace(kernel, "4.18.0"))
    printed = called("doctor", "--only", "alike", "--against", file)[1]
    assert "against.kernel" in printed
    assert f"golden.json: 4.18.0; {name}: {kernel}" in printed


def test_the_command_line_lists_rules_and_says_what_is_wrong_with_it(tmp_path):
    listed = output("doctor", "--list", "--only", "limits.memlock,nccl").splitlines()
    nccl = [rule.id for rule in RULES if rule.area == "nccl"]
    assert [line.split()[0] for line in listed] == ["limits.memlock", *nccl]
    (tmp_path / "empty.json").write_text("{}")
    refused = called("doctor", "--against", tmp_path / "empty.json")[2]
    assert "hpccomm doctor --json has written" in refused
