"""The sources on planted files, and on commands and libraries that answer like the real ones.

Formats: proc_pid_limits(5) and Linux's admin-guide (cgroup-v1/memory, cgroup-v2, abi/testing/dev-kmsg, mm/transhuge);
NVIDIA's lines of Xid as in its catalogue; what Slurm 22.05's scontrol and srun print.
"""

import inspect
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted_sysfs import plant

from hpccomm.tools.doctor import job, rule
from hpccomm.tools.doctor.reading import KINDS, read, rows
from hpccomm.tools.doctor.rules.gpus import SLOWED
from hpccomm.tools.doctor.sources import gpus, host, limits, slurm
from hpccomm.tools.doctor.sources.limits import Look

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              3600                 unlimited            seconds
Max file size             unlimited            unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max processes             96365                96365                processes
Max open files            1024                 524288               files
Max locked memory         65536                65536                bytes
Max address space         8000000000           unlimited            bytes
"""


def test_the_table_of_files_is_sound():
    for row in rows("files.tsv"):
        assert row["kind"] in (*KINDS, "has"), row
        assert re.compile(row["pattern"]).groups == (
            bool(row["pattern"]) and row["kind"] != "has"
        ), row
    modules = Path(job.__file__).with_name("sources").glob("*.py")
    code = "".join(module.read_text() for module in modules)
    assert all(f'"{row["of"]}"' in code for row in rows("files.tsv"))


def test_a_file_without_the_line_says_so(tmp_path):
    plant(tmp_path, {"proc/cpuinfo": "CPU implementer\t: 0x41\n"})  # Arm's has no model
    assert read(host.gather, tmp_path)["unread"]["cpu"].startswith(
        "/proc/cpuinfo has nothing like ^model name"
    )


def test_limits_of_the_process(tmp_path):
    plant(tmp_path, {"proc/self/limits": LIMITS, "proc/sys/kernel/yama/ptrace_scope": "1\n"})
    found = read(limits.gather, tmp_path)
    assert found["memlock"] == {"soft": 65536, "hard": 65536}
    assert found["stack"] == {"soft": 8388608, "hard": None}
    assert found["ptrace_scope"] == 1
    assert [found[name] for name in ("processor_time", "file_size", "address_space")] == [
        3600,
        None,
        8 * 10**9,
    ]
    assert "No such file" in found["unread"]["ports"]
    assert "cgroup" in found["unread"]["memory"]


def test_the_narrowest_group_counts_in_version_2(tmp_path):
    top = "sys/fs/cgroup"
    plant(tmp_path, {
        "proc/self/cgroup": "0::/slurm/job_7\n",
        f"{top}/cgroup.controllers": "cpu memory pids\n",
        f"{top}/slurm/memory.max": "1073741824\n",
        f"{top}/slurm/memory.current": "900000000\n",
        f"{top}/slurm/memory.stat": "anon 1\ninactive_file 100000000\n",
        f"{top}/slurm/memory.events": "low 0\noom 3\noom_kill 2\n",
        f"{top}/slurm/job_7/memory.max": "max\n",
        f"{top}/slurm/job_7/cpu.max": "150000 100000\n",
        f"{top}/slurm/job_7/cpu.stat": "usage_usec 5\nnr_throttled 9\n",
        f"{top}/slurm/job_7/pids.max": "500\n",
        f"{top}/slurm/job_7/pids.current": "12\n",
    })  # fmt: skip
    found = read(limits.gather, tmp_path)
    assert found["memory"] == {"limit": 1 << 30, "used": 800000000, "oom_kills": 2}
    assert found["cpu"] == {"quota": 1.5, "throttled": 9}
    assert found["pids"] == {"limit": 500, "used": 12}


def test_a_look_counts_what_programs_take_of_the_cores_of_a_rank(tmp_path, monkeypatch):
    # proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice.
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{cpu} {ticks} {2 * ticks} {3 * ticks} 9 9 77 88 {ticks} 5 0" for cpu in range(8)]
    plant(tmp_path, {
        "proc/stat": "\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 5"]),
        "proc/sys/kernel/random/boot_id": "2c1e6a4e",
        **{f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu},{cpu + 4}" for cpu in range(4)},
    })  # fmt: skip
    found = limits.look(tmp_path)
    assert (found.machine, found.pool, found.size) == ("2c1e6a4e", {0, 1, 4, 5}, 4.0)
    assert found.taken == pytest.approx(4 * 7)
    # A control group that may have fewer processors is what its processes share.
    top = "sys/fs/cgroup"
    plant(tmp_path, {
        "proc/self/cgroup": "0::/pod\n",
        f"{top}/cgroup.controllers": "cpu\n",
        f"{top}/pod/cpu.max": "150000 100000\n",
        f"{top}/pod/cpu.stat": "usage_usec 2500000\n",
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


def test_version_1_and_a_container_that_sees_its_group_as_the_top(tmp_path):
    top = "sys/fs/cgroup"
    plant(tmp_path, {
        "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n",
        f"{top}/memory/memory.limit_in_bytes": "536870912\n",
        f"{top}/memory/memory.usage_in_bytes": "100\n",
        f"{top}/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        f"{top}/cpu/cpu.cfs_quota_us": "-1\n",
        f"{top}/cpu/cpu.cfs_period_us": "100000\n",
    })  # fmt: skip
    found = read(limits.gather, tmp_path)
    assert found["memory"] == {"limit": 1 << 29, "used": 100, "oom_kills": 1}
    assert found["cpu"] == {"quota": None, "throttled": 0}
    assert "no control group for pids" in found["unread"]["pids"]
    plant(tmp_path, {f"{top}/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert read(limits.gather, tmp_path)["memory"]["limit"] is None


def test_the_host(tmp_path):
    plant(tmp_path, {
        "proc/meminfo": "MemTotal:       16 kB\nMemAvailable:    8 kB\nSwapTotal:       0 kB\nSwapFree:        0 kB\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "etc/os-release": 'NAME="Rocky Linux"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\n',
        "proc/cpuinfo": "model name\t: AMD  EPYC 9654\nflags\t\t: fpu hypervisor tsc\n",
        "proc/self/uid_map": "         0       1000          1\n",
        ".dockerenv": "",
    })  # fmt: skip
    found = read(host.gather, tmp_path)
    assert (found["memory"], found["available"]) == (16384, 8192)
    assert found["thp"] == "never"
    assert found["governors"] == {"powersave": 1, "performance": 1}
    assert found["os"].startswith("Rocky Linux 9.4")
    assert (found["cpu"], found["virtual"]) == ("AMD EPYC 9654", True)
    assert found["container"] == ["/.dockerenv", "a user namespace"]
    assert "does not scale" in found["unread"]["preferences"]


KERNEL = """\
6,339,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05
4,901,8813442,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
4,902,8813443,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
4,903,8813444,-;NVRM: Xid (0000:5e:00.0): 31, Ch 00000010
4,904,8813445,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
3,900,5813446,-;Out of memory: Killed process 4 (early) total-vm:9kB, anon-rss:8kB
3,905,100008813446,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB
0,906,8813447,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400
0,907,8813448,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090
0,908,8813449,-;mce: [Hardware Error]: Machine check events logged
"""


@pytest.mark.parametrize(
    ("hosts", "address"),
    [
        # Debian's installer writes this: its reference manual, "The hostname resolution".
        ("127.0.0.1 localhost\n127.0.1.1\tn7.lab n7\n", "127.0.1.1"),
        ("127.0.0.1 localhost n71\n10.0.0.7 n7 # 127.0.1.1 n7\n127.0.1.1 n7\n", "10.0.0.7"),
        ("::1 localhost\n", ""),
    ],
)
def test_the_own_name_in_the_table_of_hosts(tmp_path, monkeypatch, hosts, address):
    monkeypatch.setattr(host.os, "uname", lambda: SimpleNamespace(nodename="n7.lab"))
    plant(tmp_path, {"etc/hosts": hosts})
    assert read(host.gather, tmp_path)["own_address"] == address


def test_the_kernel_s_log(tmp_path):
    plant(tmp_path, {"dev/kmsg": KERNEL, "proc/uptime": "100060.25 9.00\n"})
    found = read(host.kernel_log, tmp_path)
    by_number = {each["xid"]: each for each in found["xids"]}
    assert (by_number[79]["device"], by_number[79]["times"]) == ("0000:3b:00", 2)
    assert by_number[31]["device"] == "0000:5e:00.0"
    assert len(found["lost"]) == 1, "a Xid is not told twice"
    assert found["killed"] == ["python3"], "the other one was killed more than a day ago"
    assert len(found["machine_checks"]) == 1, "the others were corrected (bit 61 of the status)"
    closed = read(host.kernel_log, tmp_path / "nowhere")
    assert set(closed) == {"unread"}


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Write commands that come first in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in slurm.variables():
        monkeypatch.delenv(name, raising=False)

    def write(**scripts):
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

    return write


def test_slurm_by_its_commands(commands, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    commands(
        scontrol="""case $2 in
config) printf 'Configuration data as of now\\nMpiDefault              = pmix\\nSecretKey               = x\\n' ;;
*) echo "NodeName=n1 Arch=x86_64 CPUTot=64 Gres=gpu:h100:8 State=MIXED+DRAIN Reason=Xid 79" ;;
esac""",
        srun="printf 'MPI plugin types are...\\n\\tpmix\\n\\tpmi2\\nspecific pmix plugin versions available: pmix_v4\\n'",
    )
    found = read(slurm.gather)
    assert found["config"] == {"MpiDefault": "pmix"}
    assert found["node"]["Gres"] == "gpu:h100:8"
    assert found["mpi_types"] == ["pmix", "pmi2"]
    assert found["variables"] == {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
    assert found["problems"] == []


def test_a_controller_that_is_down_is_a_fact_and_no_wait(commands, monkeypatch):
    monkeypatch.setattr(slurm, "PATIENCE", 0.2)
    commands(scontrol="exec sleep 60", srun="echo 'srun: error: no' >&2; exit 1")
    found = read(slurm.gather)
    assert found["problems"] == [
        "scontrol show config: no answer within 0.2 s",
        *[each for each in found["problems"] if "show node" in each],
        "srun --mpi=list: srun: error: no",
    ]
    assert "config" not in found
    assert "no answer" in found["unread"]["config"]


def test_a_login_node_and_a_container_have_no_fault(commands, monkeypatch):
    """scontrol(1) ends so for a node that Slurm does not have; in a container its commands are missing."""
    commands(
        scontrol="""case $2 in
config) echo 'MpiDefault = pmix' ;; *) echo 'Node login1 not found'; exit 1 ;; esac""",
        srun="echo pmix",
    )
    found = read(slurm.gather)
    assert found["problems"] == []
    assert found["unread"] == {"node": "this is not a node of Slurm's"}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    found = read(slurm.gather)
    assert found["variables"] == {"SLURM_NTASKS": "4"}
    assert "problems" not in found
    assert "Slurm's commands are not here" in rule.missing({"slurm": found}, "slurm.problems")


def test_slurm_without_a_cluster_is_none(commands):
    fatal = "echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1"
    commands(scontrol=fatal, srun=fatal)
    assert read(slurm.gather) == {
        "unread": {"": "Slurm is installed, and no cluster is configured here"}
    }


@pytest.fixture
def with_driver(tmp_path):
    plant(tmp_path, {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\n",
    })  # fmt: skip
    return tmp_path


def test_gpus_by_nvml(with_driver, nvml):
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=90, memory=0)
    found = read(gpus.gather, with_driver)
    assert (found["module"], found["count"]) == (True, 2)
    first, second = found["devices"]["0"], found["devices"]["1"]
    assert first["ecc"] == [1, 1]
    assert first["uncorrected"] == 10, "uncorrected is type 1, volatile is counter 0"
    assert first["link"] == {"generation": 3, "most_generation": 5, "width": 16, "most_width": 16}
    assert "ecc" not in second
    assert found["unread"]["devices.1.ecc"] == "NVML: Not Supported"
    assert found["peers"] == {"0-1": {"read": 0, "write": 1}, "1-0": {"read": 0, "write": 1}}


def test_a_lost_gpu_is_named_and_the_others_are_read(with_driver, nvml):
    """NVML's reference: nvmlDeviceGetCount counts devices that nvmlDeviceGetHandleByIndex then refuses."""

    def handle(index):
        raise_ = {0: "GPU is lost", 2: "Insufficient Permissions"}.get(index)
        if raise_:
            raise nvml.NVMLError(raise_)
        return index

    nvml.nvmlDeviceGetHandleByIndex = handle
    nvml.nvmlDeviceGetCount = lambda: 3
    found = read(gpus.gather, with_driver)
    assert list(found["devices"]) == ["1"]
    assert found["lost"] == ["GPU 0: NVML: GPU is lost"]


def test_who_may_lock_all_memory(tmp_path):
    """capabilities(7): CAP_IPC_LOCK is bit 14. Linux asks for it outside of namespaces of users."""
    status = "proc/self/status"
    plant(
        tmp_path, {status: "CapEff:\t0000000000004000\n", "proc/self/uid_map": "0 0 4294967295\n"}
    )
    assert read(limits.gather, tmp_path)["may_lock_all"]
    plant(tmp_path, {"proc/self/uid_map": "0 1000 1\n"})
    assert not read(limits.gather, tmp_path)["may_lock_all"]
    plant(
        tmp_path, {status: "CapEff:\t0000000000000000\n", "proc/self/uid_map": "0 0 4294967295\n"}
    )
    assert not read(limits.gather, tmp_path)["may_lock_all"]


def test_an_idle_gpu_s_link_is_not_judged(with_driver, nvml):
    tree = {"gpus": read(gpus.gather, with_driver)}
    assert rule.at(tree, "gpus.devices.*.link") is rule.MISSING
    assert "an idle GPU" in rule.missing(tree, "gpus.devices.*.link")


def test_the_double_of_nvml_is_as_the_package(monkeypatch, nvml):
    """Names and parameters, against nvidia-ml-py."""
    monkeypatch.delitem(sys.modules, "pynvml")
    real = pytest.importorskip("pynvml")
    for name, each in vars(nvml).items():
        if name.startswith("NVML_"):
            assert getattr(real, name) == each, name
        elif name.startswith("nvml"):
            theirs = inspect.signature(getattr(real, name)).parameters
            assert list(inspect.signature(each).parameters) == [
                parameter.lower() for parameter in theirs
            ], name
    assert real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED == 1
    assert real.NVML_VOLATILE_ECC == 0
    assert real.NVML_P2P_CAPS_INDEX_WRITE == 1
    reasons = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert list(SLOWED) == [getattr(real, f"nvmlClocksEventReason{name}") for name in reasons]
    assert all(hasattr(real, row["function"]) for row in rows("nvml.tsv"))


def test_libraries_of_a_process_and_whose_a_launcher_is():
    maps = """\
7f00-7f01 r-xp 00000000 08:01 11   /opt/openmpi/lib/libmpi.so.40.40.5
7f01-7f02 r--p 00000000 08:01 11   /opt/openmpi/lib/libmpi.so.40.40.5
7f02-7f03 r-xp 00000000 08:01 12   /opt/openmpi/lib/libmpi_cxx.so.40
7f03-7f04 r-xp 00000000 08:01 13   /with space/libnccl.so.2
7f04-7f05 r-xp 00000000 08:01 14   /usr/lib/libcuda.so.580.65.06
7f05-7f06 rw-p 00000000 00:00 0
"""
    assert job.libraries(maps) == {
        "libcuda": ["/usr/lib/libcuda.so.580.65.06"],
        "libmpi": ["/opt/openmpi/lib/libmpi.so.40.40.5"],
        "libnccl": ["/with space/libnccl.so.2"],
    }
    assert job.origin("mpiexec (Open MPI) 5.0.11\n") == ("Open MPI", "5.0.11")
    assert job.origin("HYDRA build details:\n    Version:      5.0.2\n") == ("MPICH", "5.0.2")
    assert job.origin("Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 2025") == (
        "Intel MPI",
        "",
    )
    assert job.origin("mpirun (IBM Spectrum MPI) 10.4.0.6") == ("", "")


DIAGNOSTICS = """\
n42:12345 NCCL DIAG === NCCL Diagnostics ===
n42:12345 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification
n42:12345 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across 8 ranks in comm 0x1234
n42:12345 NCCL DIAG [INFO] NCCL environment: mismatch across 8 ranks in comm 0x1234 for NCCL_DEBUG
n42:12345 NCCL DIAG [INFO] NCCL environment: NCCL_DEBUG=INFO on rank(s) {0,1,2,3}
n42:12345 NCCL DIAG RAS diagnostics completed in 12.3 ms across 8 RAS peers
"""


def test_nccl_s_own_diagnostics_are_read():
    """The lines of NCCL's guide, Diagnostics and RAS."""
    said = job.nccl_facts(DIAGNOSTICS, "")["says"]
    assert said["p2p"] == ["only 52/56 GPU-to-GPU peer accesses passed verification"]
    assert said["ECC"] == []
    assert said["NCCL environment"][1] == "NCCL_DEBUG=INFO on rank(s) {0,1,2,3}"
    assert job.nccl_facts("", "CuPy is not installed")["unread"] == {"": "CuPy is not installed"}
    assert "2.31" in job.nccl_facts("NCCL version 2.28.3", "")["unread"][""]


def test_a_source_that_fails_leaves_the_others(monkeypatch):
    def broken(reading):
        raise RuntimeError("it fell over")

    monkeypatch.setitem(job.SOURCES, "host", broken)
    tree = job.of_node(["host", "packages"])
    assert "it fell over" in tree["host"]["unread"][""]
    assert tree["packages"]["python"]


def test_a_node_without_room_for_threads_is_asked_all_the_same(monkeypatch):
    def full(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    tree = job.of_node(["host", "packages"])
    assert tree["host"]
    assert tree["packages"]["python"]
