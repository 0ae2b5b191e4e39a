"""Verdicts on variables: against the behaviour of C, NCCL's source and other projects' programs.

Sources: NVIDIA/nccl 2.30.7 (misc/param.cc, misc/utils.cc, graph/tuning.cc, graph/paths.cc) and its guide.
"""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpccomm import settings
from hpccomm.contracts import variables
from hpccomm.contracts.variables import FAULTS, Surroundings, here, judge, known
from hpccomm.tools.perf import nccl_tests

RAILS = Surroundings(
    23203,
    {
        "NCCL_IB_HCA": tuple(f"mlx5_{at}" for at in range(12)),
        "NCCL_SOCKET_IFNAME": ("docker0", "eth0", "lo"),
        "interfaces": ("eth0", "lo", "mlx5_0"),
    },
)


def verdict(text, machine=RAILS):
    name, _, value = text.partition("=")
    found = judge(variables.VariableSetting(name, value), machine)
    assert found is not None
    return found


@example("\x1f1")  # a blank for Python, not for C
@given(
    st.one_of(st.from_regex(r"\s{0,2}[+-]?(0[xX]?)?[0-9a-fkM.]{0,6}", fullmatch=True), st.text())
)
def test_numbers_are_read_as_c_reads_them(text):
    raw = text.encode("utf-8", "surrogatepass").split(b"\0")[0]
    strtoll = ctypes.CDLL(None).strtoll
    strtoll.restype, end = ctypes.c_longlong, ctypes.c_char_p()
    value = strtoll(raw, ctypes.byref(end), 0)
    if raw.isascii() and abs(value) < 2**62:
        found, rest = variables.number(raw.decode())
        assert found == value
        assert not rest or rest.encode() == end.value or (not found and rest.encode() == raw)


VERDICTS = (Path(__file__).parent / "verdicts.tsv").read_text().splitlines()


@pytest.mark.parametrize("row", [each for each in VERDICTS if not each.startswith("#")])
def test_a_value_and_its_verdict(row):
    text, expected, words, remedy = (*row.split("\t"), "", "")[:4]
    found = verdict(text)
    assert (found.verdict, found.fault) == (expected, expected in FAULTS)
    assert words in found.words
    assert remedy in found.remedy
    if re.fullmatch(r"[A-Z_]+=\S+", found.remedy) and expected != "unknown":
        assert verdict(found.remedy).verdict in ("ok", "caution"), "the remedy helps"


VERSIONS = {
    "NCCL_IB_OOO_RQ=1": {22809: "newer", 23203: "ok"},
    "NCCL_MLOPART_RDMA_ENABLE=1": {23102: "ok", 23200: "removed"},
    "NCCL_GIN_NCONTEXTS=1": {22907: "ok", 23003: "removed"},  # "after 2.29.7"
    # A substitute is one that the installed version has.
    "NCCL_CHECK_POINTERS=0": {22809: "ok", 22907: "deprecated", None: "deprecated"},
}


@pytest.mark.parametrize("text", VERSIONS)
def test_what_a_version_has(text):
    for version, expected in VERSIONS[text].items():
        found = verdict(text, Surroundings(version) if version else Surroundings())
        assert (found.verdict, found.fault) == (expected, expected in FAULTS)


def test_what_is_known_of_devices_and_of_the_program_decides():
    found = verdict("NCCL_IB_HCA=mlx5_1", Surroundings())  # it may match more
    assert (found.verdict, found.remedy) == ("caution", "NCCL_IB_HCA==mlx5_1")
    found = verdict("NCCL_MAX_CTAS=4", Surroundings(options=("maxCTAs",)))
    assert (found.verdict, found.fault) == ("overrides", True)
    assert not verdict("NCCL_MAX_CTAS=4", Surroundings(options=("minCTAs",))).fault


def test_the_files_are_read_as_nccl_reads_them(tmp_path: Path):
    own, site = tmp_path / "own.conf", tmp_path / "site.conf"
    own.write_text(
        "# NCCL_ALGO=x\nNCCL_IB_TIMEOUT=22\nNCCL_NET = IB\nexport NCCL_PROTO=LL\nnonsense\n"
    )
    site.write_text("NCCL_IB_TIMEOUT=19\nNCCL_BUFFSIZE=8M\r\n")
    environ = {"NCCL_CONF_FILE": str(own), "NCCL_BUFFSIZE": "4194304", "HOME": str(tmp_path)}
    found = variables.judge_all(variables.settings(environ, site), Surroundings())
    by_name = {(each.name, each.place): each for each in found}
    assert by_name["NCCL_IB_TIMEOUT", str(own)].verdict == "ok"
    assert by_name["NCCL_IB_TIMEOUT", str(site)].verdict == "shadowed"
    assert by_name["NCCL_BUFFSIZE", "environment"].verdict == "ok"
    assert by_name["NCCL_BUFFSIZE", str(site)].verdict == "shadowed"
    for name in ("NCCL_NET", "NCCL_PROTO"):  # the spaces are part of the name
        assert by_name[name, str(own)].verdict == "unknown"
    assert ("NCCL_ALGO", str(own)) not in by_name
    # setEnvFile takes \r\n for the end of a line, and no more.
    own.write_bytes(b"NCCL_ALGO=Ring\r\nNCCL_NET=a\x0bb\n")
    files = variables.settings({"NCCL_CONF_FILE": str(own)}, tmp_path / "none")
    assert [each[:2] for each in files[1:]] == [("NCCL_ALGO", "Ring"), ("NCCL_NET", "a\x0bb")]
    (tmp_path / ".nccl.conf").write_text("NCCL_NET=Socket\n")
    assert ("NCCL_NET", "Socket") in [
        each[:2] for each in variables.settings({"HOME": str(tmp_path)}, site)
    ]
    missing = variables.judge_all(
        variables.settings({"NCCL_CONF_FILE": "~/nccl.conf"}, site), here()
    )
    assert (missing[0].verdict, "~" in missing[0].words) == ("misfit", True)


def test_devices_are_those_of_the_machine(tmp_path: Path):
    for name in ("mlx5_1", "mlx5_10"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/net/bonding_masters").touch()  # a file of the module bonding
    there = here(nccl=0, root=tmp_path)
    assert verdict("NCCL_IB_HCA=mlx5_1", there).verdict == "prefix"
    assert there.devices["NCCL_SOCKET_IFNAME"] == ("eth0",)


def test_ranks_are_compared():
    first = {"NCCL_BUFFSIZE": "1", "NCCL_IB_TC": "1", "NCCL_DEBUG_FILE": "a", "HPCCOMM_X": "1"}
    found = {each.name: each for each in variables.differing([first, {}], known())}
    verdicts = {"HPCCOMM_X": "uneven", "NCCL_BUFFSIZE": "differs", "NCCL_IB_TC": "uneven"}
    assert {name: each.verdict for name, each in found.items()} == verdicts
    told = "must be equal on all ranks: 1 on rank 0, not set on rank 1"
    assert found["NCCL_BUFFSIZE"].words == told
    assert not list(variables.differing([first, first], known()))


def test_the_tables_are_sound():
    table = known()
    kinds = {"int", "switch", "truth", "decimal", "word", "exact", "words", "functions", "devices"}
    for name, each in table.items():
        assert each.kind in kinds | {"path", "yesno", "size", "text", "interfaces"}, name
        assert each.status in ("live", "plug-in", "deprecated", "removed", "never", "foreign"), name
        assert each.ranks in ("", "equal", "free"), name
        assert each.meaning, name
        assert not each.option or each.option in variables.config_fields(), name
        assert (each.status in ("removed",)) <= bool(each.until), name
        assert (each.library == "NCCL" and each.status == "live") <= bool(each.since), name
        new = re.match(r"(NCCL_\w+)(=|$)", each.instead)
        assert new is None or table[new[1]].status in ("live", "deprecated"), name
        if each.kind == "switch":
            assert variables.fitting(each.fits, 0), name
    for field in variables.config_fields().values():
        assert variables.version_code(field.since)


@pytest.mark.skipif(
    not Path(sys.executable).with_name("ompi_info").exists(), reason="no Open MPI is installed here"
)
def test_open_mpi_has_the_parameters_of_the_table():
    def parameters(program, *words):
        command = [Path(sys.executable).with_name(program), "--param", *words]
        return subprocess.check_output(command, text=True, timeout=60)

    for name, right in (
        ("OMPI_MCA_btl_tcp_if_inlcude", "OMPI_MCA_btl_tcp_if_include"),
        # This is in no table.
        ("OMPI_MCA_coll_tuned_bcast_algoritm", "OMPI_MCA_coll_tuned_bcast_algorithm"),
        ("PRTE_MCA_plm_ssh_no_tree_spwan", "PRTE_MCA_plm_ssh_no_tree_spawn"),
        ("OMPI_MCA_coll_tuned_bcast_algorithm", None),
        # mpiexec sets these, or passes them to its daemons.
        ("OMPI_MCA_initial_wdir", None),
        ("OMPI_MCA_rmaps_default_mapping_policy", None),
        ("UCX_DC_RETRY_COUNT", None),  # nearly UCX_RC_RETRY_COUNT
        ("MPICH_GPU_SUPPORT_ENABLED", None),  # HPE's
        ("MPICH_ALLREDUCE_INTRA_ALGORITHM", None),  # the other name of one that is known
    ):
        found = judge(variables.VariableSetting(name, "1"), Surroundings(names=variables.installed))
        assert (found and found.verdict) == (right and "unknown"), name
        assert right is None or right in found.remedy
    theirs = parameters("ompi_info", "all", "all", "--level", "9", "--parsable")
    launcher = parameters("prte_info", "all:all")
    for name, each in known().items():
        parameter = re.sub(r"^(OMPI|PRTE)_MCA_", "", name)
        if each.source == "prte_info":
            assert f'"{parameter}"' in launcher, name
        elif (live := each.source == "ompi_info") or each.status == "removed":
            assert (f":param:{parameter}:value:" in theirs) == live, name


@pytest.mark.skipif(shutil.which("mpichversion") is None, reason="no MPICH is installed here")
def test_mpich_has_the_variables_of_the_table():
    """In the library that its own program loads: Debian's is libmpich.so.12, and its 4.0.2 has no CH4_CMA_ENABLE."""
    program = shutil.which("mpichversion")
    told, loaded = (
        subprocess.check_output(each, text=True) for each in ([program], ["ldd", program])
    )
    if tuple(map(int, re.search(r"Version:\s+(\d+)\.(\d+)", told).groups())) < (4, 2):
        pytest.skip("hpccomm runs on MPICH 4.2 and later")
    library = Path(re.search(r"libmpi\S* => (\S+)", loaded)[1])
    text = library.read_bytes()
    for name, each in known().items():
        if each.source == "cvars":
            assert name.removeprefix("MPIR_CVAR_").encode() in text, name


def test_what_the_programs_of_nccl_tests_read_is_theirs():
    ends = nccl_tests.OF_ALL_TO_ALL_V
    for name in (*nccl_tests.VARIABLES, *(f"NCCL_TESTS_ALLTOALLV_{end}" for end in ends)):
        assert verdict(f"{name}=1").verdict == "foreign", name


FACTS = {"roce": "mlx5_0,mlx5_1", "roce_rate": 200.0, "ethernet": "eth0", "ethernet_rate": 100.0}


@pytest.mark.parametrize("preset", ["infiniband", "roce", "ethernet", "nvlink", "pcie", "debug"])
def test_a_preset_gives_few_lines_which_are_sound(preset):
    facts = FACTS | {"infiniband": "mlx5_0", "infiniband_rate": 400.0, "gpus": 8, "translating": 3}
    facts |= {"nccl": 23203, "nccl_text": "2.32.3"}
    lines = list(variables.preset(preset, facts))
    exports = [line.removeprefix("export ") for line in lines if line.startswith("export ")]
    assert 1 <= len(exports) <= 5
    assert all(line.startswith(("#", "export ")) for line in lines)
    for each in exports:
        if each.startswith("NCCL_"):
            assert not verdict(each, Surroundings(23203)).fault, each
        else:
            assert each.partition("=")[0] in [variable.name for variable in settings.VARIABLES]
    assert all(
        "not set:" in line for line in variables.preset(preset, {}) if line.startswith("#  ")
    )


def test_the_deadline_of_a_model_is_a_multiple_of_what_the_link_needs():
    lines = list(variables.for_model(10**10, 4, FACTS))
    # 2 * 3/4 * 10 GB are 15 GB, at 25 GB/s 0.6 s.
    assert "export HPCCOMM_TIMEOUT=60" in lines
    assert any("15 GB in 0.6 s" in line for line in lines)
    assert "export NCCL_IB_QPS_PER_CONNECTION=4" in lines
    assert "export HPCCOMM_TIMEOUT=600" in variables.for_model(10**11, 4, FACTS)
    small = variables.for_model(1000, 4, {"ethernet": "eth0", "ethernet_rate": 100.0})
    assert not any("NTHREADS=" in line for line in small)
