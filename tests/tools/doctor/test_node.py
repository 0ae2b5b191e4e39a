"""Connections in a node against published matrices of ``nvidia-smi topo``; text, picture, JSON."""

import json
import os
import re
import subprocess

import pytest
from alone import python
from published_nodes import (
    BOARD,
    BOARD_MATRIX,
    DGX2,
    DGX2_MATRIX,
    DGX_A100,
    DGX_A100_CPUS,
    DGX_A100_MATRIX,
    matrix,
    planted,
)  # fmt: skip

from hpccomm.schedules.cost.network import load, parse
from hpccomm.tools.doctor import job, topo
from hpccomm.tools.doctor.hardware import SOURCES, NodeHardware, NumaDomain, hardware
from hpccomm.tools.doctor.sources import network

TWO = ["0-23,48-71", "24-47,72-95"]
NVLINK = {
    "gpus": [
        {
            "name": "NVIDIA A100-SXM4-40GB",
            "pci": f"0000:{bus}:00.0",
            "links": [
                {"link": at, "up": True, "to": f"0000:c{4 + at // 2}:00.0"} for at in range(12)
            ],
        }
        for bus in ("07", "0f", "47")
    ]
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(network.time, "sleep", lambda seconds: None)


def dgx_a100(root):
    tree = job.of_node(SOURCES, planted(root, DGX_A100, DGX_A100_CPUS))
    return hardware("dgx", tree | {"nvlink": NVLINK})


@pytest.mark.parametrize(
    ("parts", "nodes", "nvlink", "expected"),
    [
        (DGX2, TWO, {}, DGX2_MATRIX),
        (DGX_A100, DGX_A100_CPUS, NVLINK, DGX_A100_MATRIX),
        (BOARD, ["0-63"], {}, BOARD_MATRIX),
    ],
    ids=["DGX-2", "DGX A100", "board"],
)
def test_the_matrix_is_that_of_nvidia_smi(tmp_path, parts, nodes, nvlink, expected):
    tree = job.of_node(SOURCES, planted(tmp_path, parts, nodes))
    node = hardware("n1", tree | {"nvlink": nvlink})
    names, letters = matrix(expected)
    assert [each.name for each in node.components] == names
    assert node.matrix() == letters


def test_a_virtual_machine_hides_its_numa_nodes(tmp_path):
    parts = {"GPU0": ("0000:00/00:04.0", -1), "GPU1": ("0001:00/00:05.0", -1)}
    one = hardware("vm", job.of_node(SOURCES, planted(tmp_path / "one", parts, ["0-7"])))
    assert one.matrix()[0] == ["X", "NODE"]  # there is one node
    two = hardware("vm", job.of_node(SOURCES, planted(tmp_path / "two", parts, TWO)))
    assert two.matrix()[0] == ["X", "SYS"]
    assert [each.domain for each in two.components] == [None, None]


def test_direct_links_are_counted_and_those_that_are_down_are_not(tmp_path):
    tree = job.of_node(SOURCES, planted(tmp_path, BOARD, ["0-63"]))
    pair = ("0000:01:00.0", "0000:02:00.0")
    links = [[{"link": at, "up": at != 2, "to": other} for at in range(4)] for other in pair[::-1]]
    gpus = [
        {"name": "RTX 3090", "pci": own, "links": up} for own, up in zip(pair, links, strict=True)
    ]
    node = hardware("n1", tree | {"nvlink": {"gpus": gpus}})
    assert node.matrix()[0] == ["X", "NV3"]


def test_the_text_names_all_and_explains_the_letters(tmp_path):
    node = dgx_a100(tmp_path)
    text = "\n".join(topo.node_lines(node, ["n1", "n2"]))
    assert text.startswith("n1, n2: 2 sockets, 8 NUMA nodes, 256 cores, 256 CPUs, 3 GPUs, 3 NICs\n")
    assert "NUMA 3: socket 0, CPUs 48-63,176-191, 62 GiB; GPU0, GPU1, mlx5_0" in text
    row = next(line for line in text.splitlines() if line.startswith("  GPU0 ") and "NV12" in line)
    assert row.split() == [
        *["GPU0", "X", "NV12", "NV12", "PXB", "SYS", "SYS", "48-63,176-191", "3"]
    ]
    legend = re.findall(r"^  (\S+) += ", text, re.MULTILINE)
    assert legend == ["X", "NV#", "PIX", "PXB", "SYS"]  # no PHB, no NODE
    assert "GPU0: 0000:07:00.0, NVIDIA A100-SXM4-40GB, PCIe 4 x16, 12 NVLinks to switches" in text
    assert "mlx5_0: 0000:0c:00.0, InfiniBand NDR ACTIVE, PCIe 4 x16, 400 Gb/s" in text


def test_without_nvml_the_text_says_that_nvlink_is_not_known(tmp_path):
    node = hardware("n1", job.of_node(SOURCES, planted(tmp_path, BOARD, ["0-63"])))
    assert any(line.strip().startswith("not known: NVLink: ") for line in topo.node_lines(node))


def bound(rank, cpus, visible=""):
    return topo.BoundRank(rank, rank, "dgx", tuple(cpus), visible)


def test_ranks_far_from_their_gpu_get_a_better_binding(tmp_path):
    node = dgx_a100(tmp_path)
    ranks = [bound(0, range(48, 64)), bound(1, range(16)), bound(2, range(128))]
    lines = list(topo.binding_lines(ranks, {"dgx": node}))
    assert lines[0].endswith("CPUs 48-63 (NUMA 3); GPU0 beside them; mlx5_0 beside them")
    assert "GPU1 far (NUMA 3, distance 32)" in lines[1]
    assert "GPU2 beside some of them (NUMA 1)" in lines[2]
    mpiexec, srun = list(topo.better(ranks, {"dgx": node}))[1:]
    assert srun.endswith("--ntasks-per-node=3 --cpu-bind=map_ldom:3,3,1 PROGRAM")
    assert "set -- 48-63,176-191 48-63,176-191 16-31,144-159;" in mpiexec
    well = [bound(0, range(48, 50)), bound(1, range(50, 52)), bound(2, range(16, 18))]
    (line,) = topo.better(well, {"dgx": node})
    assert line == "Binding: each rank runs in the NUMA node nearest to its GPU."


def test_ranks_are_read_from_the_facts_of_their_nodes():
    trees = {
        "n1": {"ranks": [{"rank": 2, "cores": "4-5", "variables": {"CUDA_VISIBLE_DEVICES": "1"}}]},
        "n0": {"ranks": [{"rank": 0, "cores": "0-1"}, {"rank": 1, "cores": "2-3"}]},
        "n2": {},
    }
    assert [(each.host, each.local_rank, each.cpus) for each in topo.bound_ranks(trees)] == [
        ("n0", 0, (0, 1)),
        ("n0", 1, (2, 3)),
        ("n1", 0, (4, 5)),
    ]
    assert topo.bound_ranks(trees)[2].visible == "1"


def test_what_a_rank_sees_decides_its_gpu(tmp_path):
    node = dgx_a100(tmp_path)
    assert topo.gpu_of(bound(0, [0], visible="2,0"), node).name == "GPU2"
    assert topo.gpu_of(bound(4, [0]), node).name == "GPU1"
    assert topo.nic_of(bound(2, [0]), node).name in ("mlx5_0", "mlx5_4", "mlx5_5")


def test_ranks_without_gpus_are_spread_over_the_numa_nodes(tmp_path):
    nic = {"mlx5_0": DGX2["mlx5_0"]}
    node = hardware("n1", job.of_node(SOURCES, planted(tmp_path, nic, TWO)))
    assert topo.wanted(4, node) == [0, 0, 1, 1]
    told, *_ = topo.better([bound(0, [0])._replace(host="n1")], {"n1": node})
    assert told == "Binding: each rank runs in the NUMA node of its turn."


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
@pytest.mark.parametrize("number", [0, 1])
def test_the_line_for_mpiexec_binds_each_rank(variable, number):
    """The shell's part of it, run here as a rank: it takes its own list of CPUs, and the other's is none."""
    own = (min(os.sched_getaffinity(0)),)
    node = NodeHardware("n1", (NumaDomain(0, own), NumaDomain(1, (10_000,))), ())
    homes = [0, 1] if number == 0 else [1, 0]
    mpiexec, _ = topo.commands(2, homes, node)
    script = re.search(r"sh -c '(.*)'", mpiexec)[1].replace("PROGRAM", "nproc")
    environment = {"PATH": os.environ["PATH"], variable: str(number)}
    ran = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, check=True)
    assert ran.stdout == b"1\n"


def test_a_cluster_of_such_nodes_is_what_simulate_reads(tmp_path):
    node = dgx_a100(tmp_path)
    network = parse(topo.described(node, 4, 3), "mine", "mine")
    assert (network.nodes, network.ranks_per_node) == (4, 3)
    assert network.inner.bandwidth == pytest.approx(12 * 25e9 * 0.8)
    assert network.across.bandwidth == pytest.approx(50e9 * 0.98)
    assert network.across.ports == 3
    typical = load("typical_gpus")
    assert network.inner.latency == typical.inner.latency
    assert "bandwidth inside and between nodes of its hardware" in network.description
    one = parse(topo.described(node, 1, 3), "mine", "mine")
    assert one.resized(30).nodes == 10  # the connection between nodes stands in it


def test_the_picture_has_each_part_in_its_numa_node(tmp_path):
    node = dgx_a100(tmp_path)
    svg = topo.draw(node)
    for each in node.components:
        assert f">{each.name}<" in svg
    assert "12 NVLinks to switches" in svg
    assert "NUMA 7: CPUs 112-127,240-255" in svg


def test_json_holds_it_all(tmp_path):
    node = dgx_a100(tmp_path)
    document = topo.document({"dgx": node}, [bound(1, range(16))])
    (found,) = json.loads(json.dumps(document))["nodes"]
    assert found["matrix"] == matrix(DGX_A100_MATRIX)[1]
    assert found["components"][0]["path"][0] == "pci0000:00"
    (rank,) = document["ranks"]
    assert (rank["gpu"], rank["nic"], rank["domains"]) == ("GPU1", "mlx5_0", [0])


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
