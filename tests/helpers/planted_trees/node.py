"""A sound node with two ranks and two GPUs under Slurm, and a fault for each rule.

Formats: proc_pid_limits(5), Linux's Documentation/admin-guide (cgroup-v2, sysctl, transhuge), slurm.conf(5), NVML's
API reference (nvmlClocksEventReasons, nvmlGpuP2PStatus_t), NVIDIA's catalogue of Xids, NCCL's guide (Diagnostics).
"""

GIB = 1 << 30

DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-5f3c2b1a-0000-1111-2222-333344445555",
    "bus": "00000000:3b:00.0",
    "vbios": "96.00.61.00.01",
    "persistence": True,
    "mig": [0, 0],
    "ecc": [1, 1],
    "remapped": [0, 0, 0, 0],
    "clock_reasons": 4,
    "compute_mode": 0,
    "processes": 0,
    "uncorrected": 0,
    "link": {"generation": 5, "most_generation": 5, "width": 16, "most_width": 16},
}


def rank(number: int) -> dict:
    return {
        "rank": number,
        "pid": 100 + number,
        "cores": f"{number},{number + 4}",
        "libraries": {
            "libmpi": ["/opt/openmpi/lib/libmpi.so.40.40.5"],
            "libucp": ["/opt/ucx/lib/libucp.so.0.0.0"],
            "libnccl": ["/venv/nvidia/nccl/lib/libnccl.so.2"],
        },
        "namespaces": {
            "pid": "pid:[4026531836]",
            "user": "user:[4026531837]",
            "net": "net:[4026531833]",
        },
        "variables": {"SLURM_CPUS_PER_TASK": "2"},
        "nccl": "2.32.3",
        "peers": {"mapped": "", "plain": ""},
        "others": 0.02,
    }


def rank_without(fact: str) -> dict:
    return {name: value for name, value in rank(0).items() if name != fact}


SOUND = {
    "host": {
        "kernel": "5.15.0-122-generic",
        "os": "Ubuntu 22.04.5 LTS",
        "boot_id": "2c1e6a4e-77e5-4f0e-8a58-a4c7f2f1c001",
        "cpu": "AMD EPYC 9654 96-Core Processor",
        "memory": 256 * GIB,
        "available": 240 * GIB,
        "swap": 8 * GIB,
        "swap_free": 8 * GIB,
        "thp": "madvise",
        "numa_balancing": 0,
        "governors": {"performance": 8},
        "cpufreq_driver": "acpi-cpufreq",
        "clock_source": "tsc",
        "clock_synchronised": True,
        "clock": {"ahead": 0.0, "uncertain": 0.0001},
        "container": [],
        "own_address": "10.0.0.7",
    },
    "cpu": {
        "allowed": "0-7",
        "number": 8,
        "online": "0-7",
        "cores": ["0,4", "1,5", "2,6", "3,7"],
        "nodes": [{"node": 0, "cpus": "0-1,4-5"}, {"node": 1, "cpus": "2-3,6-7"}],
    },
    "limits": {
        "memlock": {"soft": None, "hard": None},
        "open_files": {"soft": 65536, "hard": 65536},
        "processes": {"soft": 1030000, "hard": 1030000},
        "stack": {"soft": 8 << 20, "hard": None},
        "memory": {"limit": 200 * GIB, "used": 3 * GIB, "oom_kills": 0},
        "cpu": {"quota": None, "throttled": 0},
        "pids": {"limit": 100000, "used": 40},
        "shared_memory": {"bytes": 128 * GIB, "free": 127 * GIB},
        "processor_time": None,
        "file_size": None,
        "data": None,
        "address_space": None,
        "ptrace_scope": 0,
        "ports": [15000, 64999],
    },
    "kernel_log": {"xids": [], "lost": [], "killed": [], "machine_checks": []},
    "packages": {
        "python": "3.12.3",
        "hpccomm": "0.1.0",
        "mpi4py": "4.1.2",
        "cupy-cuda12x": "14.2.0",
        "nvidia-nccl-cu12": "2.32.3",
    },
    "mpi": {
        "missing": "",
        "failure": "",
        "vendor": "Open MPI",
        "version": "5.0.11",
        "library": "Open MPI v5.0.11",
        "world": 2,
        "nodes": 1,
        "launcher": "Slurm's srun",
        "launched": 2,
        "pmi": ["pmix"],
        "thread_level": 3,
        "thread_multiple": 3,
        "cuda_aware": True,
        "cuda_aware_why": "Open MPI 5.0.11 says so by MPIX_Query_cuda_support",
        "mpiexec": {"path": "/opt/openmpi/bin/mpiexec", "vendor": "Open MPI", "version": "5.0.11"},
    },
    "ranks": [rank(0), rank(1)],
    "gpus": {
        "module": True,
        "driver": "580.65.06",
        "cuda": 12080,
        "count": 2,
        "devices": {"0": DEVICE, "1": DEVICE},
        "peers": {"0-1": {"read": 0, "write": 0}, "1-0": {"read": 0, "write": 0}},
    },
    "nccl": {
        "says": {
            check: []
            for check in (
                *("p2p", "net bw", "GPU inventory", "CUDA driver version"),
                *("ECC", "NVLink", "NCCL environment"),
            )
        }
    },
    "slurm": {
        "problems": [],
        "variables": {
            "SLURM_NTASKS": "2",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_CPUS_ON_NODE": "4",
            "SLURM_GPUS_ON_NODE": "2",
        },
        "config": {
            "SLURM_VERSION": "24.05.3",
            "GresTypes": "gpu",
            "ProctrackType": "proctrack/cgroup",
            "TaskPlugin": "task/cgroup,task/affinity",
            "PropagateResourceLimitsExcept": "MEMLOCK",
        },
        "node": {"State": "ALLOCATED", "Gres": "gpu:h100:2"},
        "mpi_types": ["none", "pmi2", "pmix", "pmix_v5"],
    },
}

XID = {"device": "0000:3b:00", "times": 2, "text": "pid=1234, name=python"}


def says(check: str, sentence: str) -> dict:
    return {f"nccl.says.{check}": [sentence]}


FAULTS = {
    "mpi.loads": {"mpi.missing": "no MPI library can be loaded: cannot load MPI library"},
    "mpi.starts": {"mpi.failure": "MPI_Init was killed by SIGABRT"},
    "mpi.launch": {"mpi.world": 1},
    "mpi.pmi": {"mpi.pmi": ["pmi"], "mpi.world": 1},
    "mpi.one_library": {"ranks.0.libraries.libmpi": ["/a/libmpi.so.12", "/b/libmpi.so.40"]},
    "mpi.launcher": {"mpi.mpiexec.vendor": "MPICH"},
    "mpi.threads": {"mpi.thread_level": 1},
    "mpi.cores": {"ranks.0.cores": "3", "ranks.1.cores": "3"},
    "mpi.hardware_threads": {"ranks.0.cores": "1", "ranks.1.cores": "5"},
    "mpi.numa": {"ranks.1.cores": "0-7"},
    "mpi.oversubscribed": {"ranks.0.cores": "0", "ranks.1.cores": "0", "cpu.online": "0"},
    "mpi.openmp": {"ranks.1.variables": {"OMP_NUM_THREADS": "4,2"}},
    "mpi.shared_memory": {"ranks.0.variables": {"OMPI_MCA_btl": "tcp,self"}},
    "mpi.fabric": {"ranks.0.variables": {"OMPI_MCA_pml": "ob1"}},
    "mpi.cuda": ({"ranks": [rank_without("nccl")]}, {"mpi.cuda_aware": False}),
    "limits.memlock": {"limits.memlock.soft": 64 << 10},
    "limits.open_files": {"limits.open_files.soft": 256},
    "limits.processes": {"limits.processes.soft": 100},
    "limits.threads_of_group": {"limits.pids.used": 99990},
    "limits.memory": {"limits.memory.used": 199 * GIB},
    "limits.oom_kills": {"limits.memory.oom_kills": 1},
    "limits.cpu_time": {"limits.cpu": {"quota": 1.5, "throttled": 3}},
    "limits.shared_memory": {"limits.shared_memory": {"bytes": 64 << 20, "free": 64 << 20}},
    "limits.no_shared_memory": {"limits.shared_memory": {"bytes": 64 << 20, "free": 4096}},
    "limits.ptrace_scope": (
        {"ranks": [rank_without("peers")]},
        {"limits.ptrace_scope": 2},
    ),
    "limits.peers_pages": {"ranks.0.peers.plain": "the memory of rank 1 cannot be reached"},
    "limits.peers_memory": {"ranks.0.peers.mapped": "that of rank 1 cannot be mapped"},
    "limits.processor_time": {"limits.processor_time": 3600},
    "limits.file_size": {"limits.file_size": 1 << 30},
    "limits.address_space": ({"gpus.count": 0}, {"limits.address_space": 64 * GIB}),
    "limits.ports": {"limits.ports": [60000, 60999]},
    "host.governor": {"host.governors": {"performance": 4, "powersave": 4}},
    "host.clock_source": {"host.clock_source": "hpet"},
    "host.huge_pages": {"host.thp": "never"},
    "host.numa_balancing": {"host.numa_balancing": 1},
    "host.memory": {"host.available": 2 * GIB},
    "host.swap": {"host.swap_free": 4 * GIB},
    "host.busy": {"ranks.0.others": 0.8},
    "host.own_name": {"host.own_address": "127.0.1.1"},  # as Debian's installer writes it
    "host.killed": {"kernel_log.killed": ["python", "python"]},
    "host.machine_checks": {
        "kernel_log.machine_checks": ["[Hardware Error]: Uncorrected, software restartable error."]
    },
    "host.namespaces": {"ranks.1.namespaces.pid": "pid:[4026532700]"},
    "host.one_machine": ({}, {"host.boot_id": "2c1e6a4e-77e5-4f0e-8a58-a4c7f2f1c001"}),
    "host.clocks": {"host.clock.ahead": -2.5},
    "host.clock_synchronised": {"host.clock_synchronised": False},
    "gpus.module": {"gpus.module": False},
    "gpus.seen": {"gpus.lost": ["GPU 1: NVML: GPU is lost"]},
    "gpus.cupy": {"packages.cupy-cuda13x": "14.2.0"},
    "gpus.nccl": {"packages.nvidia-nccl-cu13": "2.32.3"},
    "gpus.one_cupy": {"packages.cupy-cuda13x": "14.2.0"},
    "gpus.memory_errors": {"gpus.devices.1.uncorrected": 3},
    "gpus.remap_failed": {"gpus.devices.1.remapped": [0, 1, 0, 1]},
    "gpus.remap_pending": {"gpus.devices.1.remapped": [0, 1, 1, 0]},
    "gpus.ecc": {"gpus.devices.1.ecc": [0, 0]},
    "gpus.slowed": {"gpus.devices.1.clock_reasons": 0x48},
    "gpus.persistence": {"gpus.devices.1.persistence": False},
    "gpus.mig": {"gpus.devices.1.mig": [1, 1]},
    "gpus.prohibited": {"gpus.devices.1.compute_mode": 2},
    "gpus.in_use": {"gpus.devices.0.processes": 2},
    "gpus.models": {"gpus.devices.1.name": "NVIDIA A100-SXM4-80GB"},
    "gpus.link": {"gpus.devices.1.link.generation": 3},
    "gpus.peers": {"gpus.peers.0-1.read": 1},
    "gpus.visible": {"ranks.0.variables": {"CUDA_VISIBLE_DEVICES": "0,2"}},
    "gpus.xid": {"kernel_log.xids": [XID | {"xid": 79}]},
    "gpus.xid_program": {"kernel_log.xids": [XID | {"xid": 31}]},
    "gpus.lost": {"kernel_log.lost": ["NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."]},
    "nccl.one_library": {"ranks.0.libraries.libnccl": ["/a/libnccl.so.2", "/b/libnccl.so.2"]},
    "nccl.one_version": {"ranks.1.nccl": "2.27.5"},
    "nccl.stack": ({"ranks.0.nccl": "2.27.5"}, {"limits.stack.soft": None}),
    "nccl.says_p2p": says("p2p", "only 52/56 GPU-to-GPU peer accesses passed verification"),
    "nccl.says_net_bw": says("net bw", "cross-nic rank 3 (node0): 265.1 Gbit/s, >30% off median"),
    "nccl.says_inventory": says("GPU inventory", "mismatch across 8 ranks"),
    "nccl.says_driver": says("CUDA driver version", "mismatch across 8 ranks"),
    "nccl.says_ecc": says("ECC", "uncorrected volatile errors on rank(s) {3}"),
    "nccl.says_nvlink": says("NVLink", "inactive link(s) on rank(s) {3}"),
    "nccl.says_environment": says("NCCL environment", "NCCL_DEBUG=INFO on rank(s) {0}"),
    "slurm.answers": {"slurm.problems": ["scontrol show config: no answer within 4 s"]},
    "slurm.node": {"slurm.node.State": "IDLE+DRAIN", "slurm.node.Reason": "Xid"},
    "slurm.mpi_types": {"slurm.mpi_types": ["none", "pmi2"]},
    "slurm.confined": {"slurm.config.TaskPlugin": "task/none"},
    "slurm.gres": {"slurm.node.Gres": "(null)"},
    "slurm.memlock": {
        "slurm.config.PropagateResourceLimitsExcept": "(null)",
        "limits.memlock.soft": 8 << 20,
    },
    "slurm.tasks": {"slurm.variables.SLURM_NTASKS": "8"},
    "slurm.cpus_per_task": {"ranks.1.cores": "1"},
    "slurm.cpus": {"ranks.1.cores": "0-7"},
    "slurm.gpus": {"slurm.variables.SLURM_GPUS_ON_NODE": "4"},
    "slurm.components": {"slurm.variables.SLURM_HET_SIZE": "2"},
    "slurm.nodes": {"slurm.variables.SLURM_JOB_NUM_NODES": "4"},
    "alike.memory": {"host.memory": 192 * GIB},
    "alike.memlock": {"limits.memlock.soft": 65536},
    "alike.stack": {"limits.stack.soft": None},
}
