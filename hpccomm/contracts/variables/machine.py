"""The variables that are set, and the machine's facts for verdicts: devices, NCCL's version.

`hpccomm env` and the NCCL backend pass them to `judging`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from hpccomm.contracts.variables.judging import Surroundings, VariableSetting
from hpccomm.contracts.variables.tables import PREFIXES, version_code

SITE_FILE = Path("/etc/nccl.conf")

_FOLDERS = {"NCCL_IB_HCA": "sys/class/infiniband", "NCCL_SOCKET_IFNAME": "sys/class/net"}
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def settings(
    environ: Mapping[str, str] | None = None, site: Path = SITE_FILE
) -> list[VariableSetting]:
    """Return all settings, the ones that take effect first: the environment, then NCCL's files in their order.

    As in NCCL 2.30 (misc/param.cc: initEnvFunc, setEnvFile), white space in a file belongs to names and values, and lines
    without ``=`` are ignored.
    """
    present = os.environ if environ is None else environ
    set_here = [VariableSetting(name, value) for name, value in sorted(present.items())]
    own = present.get("NCCL_CONF_FILE") or f"{present.get('HOME', '')}/.nccl.conf"
    for file in (Path(own), site):
        with suppress(OSError):
            for line in os.fsdecode(file.read_bytes()).split("\n"):
                name, equals, value = line.removesuffix("\r").partition("=")
                if equals:  # the name in a comment begins with #, as no variable's does
                    set_here.append(VariableSetting(name, value, str(file)))
    return set_here


def here(
    nccl: int | None = None, options: Collection[str] = (), root: Path = Path("/")
) -> Surroundings:
    """Return the facts of this machine. Local; loads no library.

    Parameters
    ----------
    nccl : int, optional
        Version of NCCL; by default that of the wheel, if one is installed.
    options : collection of str
        Fields of ncclConfig_t that the program sets.
    root : Path
        Of the file system.
    """
    devices = {
        variable: tuple(sorted(each.name for each in (root / folder).glob("*") if each.is_dir()))
        for variable, folder in _FOLDERS.items()
    }
    devices["interfaces"] = tuple(sorted({name for names in devices.values() for name in names}))
    if nccl is None:
        wheels = (each for name in _WHEELS for each in metadata.distributions(name=name))
        nccl = version_code(next((each.version for each in wheels), ""))
    return Surroundings(nccl, devices, options, os.path.exists)


def installed(prefix: str) -> frozenset[str]:
    """Return the variables with a prefix that the library's own program lists; none if it is not here. Starts it."""
    if not PREFIXES[prefix][1]:
        return frozenset()
    program, *words = PREFIXES[prefix][1].split()
    # An MPI library out of a wheel lies beside Python.
    places = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    program = shutil.which(program, path=os.pathsep.join(places)) or program
    # It leaves out what its own variables exclude.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, env=kept, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeError):
        return frozenset()
    names = re.findall(r"(?m)(?::param:|: \"|^\s*)(\w+)(?::type:|\" \(|=)", done.stdout)
    return frozenset(prefix + name.removeprefix(prefix) for name in names)
