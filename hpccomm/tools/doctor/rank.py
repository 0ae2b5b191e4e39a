"""The facts of one rank: its binding, loaded libraries, variables, and its view of MPI.

`in_mpi` gathers them on every rank.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hpccomm.backends.bootstrap import launch, mpi
from hpccomm.backends.bootstrap.cuda_aware import aware
from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.facts import NO_NCCL, version_text
from hpccomm.results.schema import recorded_environment
from hpccomm.tools.doctor.reading import Reading, run
from hpccomm.tools.doctor.sources import slurm
from hpccomm.units import grouped, ranges

_LIBRARIES = re.compile(
    r"/(lib(?:mpi|nccl|cuda|ucp|fabric|psm2|psm3|ibverbs|pmix|pmi2?))(?:-abi)?[.\-_\d]*\.so[^/]*$"
)
"""Files mapped by a process that are recorded."""

_NAMESPACES = ("ipc", "mnt", "net", "pid", "user")

_FLAVOURS = {"pmix": "PMIX_RANK", "pmi": "PMI_RANK"}
"""How a launcher may speak to its ranks, and the variable that shows it."""


def gather(root: Path = Path("/")) -> dict[str, Any]:
    """Return the facts that need no MPI. Local."""
    reading = Reading(root)
    reading.put("pid", os.getpid())
    reading.put("cores", ranges(os.sched_getaffinity(0)))
    reading.take("nccl", _nccl)  # before the libraries: it loads one
    reading.file("libraries", "/proc/self/maps", libraries)
    links = {name: reading.path(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    reading.take("namespaces", lambda: {name: str(each.readlink()) for name, each in links.items()})
    reading.put("variables", recorded_environment(os.environ) | slurm.variables())
    return reading.facts()


def _nccl() -> str:
    """Return the version of the NCCL that hpccomm uses: CuPy's, or the one that is found without its binding."""
    if importlib.util.find_spec("cupy") is None:
        raise LookupError("CuPy is not installed")
    version = libnccl.own_binding().get_version()  # which asks for no device
    if not version:
        raise LookupError(NO_NCCL)
    return version_text(version)


def libraries(maps: str) -> dict[str, list[str]]:
    """Return the paths of the libraries that are mapped, by their short names."""
    paths = sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines()})
    libraries = grouped((match[1], path) for path in paths if (match := _LIBRARIES.search(path)))
    return dict(sorted(libraries.items()))


def of_mpi(library: Any) -> dict[str, Any]:
    """Return MPI's facts about itself and the job. Local; MPI is up.

    Parameters
    ----------
    library : module
        ``mpi4py.MPI``.
    """
    reading = Reading()
    place = launch.launched()
    name, version = library.get_vendor()
    cuda, why = aware(library, None)
    known = {
        "started": True,
        "vendor": name,
        "version": ".".join(map(str, version)),
        "library": " ".join(mpi.library_name(library).split()),
        "world": library.COMM_WORLD.size,
        "thread_level": library.Query_thread(),
        "thread_multiple": library.THREAD_MULTIPLE,
        "cuda_aware": cuda,
        "cuda_aware_why": why,
        "launcher": place.launcher if place else None,
        "launched": place.size if place else 1,
        "pmi": [flavour for flavour, variable in _FLAVOURS.items() if variable in os.environ],
    }
    reading.take("mpiexec", _mpiexec)
    return known | reading.facts()


def _mpiexec() -> dict[str, str]:
    """Return where the mpiexec of PATH is, and whose it is."""
    path = shutil.which("mpiexec") or shutil.which("mpirun")
    if path is None:
        raise LookupError("PATH has no mpiexec")
    try:
        asked = run([path, "--version"], 3)
    except subprocess.TimeoutExpired as error:
        raise LookupError(f"{path} --version does not answer") from error
    name, version = origin(asked.stdout + asked.stderr)
    return {"path": path, "vendor": name, "version": version}


_MARKS = (
    *(("Open MPI", "Open MPI"), ("OpenRTE", "Open MPI"), ("PRRTE", "Open MPI")),
    *(("Intel(R) MPI", "Intel MPI"), ("HYDRA", "MPICH")),
)


def origin(said: str) -> tuple[str, str]:
    """Return name (as mpi4py spells it) and version of the library that a launcher belongs to; empty if unknown."""
    name = next((name for mark, name in _MARKS if mark in said), "")
    version = re.search(r"\b\d+\.\d+\.\d+\b", said)
    # PRRTE and Intel's launcher count otherwise than their libraries.
    known = version is not None and ("Open MPI)" in said or name == "MPICH")
    return name, version[0] if version and known else ""
