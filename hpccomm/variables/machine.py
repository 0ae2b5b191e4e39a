"""What is set in this process, and what this machine says for verdicts: devices, and the version of NCCL."""

import os
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from hpccomm.variables.judging import Surroundings, VariableSetting
from hpccomm.variables.tables import version_code

SITE_FILE = Path("/etc/nccl.conf")

_FOLDERS = {"NCCL_IB_HCA": "sys/class/infiniband", "NCCL_SOCKET_IFNAME": "sys/class/net"}
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def conf_files(environ: Mapping[str, str], site: Path = SITE_FILE) -> tuple[Path, ...]:
    """Return the files that NCCL reads, the one that counts more first (NCCL 2.30, misc/param.cc: initEnvFunc)."""
    own = environ.get("NCCL_CONF_FILE")
    if not own and "HOME" in environ:
        own = f"{environ['HOME']}/.nccl.conf"
    return (Path(own), site) if own else (site,)


def conf_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yield names and values as NCCL takes them: white space belongs to them, lines without ``=`` are ignored."""
    try:
        text = os.fsdecode(file.read_bytes())  # the end of a line is \n alone
    except OSError:
        return
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:  # the name in a comment begins with #, as no variable's does
            yield name, value


def settings(
    environ: Mapping[str, str] | None = None, site: Path = SITE_FILE
) -> list[VariableSetting]:
    """Return all that is set, the value that counts first: the environment, then NCCL's files in their order."""
    present = os.environ if environ is None else environ
    found = [VariableSetting(name, value) for name, value in sorted(present.items())]
    for file in conf_files(present, site):
        found += [VariableSetting(name, value, str(file)) for name, value in conf_lines(file)]
    return found


def here(
    nccl: int | None = None, options: Collection[str] = (), root: Path = Path("/")
) -> Surroundings:
    """Return what is known of this machine. Local; loads no library.

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
    if nccl is None:
        wheels = (each for name in _WHEELS for each in metadata.distributions(name=name))
        nccl = version_code(next((each.version for each in wheels), ""))
    return Surroundings(nccl, devices, options, os.path.exists)
