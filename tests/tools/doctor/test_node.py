"""Connections in a node against published matrices of ``nvidia-smi topo``; text, picture, JSON.

published/ has what the doctor's sources read of nodes whose PCI tree and matrix were published, and says where.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from alone import python

from hpccomm.schedules.cost.network import load, parse
from hpccomm.tools.doctor import topo
from hpccomm.tools.doctor.hardware import Component, NodeHardware, NumaDomain, hardware

PUBLISHED = {
    path.stem: json.loads(path.read_text())
    for path in (Path(__file__).parent / "published").glob("*.json")
}


def node_of(name):
    return hardware(name, PUBLISHED[name]["facts"])


@pytest.fixture(scope="module")
def dgx():
    return node_of("dgx_a100")


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_matrix_is_that_of_nvidia_smi(name):
    node = node_of(name)
    rows = zip(node.components, node.matrix(), strict=True)
    found = [" ".join([part.name, *letters]) for part, letters in rows]
    assert found == PUBLISHED[name]["matrix"]
    if name == "vm_two":
        assert [each.domain for each in node.components] == [None, None]
    if name == "board":
        lines = [line.strip() for line in topo.node_lines(node)]
        assert any(line.startswith("not known: NVLink: ") for line in lines)


def test_text_picture_and_json_name_all(dgx):
    text = "\n".join(topo.node_lines(dgx, ["n1", "n2"]))
    assert text.startswith("n1, n2: 2 sockets, 8 NUMA nodes, 256 cores, 256 CPUs, 3 GPUs, 3 NICs\n")
    assert "NUMA 3: socket 0, CPUs 48-63,176-191, 62 GiB; GPU0, GPU1, mlx5_0" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "GPU0 X NV12 NV12 PXB SYS SYS 48-63,176-191 3" in rows
    legend = re.findall(r"^  (\S+) += ", text, re.MULTILINE)
    assert legend == ["X", "NV#", "PIX", "PXB", "SYS"]  # no PHB, no NODE
    assert "GPU0: 0000:07:00.0, NVIDIA A100-SXM4-40GB, PCIe 4 x16, 12 NVLinks to switches" in text
    assert "mlx5_0: 0000:0c:00.0, InfiniBand NDR ACTIVE, PCIe 4 x16, 400 Gb/s" in text
    svg = topo.draw(dgx)
    assert all(f">{each.name}<" in svg for each in dgx.components)
    assert "NUMA 7: socket 1, CPUs 112-127,240-255" in svg
    assert "12 NVLinks to switches" in svg
    svg = topo.draw(node_of("dgx2"))  # a bridge that leads to one component is not drawn
    assert all(f"{each}<" in svg for each in (">host bridge pci0000:b2", ">bridge 0000:32:00.0"))
    assert svg.count(">bridge ") == 4
    ranks = bound(dgx, (0, "16-31"), (1, "0-15"))
    document = json.loads(json.dumps(topo.document({"n0": dgx}, ranks)))
    (found,), (_, rank) = document["nodes"], document["ranks"]
    assert found["matrix"] == [row.split()[1:] for row in PUBLISHED["dgx_a100"]["matrix"]]
    assert found["components"][0]["path"][0] == "pci0000:00"
    assert (rank["gpu"], rank["nic"], rank["domains"]) == ("GPU1", "mlx5_0", [0])


def test_functions_of_virtual_adapters_are_left_out():
    facts = json.loads(json.dumps(PUBLISHED["dgx_a100"]["facts"]))
    facts["pci"]["devices"] = [each | {"virtual": True} for each in facts["pci"]["devices"]]
    assert not hardware("n0", facts).of_kind("nic")


def test_links_between_gpus_of_one_column_are_drawn():
    gpus = [Component(f"GPU{at}", "gpu", "", (f"pci{at}", "07:00.0"), at) for at in (0, 1)]
    domains = NumaDomain(0, (0,)), NumaDomain(1, (1,))
    links = {"GPU0": {"GPU1": 2}, "GPU1": {"GPU0": 2}}
    assert topo.draw(NodeHardware("n1", domains, tuple(gpus), links)).count(" Q ") == 1


def bound(node, *cores):
    """The ranks of a node, each from its number and its cores."""
    ranks = [{"rank": rank, "cores": listed} for rank, listed in cores]
    return topo.bound_ranks({"n0": {"ranks": ranks}}, {"n0": node})


def test_ranks_far_from_their_gpu_get_a_better_binding(dgx):
    nodes = {"n0": dgx}
    ranks = bound(dgx, (0, "48-63"), (1, "0-15"), (2, "0-127"))
    lines = list(topo.binding_lines(ranks, nodes))
    assert lines[0].endswith("CPUs 48-63 (NUMA 3); GPU0 beside them; mlx5_0 beside them")
    assert "GPU1 far (NUMA 3, distance 32)" in lines[1]
    assert "GPU2 beside some of them (NUMA 1)" in lines[2]
    mpiexec, srun = list(topo.better(ranks, nodes))[1:]
    assert srun.endswith("--ntasks-per-node=3 --cpu-bind=map_ldom:3,3,1 PROGRAM")
    assert "set -- 48-63,176-191 48-63,176-191 16-31,144-159;" in mpiexec
    (line,) = topo.better(bound(dgx, (0, "48-49"), (1, "50-51"), (2, "16-17")), nodes)
    assert line == "Binding: each rank runs in the NUMA node nearest to its GPU."
    # What a rank sees decides its GPU.
    assert topo.gpu_of(dgx, 0, "2,0").name == "GPU2"
    assert topo.gpu_of(dgx, 4).name == "GPU1"
    assert ranks[2].nic.name in ("mlx5_0", "mlx5_4", "mlx5_5")
    # Without GPUs, ranks are spread over the NUMA nodes.
    node = node_of("adapter")
    assert topo.wanted(4, node) == [0, 0, 1, 1]
    told, *_ = topo.better(bound(node, (0, "0")), {"n0": node})
    assert told == "Binding: each rank runs in the NUMA node of its turn."


def test_ranks_are_read_from_the_facts_of_their_nodes(dgx):
    trees = {
        "n1": {"ranks": [{"rank": 2, "cores": "4-5", "variables": {"CUDA_VISIBLE_DEVICES": "1"}}]},
        "n0": {"ranks": [{"rank": 0, "cores": "0-1"}, {"rank": 1, "cores": "2-3"}]},
        "n2": {},
    }
    found = topo.bound_ranks(trees, dict.fromkeys(trees, dgx))
    assert [(*each[:6], each.gpu.name) for each in found] == [
        (0, 0, "n0", (0, 1), "", [0], "GPU0"),
        (1, 1, "n0", (2, 3), "", [0], "GPU1"),
        (2, 0, "n1", (4, 5), "1", [0], "GPU1"),
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_the_line_for_mpiexec_binds_each_rank(number):
    """The shell's part of it, run here as a rank: it takes its own list of CPUs, and the other's is none."""
    domains = NumaDomain(0, (min(os.sched_getaffinity(0)),)), NumaDomain(1, (10_000,))
    mpiexec, _ = topo.commands(2, [number, 1 - number], NodeHardware("n1", domains, ()))
    script = re.search(r"sh -c '(.*)'", mpiexec)[1].replace("PROGRAM", "nproc")
    for variable in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        environment = {"PATH": os.environ["PATH"], variable: str(number)}
        ran = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, check=True)
        assert ran.stdout == b"1\n"


def test_a_cluster_of_such_nodes_is_what_simulate_reads(dgx):
    network = parse(topo.described(dgx, 4, 3), "mine", "mine")
    assert (network.nodes, network.ranks_per_node) == (4, 3)
    assert network.inner.bandwidth == pytest.approx(12 * 25e9 * 0.8)
    assert network.across.bandwidth == pytest.approx(50e9 * 0.98)
    assert network.across.ports == 3
    assert network.inner.latency == load("typical_gpus").inner.latency
    assert "bandwidth inside and between nodes of its hardware" in network.description
    one = parse(topo.described(dgx, 1, 3), "mine", "mine")
    assert one.resized(30).nodes == 10  # the connection between nodes stands in it


def test_alone_it_starts_no_mpi(tmp_path):
    script = (
        "import sys; from hpccomm.tools.main import main; status = main(['topo', '--cluster', "
        f"{str(tmp_path / 'c.toml')!r}]); print('mpi4py.MPI' in sys.modules, status)"
    )
    ran = python("-c", script, check=True)
    assert ran.stdout.splitlines()[-1] == "False 0"
    assert load(str(tmp_path / "c.toml")).nodes == 1


@pytest.mark.thorough
@pytest.mark.slow("starts two ranks, and MPI beside each")
def test_under_mpiexec_each_rank_says_where_it_runs(mpiexec):
    done = mpiexec(2, "-m", "hpccomm", "topo", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["nodes"]) == 1
    assert [each["local_rank"] for each in document["ranks"]] == [0, 1]
    assert all(each["cpus"] and each["domains"] for each in document["ranks"])
