"""Runs tests of PyTorch's own `DistributedTest`, one after the other, on the ranks that MPI has started.

``mpiexec -n 2 python distributed_tests.py FOLDER BACKEND TEST...``, with a folder that all ranks see; all tests, if
none is named. Rank 0 prints which one has begun, and when it has ended that it passed or what went wrong.

PyTorch's runner starts processes for each test, which takes seconds. Here all tests share the processes, and each has
a default group of its own.
"""

import faulthandler
import os
import sys
import traceback
import unittest
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_utils import set_rng_seed

import hpccomm
import hpccomm.torch

LIMIT = 40
"""Seconds of a test, after which its job ends."""

DEADLINE = timedelta(seconds=30)

FOLDER, BACKEND = Path(sys.argv[1]), sys.argv[2]


def tests_of(module: Any) -> Any:
    """Return the class with the tests: what PyTorch's own files inherit, for want of a public name."""
    # PyTorch has no other name for it.
    return module.DistributedTest._DistTestBase


def ran(module: Any, name: str, rank: int) -> str:
    """Run a test on this rank; return what went wrong, or that it was skipped, if anything."""
    folder = str(FOLDER / name)
    os.environ |= {"TEMP_DIR": folder, "TORCH_DISTRIBUTED_DEBUG": "OFF"}
    dist.set_debug_level_from_env()  # the last test may have set another
    for each in ("barrier", "test_dir"):
        Path(folder, each).mkdir(parents=True, exist_ok=True)
    module.Barrier.barrier_id = 0
    # These ask for Gloo to know that tensors lie in host memory.
    module.BACKEND = "gloo" if name.startswith("test_accumulate") else BACKEND
    test = type("Test", (module.TestDistBackend, tests_of(module)), {})(name)
    test.rank, test.file_name = rank, f"{folder}/store"
    set_rng_seed()
    # PyTorch has no other name for it.
    wrong, meet = "", test._barrier
    try:
        dist.init_process_group(BACKEND, init_method="mpi://", timeout=DEADLINE)
        meet()  # else a rank that skips the test may leave Gloo while another still connects
        getattr(test, name)()
        meet()
    except (unittest.SkipTest, SystemExit) as left:
        wrong = f"skipped: {left}"
    except BaseException:  # noqa: BLE001 (printed)
        wrong = traceback.format_exc()
        with module._lock():  # nobody need wait for this rank
            Path(folder, "barrier", str(os.getpid())).write_text("1000")
    with suppress(Exception):  # a test may have ended the group
        dist.destroy_process_group()
    return wrong


def main() -> None:
    torch.set_num_threads(1)
    comm = hpccomm.new_comm(timeout=2 * LIMIT)
    # The module chooses by these what it tests: what it would test of Gloo.
    os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": str(comm.size), "MASTER_ADDR": "127.0.0.1"}
    os.environ["INIT_METHOD"] = f"file://{FOLDER}/store"
    module = import_module("torch.testing._internal.distributed.distributed_test")
    # Groups of the ranks 1 and 2 are tested from 8 ranks on, or of MPI.
    os.environ["BACKEND"] = "gloo" if comm.size < 3 else "mpi"
    every = (name for name in dir(tests_of(module)) if name.startswith("test_"))
    for name in sys.argv[3:] or every:
        if comm.rank == 0:
            print(f"begun {name}", flush=True)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        wrongs = [each for each in comm.all_gather_object(ran(module, name, comm.rank)) if each]
        if comm.rank == 0:
            print(f"ended {name} {' '.join(wrongs) or 'passed'}", flush=True)
    comm.finalize()


if __name__ == "__main__":
    main()
