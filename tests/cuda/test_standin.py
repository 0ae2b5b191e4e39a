"""The stand-in for CuPy and PyTorch looks like them: names, arguments, dtypes, missing parts."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from alone import alone

cupy = pytest.importorskip("cupy")
surface = pytest.importorskip("standin.surface")

pytestmark = pytest.mark.standin


# It looks like the real one.

EXACT = ("cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nccl", "cupy.cuda.stream")


def public(module):
    """Return the names of a module that are CuPy's, as `surface` takes them."""
    names = []
    for name, value in vars(import_module(module)).items():
        ours = getattr(value, "__module__", "cupy").partition(".")[0] in ("cupy", "standin")
        if name.startswith("_") or inspect.ismodule(value) or not ours:
            continue
        names.append(f"{module}:{name}")
        if inspect.isclass(value):
            names += [f"{module}:{name}.{part}" for part in vars(value) if part[0] != "_"]
    return names


@pytest.fixture(scope="module")
def real():
    """What the real CuPy looks like, from a process that has it: ``STANDIN_REAL_PYTHON`` or this Python."""
    names = [name for module in ("cupy", *EXACT) for name in public(module)]
    names += [f"cupy:{name}.types" for name in cupy._loops.TYPES]
    names += [f"nccl:{name}" for each in OF_THE_RULES.values() for name in each]
    done = subprocess.run(
        [os.environ.get("STANDIN_REAL_PYTHON", sys.executable), surface.__file__],
        input=json.dumps(names),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"there is no real CuPy to compare with ({why}); install cupy-cuda12x")
    found = json.loads(done.stdout)
    if found["version"].split(".")[0] != cupy.__version__.split(".")[0]:
        pytest.skip(f"CuPy {found['version']} is another version than the stand-in's")
    return found


def test_every_name_is_cupys(real):
    missing = [name for name, found in real["names"].items() if found == {"missing": True}]
    assert missing == []


def test_arguments_and_numbers_are_cupys(real):
    unlike = ("Graph", "MemoryPool", "from_pci_bus_id")
    for name, found in real["names"].items():
        told = found != {"arguments": None}  # an attribute of instances tells nothing
        if name.partition(":")[0] in EXACT and told and not name.endswith(unlike):
            assert surface.described(name) == found, name


def test_functions_of_elements_have_cupys_loops(real):
    for name, loops in cupy._loops.TYPES.items():
        told = real["names"][f"cupy:{name}.types"]["value"]
        assert loops == [loop for loop in told if "V" not in loop], name


def test_errors_say_what_the_real_ones_say(real):
    assert surface.texts("cupy") == real["texts"]


def test_status_7_of_nccl_is_a_key_error():
    nccl = import_module("cupy.cuda.nccl")
    with pytest.raises(KeyError):
        nccl.NcclError(7)


# Which rules it keeps, and how they are known.

COMPARED = "compared"
"""The installed library has the names that the rule is of; what they do was read in its source."""

READ = "read"
"""In the source alone. Nobody has seen a GPU keep any of the rules."""

RULES = {
    1: (
        "Memory is registered on all ranks of a call at one offset; with NVSwitch a rank waits deaf to aborts",
        "NCCL user guide, User Buffer Registration; NCCL 2.30 transport/nvls.cc:966, misc/shmutils.cc:51",
        READ,
        "test_registered_memory_is_for_all_ranks_of_a_call_at_one_offset",
    ),
    2: (
        "A thread's first call makes a context on device 0; number 0 is the current device's null stream",
        "CUDA Runtime API, cudaSetDevice and Initialization; Stream synchronization behavior",
        READ,
        "test_the_first_call_of_a_thread_makes_a_context_on_device_0",
    ),
    3: (
        "One rank: on the current device, nothing in place, no factor of float8",
        "NCCL 2.30 enqueue.cc:3040, device/onerank.cu:79",
        READ,
        "test_one_rank_copies_on_the_current_device_and_has_no_factor_of_float8",
    ),
    4: (
        "A stream has room for so much; a launch, a record and a copy wait for room",
        "PyTorch pull requests 97066 and 122732 (a watchdog stuck in a CUDA call)",
        READ,
        "test_a_stream_has_room_for_so_much_and_whoever_puts_more_on_it_waits",
    ),
    5: (
        "The capture mode of a thread says which captures unsafe calls of it end",
        "CUDA Runtime API, cudaThreadExchangeStreamCaptureMode",
        READ,
        "test_the_mode_of_a_thread_says_which_captures_forbid_it",
    ),
    6: (
        "A kernel is loaded at its first use, which is an unsafe call",
        "CUDA Programming Guide, Lazy Loading; CuPy compiles at the first use",
        READ,
        "test_a_kernel_is_loaded_at_its_first_use_which_a_capture_may_forbid",
    ),
    7: (
        "NCCL reads its files once, and most variables; NCCL_ALGO for each communicator",
        "NCCL 2.30 misc/param.cc (initEnvFunc, ncclLoadParam), misc/utils.cc:125, graph/tuning.cc:458",
        COMPARED,
        "test_trap_what_nccls_file_says_is_seen_and_outlives_a_pin",
    ),
    8: (
        "An abort frees what a thread in a call uses; a revocation frees nothing",
        "NCCL 2.30 init.cc: commReclaim, ncclCommRevoke (from 2.28.7 on)",
        COMPARED,
        "test_an_abort_while_a_thread_is_in_a_call_is_seen",
    ),
    9: (
        "ncclMemAlloc gives pieces of 2 MiB; no handle where NCCL_LOCAL_REGISTER is 0",
        "NCCL 2.30 allocator.cc, register/register.cc",
        COMPARED,
        "test_memory_is_not_registered_where_that_is_switched_off",
    ),
    10: (
        "Collectives of a group run by size",
        "NCCL 2.30 enqueue.cc: ncclTaskCollSorter",
        READ,
        "test_collectives_of_a_group_run_by_size_and_not_in_the_order_of_the_calls",
    ),
    11: (
        "cudaFree and cudaFreeHost wait for the device",
        "CUDA Runtime API, cudaFree; CUDA Programming Guide, Implicit Synchronization",
        READ,
        "test_to_free_memory_waits_for_the_device",
    ),
    12: (
        "CuPy may warn when it is imported",
        "CuPy 14.2 _environment.py:592 and 677 (line 286 is for Windows)",
        READ,
        "test_a_cupy_that_warns_when_it_is_imported_can_be_tested",
    ),
    13: (
        "CuPy's eventQuery holds the interpreter's lock, and may wait in the driver",
        "CuPy 14.2 cupy_backends/cuda/api/runtime.pyx:1077",
        READ,
        "test_a_stream_has_room_for_so_much_and_whoever_puts_more_on_it_waits",
    ),
    14: (
        "Ranks of one host on one GPU are refused: before 2.30 by its address, then by its UUID",
        "NCCL 2.28 init.cc:904, 2.30 init.cc:1052",
        READ,
        "test_instances_of_one_gpu_are_one_device_before_2_30",
    ),
}
"""Rules that are easily missed: what, the source, how it is known, and what shows that it is kept."""

OF_THE_RULES = {
    7: ("NCCL_CONF_FILE", "NCCL_ALGO", "NCCL_HOSTID", "NCCL_LAUNCH_ORDER_IMPLICIT", "/.nccl.conf"),
    8: ("ncclCommRevoke", "ncclCommAbort"),
    9: ("NCCL_LOCAL_REGISTER", "ncclMemAlloc", "ncclCommRegister"),
}
"""Names that the library must have for a rule to be compared."""


def test_each_rule_has_a_test_and_a_source():
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert sorted(RULES) == list(range(1, 15))
    for number, (rule, source, known, test) in RULES.items():
        assert rule, number
        assert source, number
        assert (known == COMPARED) == (number in OF_THE_RULES)
        assert tests.count(test) > 1, (number, test)


def test_nccl_has_what_the_compared_rules_are_of(real):
    lacking = [name for names in OF_THE_RULES.values() for name in names if not real["nccl"][name]]
    assert lacking == []


# Arrays.


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, "U3", "M8[s]"])
def test_some_dtypes_lie_in_memory_but_nothing_is_computed_with_them(dtype):
    x = cupy.ndarray(4, dtype, cupy.cuda.alloc(4 * np.dtype(dtype).itemsize))
    assert x.dtype == np.dtype(dtype)
    with pytest.raises((TypeError, ValueError)):
        cupy.add(x, x)
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cupy.empty(4, dtype)


def test_numbers_of_python_follow_the_array_and_those_of_numpy_do_not():
    x = cupy.ones(2, np.float16)
    assert (x + 2).dtype == np.float16
    assert (x + np.float32(2)).dtype == np.float32
    assert (cupy.ones(2, np.int8) / 2).dtype == np.float64


def test_views_share_memory_and_tell_their_form():
    x = cupy.asarray(np.arange(24, dtype=np.float32).reshape(4, 6))
    part = x[1:, ::2]
    part[...] = 7
    assert (x.get()[1:, ::2] == 7).all()
    assert (x.get()[0] == np.arange(6)).all()
    assert part.base is x
    assert not part.flags.c_contiguous
    assert x[2].data.ptr == x.data.ptr + 2 * 24
    assert x.view(np.uint8).shape == (4, 24)


def test_arrays_go_through_dlpack_and_live_as_long_as_needed():
    taken = cupy.from_dlpack(cupy.arange(5, dtype=np.int32))
    cupy.full(5, 9, np.int32)  # would take the memory if it were free
    assert taken.get().tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError):
        cupy.from_dlpack(np.zeros(3))


def test_an_array_of_another_device_is_refused():
    with cupy.cuda.Device(1):
        x = cupy.zeros(2)
    with pytest.raises(ValueError, match="Array device must be same"):
        x + 1


# Machines on which something is missing.


def test_a_machine_without_a_driver():
    done = alone(
        "try:\n"
        "    cupy.cuda.runtime.getDeviceCount()\n"
        "except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "    print(error.status)\n",
        STANDIN_DRIVER="missing",
    )
    assert done.stdout.strip() == "35"


def test_visible_devices_are_those_of_the_machine():
    code = (
        "r = cupy.cuda.runtime\n"
        "print([r.getDeviceProperties(i)['uuid'] for i in range(r.getDeviceCount())])\n"
    )
    alls = alone(code, STANDIN_DEVICES="3").stdout
    some = alone(code, STANDIN_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0").stdout
    first, _, third = eval(alls)
    assert eval(some) == [third, first]


# PyTorch.


def test_a_tensor_follows_pytorchs_stream_and_not_cupys():
    torch = import_module("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.ones(3, device="cuda:0").add_(1)
        assert torch.cuda.current_stream(0).cuda_stream == stream.cuda_stream
        assert cupy.cuda.get_current_stream().ptr == 0
        assert x.tolist() == [2.0] * 3
    assert torch.cuda.current_stream(0).cuda_stream == 0
    assert x.is_cuda
    assert str(x.dtype) == "torch.float32"
