"""The table of NCCL's variables agrees with the installed NCCL, without a driver.

``nccl_constants.txt`` has the names in NCCL's strings that are constants of its interface, not variables.
"""

import ctypes
import mmap
import os
import re
from pathlib import Path

import pytest
import wheels
from alone import python

from hpccomm.contracts.variables import Surroundings, VariableSetting, judge, known, version_code

FOLDERS = wheels.folders("nccl")
CONSTANTS = set(Path(__file__).with_name("nccl_constants.txt").read_text().split())

pytestmark = pytest.mark.skipif(not FOLDERS, reason="no wheel of NCCL is installed")


def names_in(library: Path) -> set[str]:
    """Return the names in a file of several hundred MB, which is not copied."""
    names = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        at = text.find(b"NCCL_")
        while at >= 0:
            names.add(re.match(rb"\w+", text[at : at + 100])[0].decode())
            at = text.find(b"NCCL_", at + 5)
    return {re.match("[A-Z0-9_]+", name)[0] for name in names} - {"NCCL_"}


def test_every_name_in_the_library_is_in_the_table():
    library, told = FOLDERS[0] / "lib/libnccl.so.2", ctypes.c_int()
    ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(told))
    version, names = told.value, names_in(library)
    table = known()
    assert sorted(names - set(table) - CONSTANTS) == []
    assert CONSTANTS & set(table) == {"NCCL_GRAPH", "NCCL_NVLS"}  # also subsystems of the log
    for name, each in table.items():
        if each.library == "NCCL" and each.status == "live" and version_code(each.since) <= version:
            assert name in names, f"{name} is not in NCCL any more"
        gone = judge(VariableSetting(name, "1"), Surroundings(version))
        if gone.verdict in ("removed", "newer"):
            assert name not in names - CONSTANTS, f"{name} is in NCCL"


READ = """
import ctypes, sys
library, value, length = ctypes.CDLL(sys.argv[1]), ctypes.c_char_p(), ctypes.c_int()
if not hasattr(library, "ncclParamGetParameter"):
    sys.exit("too old")
library.ncclParamGetParameter(sys.argv[2].encode(), ctypes.byref(value), ctypes.byref(length))
print(value.value.decode())
"""


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("NCCL_SET_THREAD_NAME=True", "TRUE"), ("NCCL_SET_THREAD_NAME=yes", "FALSE"),
        ("NCCL_SET_THREAD_NAME=f", "FALSE"), ("NCCL_DEBUG=info", "INFO"), ("NCCL_DEBUG=DEBUG", "<unknown>"),
        ("NCCL_DEBUG_SUBSYS=coll, net", "COLL,NET"), ("NCCL_DEBUG_SUBSYS=COLLS", "INIT,ENV,BOOTSTRAP"),
    ],
)  # fmt: skip
def test_a_value_does_not_fit_where_nccl_goes_by_the_default(text, read):
    name, _, value = text.partition("=")
    library = FOLDERS[0] / "lib/libnccl.so.2"
    job = python("-c", READ, library, name, env=os.environ | {name: value})  # fmt: skip
    if job.stderr.strip() == "too old":
        pytest.skip("this NCCL does not say what it reads")
    assert job.stdout.strip() == read, job.stderr
    fits = judge(VariableSetting(name, value), Surroundings()).verdict in ("ok", "caution")
    assert fits == (read not in ("<unknown>", "INIT,ENV,BOOTSTRAP") and value != "yes")
