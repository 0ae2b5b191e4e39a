"""NCCL's and RCCL's topologies and graphs: excerpts of published ones, each of which names its source."""

import re
from pathlib import Path

import pytest
from damage import called, output

from hpccomm.errors import UsageError
from hpccomm.tools.doctor import topo
from hpccomm.tools.doctor.hardware import read_graphs, read_topology

FILES = Path(__file__).parent / "nccl"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # As nvidia-smi topo -m has it there: NVIDIA/DCGM issue 149.
        ("dgx_a100.xml", {"GPU0 GPU1": "NV12", "GPU0 mlx5_0": "PXB", "GPU1 mlx5_0": "PXB", "GPU0 mlx5_4": "SYS", "mlx5_4 mlx5_5": "PIX"}),
        # A file for virtual machines has parts without names.
        ("ndv4.xml", {"GPU0 NIC0": "PIX", "GPU1 NIC1": "PIX", "GPU0 GPU1": "SYS"}),
        # An interface without PCI; NCCL has no letters for NODE.
        ("dgx1.xml", {"GPU0 GPU1": "NV1", "GPU1 GPU2": "NV2", "GPU0 bond0": "PHB"}),
        # Links whose other end is not there.
        ("mi100.xml", {"GPU0 GPU2": "XGMI", "GPU2 mlx5_0": "SYS"}),
        # Links whose speed is hidden.
        ("t4.xml", {"GPU0 mlx5_0": "PIX", "GPU0 GPU4": "PHB"}),
    ],
)  # fmt: skip
def test_the_letters_between_components(name, expected):
    node = read_topology(FILES / name)
    parts = {each.name: each for each in node.components}
    found = {pair: node.between(*(parts[each] for each in pair.split())) for pair in expected}
    assert found == expected
    if name == "dgx_a100.xml":
        assert [domain.number for domain in node.domains] == [0, 3]
        assert node.domains[1].cpus == (*range(48, 64), *range(176, 192))
        nic = parts["mlx5_5"]
        assert (nic.rate, nic.lanes, nic.domain) == (100.0, "PCIe 4 x16", 0)
        assert "bandwidth = 240000000000.0" in topo.described(node, 2, 2)
    if name in ("dgx1.xml", "mi100.xml"):  # 2 NVLinks of 25 GB/s, 1 link of 50 GB/s
        assert topo.inside(node) == pytest.approx(0.8 * 50e9)
    if name == "t4.xml":
        assert {each.lanes for each in node.components} == {""}


def test_two_ports_of_one_name_are_told_apart(tmp_path):
    lines = (FILES / "t4.xml").read_text().splitlines()
    lines = [line for each in lines for line in [each] * (1 + ("<net " in each))]
    (tmp_path / "t.xml").write_text("\n".join(lines))
    names = [each.name for each in read_topology(tmp_path / "t.xml").components]
    assert sorted(names) == ["GPU0", "GPU4", "mlx5_0", "mlx5_0.2"]


def test_rings_and_trees_are_told_by_what_enters_and_leaves_them():
    """Those without channels are left out; rings of one node are closed, and trees are not."""
    for file in FILES.glob("*_graph.xml"):
        told = "\n".join([*topo.graph_lines(read_graphs(file)), ""])
        assert told == file.with_suffix(".txt").read_text()


def test_each_is_drawn():
    for file in FILES.glob("*.xml"):
        graph = file.name.endswith("_graph.xml")
        svg = topo.draw_graphs(read_graphs(file)) if graph else topo.draw(read_topology(file))
        assert ">GPU" in svg


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<graphs/>", "has <graphs> at its top, where <system> is expected; --nccl-graph reads it"),
        ("<html/>", "give a file that NCCL wrote (NCCL_TOPO_DUMP_FILE=FILE)"),
        ("NCCL INFO", "cannot be read: syntax error"),
        ('<system><cpu numaid="?"/></system>', "invalid literal for int"),
        (None, "No such file"),
    ],
)
def test_another_file_is_refused(tmp_path, text, complaint):
    file = tmp_path / "t.xml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(complaint)):
        read_topology(file)


def test_the_verb_shows_and_draws_them(tmp_path):
    drawn = tmp_path / "node.svg"
    shown = output("topo", "--nccl-topo", FILES / "dgx1.xml", "--output", drawn)
    rows = [line.split()[:5] for line in shown.splitlines()]
    assert ["GPU1", "NV1", "X", "NV2", "PHB"] in rows
    assert ">bond0<" in drawn.read_text()
    shown = output("topo", "--nccl-graph", FILES / "ncv4_graph.xml", "--json")
    assert '"name": "ring"' in shown
    assert "--nccl-topo reads it" in called("topo", "--nccl-graph", FILES / "dgx1.xml")[2]
