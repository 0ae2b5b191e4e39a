"""The sources on planted files, and on commands and libraries that answer like the real ones.

Each file in planted/ says where its format is described; proc_stat(5); NVML's reference.
"""

import json
import os
import re
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvml_double import PCI, UP
from planted_sysfs import plant

from hpccomm.tools.doctor import job, rule
from hpccomm.tools.doctor.reading import KINDS, read, rows
from hpccomm.tools.doctor.rules.gpus import SLOWED
from hpccomm.tools.doctor.sources import gpus, limits, slurm
from hpccomm.tools.doctor.sources.limits import Look


def test_the_table_of_files_is_sound():
    for row in rows("files.tsv"):
        assert row["kind"] in (*KINDS, "has"), row
        assert re.compile(row["pattern"]).groups == (
            bool(row["pattern"]) and row["kind"] != "has"
        ), row
    modules = Path(job.__file__).with_name("sources").glob("*.py")
    code = "".join(module.read_text() for module in modules)
    assert all(f'"{row["of"]}"' in code for row in rows("files.tsv"))


PLANTED = sorted((Path(__file__).parent / "planted").glob("*.txt"))
"""Named after their sources. A block ``--- PATH`` is a file of the node; ``variables`` are those of the process,
``facts`` must be found, and ``unread`` must stand in the reasons for which others were not. A file is bytes behind
``hex:``, or a link behind ``->``; ``later PATH`` is what a counter's file has at its second reading."""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda path: path.stem)
def test_what_a_source_reads(tmp_path, monkeypatch, planted):
    _, *blocks = f"\n{planted.read_text()}".split("\n--- ")
    files = {name: text for name, _, text in (block.partition("\n") for block in blocks)}
    given, facts, unread, options = (
        json.loads(files.pop(name, "{}")) for name in ("variables", "facts", "unread", "options")
    )
    later = {name: files.pop(f"later {name}") for name in {*files} if f"later {name}" in files}
    source = planted.stem.partition("-")[0]
    if source in ("network", "infiniband"):
        options["wait"] = partial(plant, tmp_path, later)
    for name, text in files.items():
        plant(tmp_path, {name: bytes.fromhex(text[4:]) if text.startswith("hex:") else text})
    for name in (*slurm.variables(), "container", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**given, "PATH": f"{tmp_path}/bin"}.items():
        monkeypatch.setenv(name, value)
    for program in tmp_path.glob("bin/*"):
        program.chmod(0o755)
    found = read(job.SOURCES[source], tmp_path, **options)
    assert {name: found.get(name) for name in facts} == facts
    assert all(reason in found["unread"][name] for name, reason in unread.items())
    if "" in unread:
        assert unread[""] in rule.missing({source: found}, f"{source}.problems")


def test_a_look_counts_what_programs_take_of_the_cores_of_a_rank(tmp_path):
    # Of a CPU: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
    own = os.sched_getaffinity(0)
    ticks, beside = os.sysconf("SC_CLK_TCK"), {cpu + 5000 for cpu in own}
    lines = [
        f"cpu{cpu} {ticks} {2 * ticks} {3 * ticks} 9 9 77 88 {ticks} 5 0"
        for cpu in (*own, *beside, 9999)
    ]
    threads = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    plant(tmp_path, {
        "proc/stat": "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 5"]),
        "proc/sys/kernel/random/boot_id": "2c1e6a4e",
        **{threads.format(cpu): f"{cpu},{cpu + 5000}" for cpu in own},
    })  # fmt: skip
    found = limits.look(tmp_path)
    assert (found.machine, found.pool, found.size) == ("2c1e6a4e", own | beside, 2.0 * len(own))
    assert found.taken == pytest.approx(2 * len(own) * 7)
    # A control group that may have fewer processors is what its processes share.
    plant(tmp_path, {
        "proc/self/cgroup": "0::/pod\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu\n",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pod/cpu.stat": "usage_usec 2500000\n",
    })  # fmt: skip
    found = limits.look(tmp_path)
    assert (found.size, found.taken, min(found.pool) < 0) == (1.5, 2.5, True)


def span(process, own, taken, cpus=(0, 1), machine="a", since=7.0):
    """Return two looks, a second apart, at the seconds that the process and all processes took of some CPUs."""
    looks = ((machine, process, 5.0, 1.0), (machine, process, 6.0, 1.0 + own))
    pool = frozenset(cpus), float(len(cpus))
    return Look(*looks[0], *pool, since), Look(*looks[1], *pool, since + taken)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # What two ranks take themselves, polling, is nobody else's.
        ([span("p", 1.0, 2.0), span("q", 1.0, 2.0)], [0.0, 0.0]),
        # Two ranks and eight loops, in equal parts on two cores.
        ([span("p", 0.2, 2.0), span("q", 0.2, 2.0)], [0.8, 0.8]),
        # Ranks that are threads of one process: its time counts once.
        ([span("p", 0.6, 1.6), span("p", 0.6, 1.6)], [0.5, 0.5]),
        # Ranks in containers of one machine are of the job; those of another machine are elsewhere.
        ([span("p", 0.5, 1.0), span("q", 0.5, 1.0), span("p", 0.0, 1.0, machine="b")], [0.0, 0.0, 0.5]),
        # A loop on the core of one of two bound ranks: a quarter of the node, half of what that rank may use.
        ([span("p", 0.5, 1.0, {0}), span("q", 1.0, 1.0, {1})], [0.5, 0.0]),
        # A loop on the other hardware thread of the rank's core.
        ([span("p", 1.0, 2.0, {0, 4})], [0.5]),
        # A sandbox whose /proc/stat stands still.
        ([span("p", 1.0, 0.0, since=0.0)], [-1.0]),
        # Nobody does anything.
        ([span("p", 0.0, 0.0)], [0.0]),
        # Ticks are coarser than the clock of a process.
        ([span("p", 1.01, 1.0)], [0.0]),
    ],
)  # fmt: skip
def test_the_part_that_others_take_is_what_the_ranks_do_not(spans, expected):
    assert limits.shares(spans) == pytest.approx(expected)


GPU = {
    "Name": "NVIDIA H100 80GB HBM3",
    "UUID": "GPU-0",
    "PciInfo": PCI,
    "VbiosVersion": "96.00",
    "PersistenceMode": 1,
    "MigMode": [0, 0],
    "EccMode": [1, 1],
    "RemappedRows": (0, 0, 0, 0),
    "TotalEccErrors": lambda error, counter: 10 * error + counter,
    "CurrentClocksEventReasons": 4,
    "ComputeMode": 0,
    "ComputeRunningProcesses": [object()],
    "UtilizationRates": SimpleNamespace(gpu=90, memory=0),
    "CurrPcieLinkGeneration": 3,
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "MaxPcieLinkWidth": 16,
    "P2PStatus": lambda other, way: way,
    "NvLinkState": [UP, UP, 0].__getitem__,
    "NvLinkRemotePciInfo": {link: SimpleNamespace(domain=0, bus=0xC4, device=0) for link in (0, 2)}.__getitem__,
    "fields": {"NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON": 25_781},
}  # fmt: skip
WITHOUT_ECC = {name: answer for name, answer in GPU.items() if name != "EccMode"}
IDLE = GPU | {"UtilizationRates": SimpleNamespace(gpu=0, memory=0)}
DRIVER = {
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n"
}


def test_gpus_by_nvml(tmp_path, nvml):
    assert read(gpus.gather, tmp_path)["unread"] == {"": "NVIDIA's driver is not loaded"}
    assert read(gpus.nvlink, tmp_path)["unread"] == {"gpus": "NVIDIA's driver is not loaded"}
    plant(tmp_path, DRIVER)
    assert read(gpus.gather, tmp_path)["unread"] == {"": "NVML does not start: Driver Not Loaded"}
    nvml.gpus = [GPU, WITHOUT_ECC]
    found = read(gpus.gather, tmp_path)
    assert (found["module"], found["count"]) == (True, 2)
    assert (found["driver"], found["cuda"]) == ("580.65.06", 13000)
    first, second = found["devices"]["0"], found["devices"]["1"]
    assert (first["ecc"], first["bus"], first["processes"]) == ([1, 1], "00000000:3b:00.0", 1)
    assert first["uncorrected"] == 10, "uncorrected is type 1, volatile is counter 0"
    assert first["link"] == {"generation": 3, "most_generation": 5, "width": 16, "most_width": 16}
    assert "ecc" not in second
    assert found["unread"]["devices.1.ecc"] == "NVML: Not Supported"
    assert found["peers"] == {"0-1": {"read": 0, "write": 1}, "1-0": {"read": 0, "write": 1}}
    # nvmlDeviceGetCount counts devices that nvmlDeviceGetHandleByIndex then refuses. The link of an idle one is low.
    nvml.gpus = [nvml.NVML_ERROR_GPU_IS_LOST, IDLE, nvml.NVML_ERROR_NO_PERMISSION]
    tree = {"gpus": read(gpus.gather, tmp_path)}
    assert list(tree["gpus"]["devices"]) == ["1"]
    assert tree["gpus"]["lost"] == ["GPU 0: NVML: GPU is lost"]
    assert rule.at(tree, "gpus.devices.*.link") is rule.MISSING
    assert "an idle GPU" in rule.missing(tree, "gpus.devices.*.link")


def test_nvlink_and_what_is_at_its_other_end(tmp_path, nvml):
    nvml.gpus = [nvml.NVML_ERROR_GPU_IS_LOST, GPU]  # of which nothing is known
    (gpu,) = read(gpus.nvlink, plant(tmp_path, DRIVER))["gpus"]
    assert gpu == {
        "name": "NVIDIA H100 80GB HBM3",
        "pci": "0000:3b:00.0",
        "rate": 25.781,
        "links": [
            {"link": 0, "up": True, "to": "0000:c4:00.0"},
            {"link": 1, "up": True},
            {"link": 2, "up": False, "to": "0000:c4:00.0"},
        ],
    }


def test_numbers_of_nvml_are_those_of_the_package():
    real = pytest.importorskip("pynvml")
    assert real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == 1
    assert real.NVML_VOLATILE_ECC == 0
    assert real.NVML_P2P_CAPS_INDEX_WRITE == 1
    reasons = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert list(SLOWED) == [getattr(real, f"nvmlClocksEventReason{name}") for name in reasons]


MAPS = """\
7f00-7f01 r-xp 00000000 08:01 11   /opt/openmpi/lib/libmpi.so.40.40.5
7f01-7f02 r--p 00000000 08:01 11   /opt/openmpi/lib/libmpi.so.40.40.5
7f02-7f03 r-xp 00000000 08:01 12   /opt/openmpi/lib/libmpi_cxx.so.40
7f03-7f04 r-xp 00000000 08:01 13   /with space/libnccl.so.2
7f04-7f05 r-xp 00000000 08:01 14   /usr/lib/libcuda.so.580.65.06
7f05-7f06 rw-p 00000000 00:00 0
"""


def test_libraries_of_a_process_and_whose_a_launcher_is():
    assert job.libraries(MAPS) == {
        "libcuda": ["/usr/lib/libcuda.so.580.65.06"],
        "libmpi": ["/opt/openmpi/lib/libmpi.so.40.40.5"],
        "libnccl": ["/with space/libnccl.so.2"],
    }
    for said, origin in {
        "mpiexec (Open MPI) 5.0.11\n": ("Open MPI", "5.0.11"),
        "HYDRA build details:\n    Version:      5.0.2\n": ("MPICH", "5.0.2"),
        "Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 2025": ("Intel MPI", ""),
        "mpirun (IBM Spectrum MPI) 10.4.0.6": ("", ""),
    }.items():
        assert job.origin(said) == origin


def test_a_source_that_fails_leaves_the_others_and_so_does_a_lack_of_threads():
    tree = job.of_node(["host", "packages"], root=5)  # a fault of the program, not of the node
    assert "the source failed: unsupported operand" in tree["host"]["unread"][""]
    assert tree["packages"]["python"]
    before = threading.stack_size(1 << 46)  # no thread can have that
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=print).start()
        tree = job.of_node(["host", "packages"])
    finally:
        threading.stack_size(before)
    assert tree["host"]["kernel"]
    assert tree["packages"]["python"]
