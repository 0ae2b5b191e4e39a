"""The facts of a job as trees of JSON types: of a rank, of a node, and of all nodes through MPI.

MPI may fail, or end its process. So another process uses it, and the report survives:
``python -m hpccomm.tools.doctor.job DESCRIPTOR SOURCES [nccl]`` runs on every rank, and writes lines of JSON to an
inherited file: its progress and, on rank 0, finally the trees of all nodes. If MPI fails, there is only this node's
tree. With ``nccl``, that process also runs NCCL, which reports about itself from version 2.31 on.

`hpccomm doctor` and `hpccomm topo` call `gather`.
"""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from hpccomm.backends.bootstrap import launch, mpi
from hpccomm.backends.bootstrap.cuda_aware import aware
from hpccomm.backends.nccl import libnccl
from hpccomm.backends.nccl.facts import NO_NCCL, version_text
from hpccomm.errors import HpccommError
from hpccomm.results.schema import recorded_environment
from hpccomm.tools.doctor.reading import Reading, read, run, why
from hpccomm.tools.doctor.sources import gpus, host, limits, network, pci, slurm
from hpccomm.tools.doctor.sources.limits import rested, shares
from hpccomm.units import grouped, ranges

_LIBRARIES = re.compile(
    r"/(lib(?:mpi|nccl|cuda|ucp|fabric|psm2|psm3|ibverbs|pmix|pmi2?))(?:-abi)?[.\-_\d]*\.so[^/]*$"
)
"""Pattern of the mapped files that are recorded: libraries of communication."""

_NAMESPACES = ("ipc", "mnt", "net", "pid", "user")

_FLAVOURS = {"pmix": "PMIX_RANK", "pmi": "PMI_RANK"}
"""For each protocol between launchers and ranks, a variable that the launcher sets if it speaks it."""


def of_rank(root: Path = Path("/")) -> dict[str, Any]:
    """Return the facts of this rank that need no MPI. Local."""
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
    """Return the version of the NCCL library that hpccomm uses; raise LookupError without CuPy or NCCL."""
    if importlib.util.find_spec("cupy") is None:
        raise LookupError("CuPy is not installed")
    version = libnccl.version()
    if not version:
        raise LookupError(NO_NCCL)
    return version_text(version)


def libraries(maps: str) -> dict[str, list[str]]:
    """Return the paths of the mapped libraries by their short names, from the text of /proc/PID/maps."""
    paths = sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines()})
    libraries = grouped((match[1], path) for path in paths if (match := _LIBRARIES.search(path)))
    return dict(sorted(libraries.items()))


def of_mpi(library: Any) -> dict[str, Any]:
    """Return MPI's facts about itself and the job. Local; MPI has started.

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
    """Return the path of the mpiexec in PATH, and name and version of the library that it belongs to."""
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
    # The versions of PRRTE and Intel's launcher are not those of their libraries.
    known = version is not None and ("Open MPI)" in said or name == "MPICH")
    return name, version[0] if version and known else ""


Tree = dict[str, Any]
"""The facts of a node, by source."""

Trees = dict[str, Tree]
"""The trees of nodes, by the nodes' names."""

SOURCES: dict[str, Callable[[Reading], None]] = {
    "host": host.gather,
    "limits": limits.gather,
    "kernel_log": host.kernel_log,
    "packages": host.packages,
    "slurm": slurm.gather,
    "gpus": gpus.gather,
    "cpu": host.processors,
    "pci": pci.gather,
    "network": network.gather,
    "infiniband": network.rdma,
    "nvlink": gpus.nvlink,
}
"""The function that gathers the facts below each name of a node's tree."""


def of_node(only: Collection[str] = (), root: Path = Path("/")) -> Tree:
    """Return the tree of this node. Local; reads only.

    Parameters
    ----------
    only : collection of str
        Names of the sources to ask; all of them if empty.
    root : Path
        Root of the file system.
    """

    def ask(name: str) -> Tree:
        try:
            return read(SOURCES[name], root)
        except Exception as error:  # noqa: BLE001 (one source that fails must not hide the others)
            return {"unread": {"": f"the source failed: {why(error)}"}}

    asked = [name for name in SOURCES if name in only or not only]
    # At the same time, since some of them wait for counters to rise or for programs.
    try:
        with ThreadPoolExecutor(max(1, len(asked))) as pool:
            answers = [*pool.map(ask, asked)]
    except RuntimeError:  # the node, or a limit of the user, allows no more threads
        answers = [*map(ask, asked)]
    return dict(zip(asked, answers, strict=True))


READINGS = 7
"""Exchanges with each node to measure the offset of its clock; the quickest one is used."""


def main(argv: Sequence[str]) -> None:
    """Gather the facts of all nodes. Every rank calls it; MPI is started and ended."""
    report, sources = int(argv[0]), argv[1].split(",")

    def say(**news: Any) -> None:
        os.write(report, (json.dumps(news) + "\n").encode())

    say(phase="mpi4py loads its MPI library")
    try:
        library = mpi.load()
    except HpccommError as error:
        say(missing=str(error))
        return
    say(phase="MPI_Init")
    library.Init_thread(library.THREAD_MULTIPLE)
    say(phase="facts")
    if trees := gathered(library, sources):
        say(trees=trees)
    if "nccl" in argv[2:]:
        say(phase="NCCL")
        say(nccl=_communicate())
    say(phase="MPI_Finalize")
    library.Finalize()
    say(phase="")


def gathered(library: Any, sources: Sequence[str]) -> Trees:
    """Return the trees of all nodes by their names, on rank 0; on other ranks none. Collective.

    Parameters
    ----------
    library : module
        ``mpi4py.MPI``.
    sources : sequence of str
        Names of the sources to ask.
    """
    world = library.COMM_WORLD
    node = world.Split_type(library.COMM_TYPE_SHARED)
    leads = world.Split(0 if node.rank == 0 else 1)
    own = {"rank": world.rank} | of_rank()
    looks = world.gather(rested(world.barrier))
    if peers := _peers(node):
        own["peers"] = peers
    else:
        own.setdefault("unread", {})["peers"] = "the node has one rank"
    ranks, nodes = node.gather(own), None
    if ranks is not None:
        clock, about = _clock(leads), of_mpi(library) | {"nodes": leads.size}
        tree = of_node(sources) | {"mpi": about, "ranks": ranks}
        tree.setdefault("host", {})["clock"] = clock
        nodes = leads.gather((os.uname().nodename, tree))
    for each in (node, leads):
        each.Free()
    if nodes is None:
        return {}
    trees, taken = named(nodes), shares(looks)
    for tree in trees.values():
        for each in tree["ranks"]:
            each["others"] = taken[each["rank"]]
    return trees


def named(nodes: Sequence[tuple[str, Tree]]) -> Trees:
    """Return trees by the names of their nodes; nodes of one name are numbered."""
    trees: Trees = {}
    for name, tree in nodes:
        number = sum(each.partition("#")[0] == name for each in trees)
        trees[f"{name}#{number + 1}" if number else name] = tree
    return trees


def _peers(node: Any) -> dict[str, str]:
    """Return why this rank cannot reach other ranks' memory on its node, for each way; an empty text if it can.

    Returns no entries if the node has one rank. Collective over the node.
    """
    from hpccomm.memory.shared import offer, tried

    outcome = tried(dict(enumerate(node.allgather(offer()))), node.rank)
    node.Barrier()  # the memory must stay until all ranks have tried
    return {} if node.size == 1 else outcome._asdict()


def _clock(leads: Any) -> dict[str, float]:
    """Return the seconds by which this node's clock is ahead of rank 0's, and their uncertainty. Collective."""
    readings: list[tuple[float, float]] = []
    for other in range(1, leads.size):
        for _ in range(READINGS):
            if leads.rank == 0:
                leads.recv(source=other)
                leads.send(time.time(), dest=other)
            elif leads.rank == other:
                began = time.time()
                leads.send(None, dest=0)
                theirs = leads.recv(source=0)
                ended = time.time()
                readings.append((ended - began, (began + ended) / 2 - theirs))
    uncertain, offset = min(readings, default=(0.0, 0.0))
    return {"ahead": round(offset, 6), "uncertain": round(uncertain / 2, 6)}


def _communicate() -> str:
    """Make a communicator of NCCL and reduce over it; return why that failed, or an empty text. Collective."""
    import hpccomm

    try:
        with hpccomm.new_comm("nccl", timeout=60) as comm:
            from hpccomm.memory.cuda.library import cupy

            comm.all_reduce(cupy().ones(1024, dtype="float32"))
            comm.barrier()
            time.sleep(2)  # NCCL prints its comparison of the ranks later
    except HpccommError as error:
        return str(error)
    return ""


_NCCL_ENVIRONMENT = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"}

_UNASKED: dict[str, Any] = {"unread": {"": "NCCL's own diagnostics run with --nccl only"}}

_DIAGNOSTIC = re.compile(
    r"NCCL DIAG \[(\w+)\]\s+([^:]+): (.*?)(?: in comm 0x[0-9a-f]+(?= |$).*)?$", re.MULTILINE
)


def nccl_facts(printed: str, failure: str | None) -> dict[str, Any]:
    """Return the findings of each check of NCCL by its name, such as ``p2p``: the sentences that NCCL marks for review.

    Parameters
    ----------
    printed : str
        Output of the process.
    failure : str or None
        Why NCCL failed; empty if it did not. None if the process ended before it used NCCL.
    """
    if failure is None:
        return {"unread": {"": "MPI did not start, and NCCL's own diagnostics need it"}}
    sentences_by_check: dict[str, list[str]] = {}
    for tag, check, sentence in _DIAGNOSTIC.findall(printed):
        sentences = sentences_by_check.setdefault(check.strip(), [])
        if tag != "OK":
            sentences.append(sentence)
    if sentences_by_check:
        return {"says": sentences_by_check}
    return {"unread": {"": failure or "NCCL printed no diagnostics; it has them from 2.31 on"}}


PATIENCE = 60.0
"""Seconds that MPI may take to start, gather and end."""

PROGRAM = (sys.executable, "-m", "hpccomm.tools.doctor.job")
"""The command of the process that uses MPI."""

_LAST = 12
"""Lines to keep of the output of a process that failed."""


def gather(sources: Collection[str], *, nccl: bool = False) -> Trees:
    """Return trees by the names of their nodes: on rank 0 those of all nodes; elsewhere, and if MPI fails, this node's.

    Every process of the job calls it. Blocks, at most for `PATIENCE`.

    Parameters
    ----------
    sources : collection of str
        Names of the sources to gather.
    nccl : bool
        Whether to let NCCL run its own diagnostics.
    """
    try:
        news, failure, printed = _heard(["nccl"] if nccl else [], sources)
    except OSError as error:  # as where no temporary file can be written
        news, failure, printed = {}, f"could not be started: {error}", ""
    missing = news.get("missing", "")
    trees: Trees = news.get("trees", {})
    if not trees:
        why = "mpi4py loads no MPI library" if missing else "MPI did not start"
        tree = of_node(sources) | {"ranks": [{"rank": 0} | of_rank()], "mpi": {"unread": {"": why}}}
        trees = {os.uname().nodename: tree}
    place = launch.launched()
    for tree in trees.values():
        tree["mpi"] |= {"missing": missing} if missing else {"missing": "", "failure": failure}
        if place is not None and place.size > 1 and tree["mpi"].get("world", 1) == 1:
            del tree["ranks"]
            why = f"the {place.size} processes of the job do not see each other"
            tree["unread"] = {"ranks": why}
        tree["nccl"] = nccl_facts(printed, news.get("nccl")) if nccl else _UNASKED
    return trees


def problem(trees: Mapping[str, Any]) -> str:
    """Return why MPI did not start, or an empty text: a rank that does not report prints it."""
    mpi = next(iter(trees.values()))["mpi"] if len(trees) == 1 else {}
    return str(mpi.get("missing") or mpi.get("failure") or "").partition("; it printed")[0]


def _heard(more: list[str], sources: Collection[str]) -> tuple[Mapping[str, Any], str, str]:
    """Let another process use MPI. Return its news, how it failed (empty if it did not), and its output.

    The news are the last value of each kind: ``phase``, ``missing``, ``trees``, ``nccl``.
    """
    with TemporaryFile("w+") as report, TemporaryFile("w+", errors="replace") as printed:
        os.set_inheritable(report.fileno(), True)
        command = [*PROGRAM, str(report.fileno()), ",".join(sorted(sources)), *more]
        environment = os.environ | (_NCCL_ENVIRONMENT if more else {})
        # Descriptors stay open: PMI's socket is one that a rank inherits from its launcher.
        try:
            status: int | None = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, close_fds=False,
                env=environment, timeout=PATIENCE, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = None
        report.seek(0)
        printed.seek(0)
        news = {kind: each for line in report for kind, each in json.loads(line).items()}
        said = printed.read()
    return news, _failure(status, news, said), said


def _failure(status: int | None, news: Mapping[str, Any], said: str) -> str:
    if status == 0 and (news.get("phase") == "" or "missing" in news):
        return ""
    how = f"ended with status {status}"
    if status is None:
        how = f"did not come back within {PATIENCE:g} s"
    elif status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip(" -*")]
    more = f"; it printed: {' / '.join(lines[-_LAST:])}" if lines else ""
    return f"{news.get('phase') or 'the process'} {how}{more}"


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
