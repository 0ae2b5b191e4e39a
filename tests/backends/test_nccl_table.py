"""hpccomm's table of NCCL's functions agrees with nccl.h and libnccl.

``nccl_headers.tsv`` has what `declared` finds in nccl.h of the wheels nvidia-nccl-cu12 2.25.1, 2.28.9 and
2.32.3, whether their libraries export it (nm -D), and sizes of structures by gcc. Where a wheel is installed,
its own header and library are looked at too; they need no driver::

    python tests/backends/test_nccl_table.py nccl.h libnccl.so.2      prints the lines of another version, to which gcc's sizes are added
"""

import ctypes
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import wheels

from hpccomm.backends.nccl import collectives, libnccl
from hpccomm.backends.nccl.libnccl import FUNCTIONS, CallConfig, comm_config
from hpccomm.contracts.variables import config_fields
from hpccomm.contracts.variables import members as known_fields

KINDS = {
    ctypes.c_void_p: "p", ctypes.c_size_t: "z", ctypes.c_int: "i", libnccl.UniqueId: "u",
}  # fmt: skip
"""Pointer, size, number, and an id by value."""

MEMBERS = {
    "size_t": ctypes.c_size_t, "int": ctypes.c_int, "unsignedint": ctypes.c_uint,
    "char*": ctypes.c_char_p, "uint64_t": ctypes.c_uint64, "cudaEvent_t": ctypes.c_void_p,
    "ncclConfigExt_t*": ctypes.c_void_p,
}  # fmt: skip


NUMBERED = """
INT8 UINT8 INT32 UINT32 INT64 UINT64 FLOAT16 FLOAT32 FLOAT64 BFLOAT16 FLOAT8_E4M3 FLOAT8_E5M2 SUM PROD MAX MIN AVG
"""
"""The numbers of dtypes and reductions, by hpccomm's names: nccl.h has ncclFloat8e4m3."""


def declared(header: str) -> dict[str, str]:
    """Return what a header declares: arguments of functions, values of enums, members of ncclConfig_t."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    found: dict[str, str] = {}
    for result, name, listed in re.findall(
        r"(ncclResult_t|const char\s*\*)\s+(nccl\w+)\s*\(([^()]*)\)\s*;", text
    ):
        given = [each for each in listed.split(",") if each.strip() not in ("", "void")]
        found[name] = ("t" if "char" in result else "i") + "".join(map(kind, given))
    numbers = dict(re.findall(r"#define\s+(NCCL_\w+)\s+(0x[0-9a-f]+|\d+)\b", text))
    found["version"] = str(
        int(numbers["NCCL_MAJOR"]) * 10000
        + int(numbers["NCCL_MINOR"]) * 100
        + int(numbers["NCCL_PATCH"])
    )
    found |= {f"={n}": value for n, value in re.findall(r"\b(nccl\w+)\s*=\s*(\d+)", text)}
    for name in ("ncclConfig", "ncclCollConfig"):
        body = re.search(rf"struct {name}_v\d+\s*\{{(.*?)\}}", text, re.DOTALL)
        members = re.findall(r"(?:const )?(\w+(?: int)?\s*\*?)\s*\b(\w+);", body[1] if body else "")
        listed = (f"{name}:{of.replace(' ', '')}" for of, name in members)
        found[f"{name}_t"] = ",".join(listed)
    magic = re.search(r"0xcafebeef", text)
    found["magic"] = magic[0] if magic else ""
    return found


def kind(argument: str) -> str:
    """Return an argument's kind."""
    if "*" in argument or re.search(r"\b(ncclComm_t|cudaStream_t|ncclWindow_t)\b", argument):
        return "p"
    if "ncclUniqueId" in argument:
        return "u"
    return "z" if "size_t" in argument else "i"


def members(listed: str) -> list[tuple[str, type]]:
    """Return the members of a structure, with their types of ctypes."""
    pairs = (each.split(":") for each in listed.split(",") if each)
    return [(name, MEMBERS[of]) for name, of in pairs]


RECORDED: defaultdict[str, dict[str, str]] = defaultdict(dict)
"""What was found, by version."""
for line in Path(__file__).with_name("nccl_headers.tsv").read_text("utf-8").splitlines():
    version, name, value = line.split("\t")
    RECORDED[version][name] = value


INSTALLED = wheels.folders("nccl")


def agree(found: dict[str, str]) -> None:
    """Compare the table with what a header declares."""
    version = int(found["version"])
    for name, function in FUNCTIONS.items():
        assert (name in found) == (version >= function.since), name
        if name in found:
            result = "i" if function.result is ctypes.c_int else "t"
            assert found[name] == result + "".join(map(KINDS.__getitem__, function.arguments)), name
    numbers = {
        f"nccl{name.replace('_', '').capitalize()}": getattr(collectives, name)
        for name in NUMBERED.split()
    }
    numbers |= {"ncclRemoteError": libnccl.REMOTE, "ncclInProgress": 7}
    numbers["ncclScalarHostImmediate"] = libnccl.HOST_IMMEDIATE
    assert {name: int(found[f"={name}"]) for name in numbers} == numbers
    for kind, name, since in (
        (comm_config(), "ncclConfig_t", libnccl.ORDER_SINCE),
        (CallConfig, "ncclCollConfig_t", libnccl.CALL_CONFIG_SINCE),
    ):
        own, theirs = list(kind._fields_), members(found[name])
        shorter = min(len(own), len(theirs))
        assert own[:shorter] == theirs[:shorter]
        assert len(theirs) >= len(own) or version < since
    assert int(found["magic"], 16) == libnccl.CONFIG_MAGIC


@pytest.mark.parametrize("version", RECORDED)
def test_the_table_is_what_the_header_declares_and_the_library_exports(version):
    found = RECORDED[version]
    agree(found)
    for name, function in FUNCTIONS.items():
        assert (name in found["exports"].split(",")) == (int(version) >= function.since), name

    for name in ("ncclConfig_t", "ncclCollConfig_t"):
        theirs = type("Theirs", (ctypes.Structure,), {"_fields_": members(found[name])})
        assert ctypes.sizeof(theirs) == int(found[f"sizeof {name}"])
    assert ctypes.sizeof(libnccl.UniqueId) == int(found["sizeof ncclUniqueId"])


def test_a_configuration_is_as_long_as_the_version_that_it_names():
    for version in map(int, RECORDED):
        made = libnccl.config("world.1", version, {"maxCTAs": 8, "netName": "IB"})
        assert made.version == version
        assert made.size == int(RECORDED[str(version)]["sizeof ncclConfig_t"])
        assert made.commName == (b"world.1" if version >= libnccl.CONFIG_SINCE else None)
        assert (made.maxCTAs, made.netName) == (8, b"IB")
        assert made.blocking == made.nvlinkCentricSched == made.nvlsHostMode == -(2**31)
        assert made.launchOrderImplicit == (1 if version >= libnccl.ORDER_SINCE else -(2**31))
        fields = [name for name, _ in members(RECORDED[str(version)]["ncclConfig_t"])][3:]
        assert list(config_fields())[: known_fields(version)] == fields
    assert libnccl.config("", 23203, {}).netName is None
    assert libnccl.config("", 23203, {"launchOrderImplicit": 0}).launchOrderImplicit == 0
    made = libnccl.call_config("ring")
    assert made.version == libnccl.CALL_CONFIG_SINCE
    assert made.size == int(RECORDED["23203"]["sizeof ncclCollConfig_t"])
    assert (made.algSelection, made.forceAlgSelection) == (b"ring", 1)
    assert made.minCTAs == made.CTAPolicy == -(2**31)
    assert made.ext is made.launchCompletionEvent is None


@pytest.mark.skipif(not INSTALLED, reason="no wheel of NCCL is installed")
def test_the_table_is_what_the_installed_wheel_has():
    folder = INSTALLED[0]
    found = declared((folder / "include/nccl.h").read_text("utf-8"))
    agree(found)
    if known := RECORDED.get(found["version"]):
        assert {name: known[name] for name in found if name in known} == {
            name: value for name, value in found.items() if name in known
        }
    library = ctypes.CDLL(str(folder / "lib/libnccl.so.2"))
    for name, function in FUNCTIONS.items():
        assert hasattr(library, name) == (int(found["version"]) >= function.since), name


def main(header: Path, library: Path) -> None:
    """Print the lines of a version, but for the sizes."""
    found, exports = declared(header.read_text("utf-8")), ctypes.CDLL(str(library))
    more = ("version", "ncclConfig_t", "ncclCollConfig_t", "magic")
    kept = {n: v for n, v in found.items() if n in FUNCTIONS or n in more or n[0] == "="}
    kept["exports"] = ",".join(name for name in FUNCTIONS if hasattr(exports, name))
    for name, value in kept.items():
        print(f"{found['version']}\t{name}\t{value}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
