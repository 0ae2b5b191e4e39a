"""The trees of all nodes of a job, gathered by MPI; only this node's tree if MPI fails.

A process of its own (`in_mpi`) uses MPI. With ``--nccl``, NCCL reports about itself there, from 2.31 on.

`hpccomm doctor` and `hpccomm topo` call it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Any

from hpccomm.backends.bootstrap.launch import launched
from hpccomm.tools.doctor import facts, in_mpi, rank

_NCCL_ENVIRONMENT = {"NCCL_RUN_DIAGNOSTICS": "1", "NCCL_RUN_RAS_DIAGNOSTICS": "1"}

_UNASKED: dict[str, Any] = {"unread": {"": "NCCL's own diagnostics run with --nccl only"}}

_DIAGNOSTIC = re.compile(
    r"NCCL DIAG \[(\w+)\]\s+([^:]+): (.*?)(?: in comm 0x[0-9a-f]+(?= |$).*)?$", re.MULTILINE
)


def nccl_facts(printed: str, failure: str | None) -> dict[str, Any]:
    """Return the findings of each check by its name, such as ``p2p``: sentences that NCCL marks for review.

    Parameters
    ----------
    printed : str
        What the process printed.
    failure : str or None
        Why NCCL could not be tried; None if the process did not come to it.
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

PROGRAM = (sys.executable, "-m", "hpccomm.tools.doctor.in_mpi")
"""The module that uses MPI."""

_LAST = 12
"""Lines to keep of the output of a process that failed."""


def gather(sources: Collection[str], *, nccl: bool = False) -> dict[str, Any]:
    """Return the trees by the names of the nodes: rank 0 of all nodes; elsewhere, and if MPI fails, of this node.

    Every process of the job calls it. Blocks, for `PATIENCE` at the longest.

    Parameters
    ----------
    sources : collection of str
        What to gather.
    nccl : bool
        Whether to let NCCL run its own diagnostics.
    """
    news, failure, printed = _heard(["nccl"] if nccl else [], sources)
    trees: dict[str, Any] = news.get("trees") or {}
    if not trees:
        tree = facts.gather(sources) | {"ranks": [{"rank": 0} | rank.gather()], "mpi": {}}
        trees = in_mpi.named([(os.uname().nodename, tree)])
    place, missing = launched(), news.get("missing", "")
    for tree in trees.values():
        mpi = tree["mpi"]
        mpi["missing"] = missing
        if missing:
            mpi["unread"] = {"": "mpi4py loads no MPI library"}
        else:
            mpi["failure"] = failure
            if not mpi.get("started"):
                mpi["unread"] = {"": "MPI did not start"}
        if place is not None and place.size > 1 and mpi.get("world", 1) == 1:
            del tree["ranks"]
            why = f"the {place.size} processes of the job do not see each other"
            tree["unread"] = {"ranks": why}
        tree["nccl"] = nccl_facts(printed, news.get("nccl")) if nccl else _UNASKED
    return trees


def problem(trees: Mapping[str, Any]) -> str:
    """Return why MPI did not start, where that is so: what a rank says that does not report."""
    mpi = next(iter(trees.values()))["mpi"] if len(trees) == 1 else {}
    return str(mpi.get("missing") or mpi.get("failure") or "").partition("; it printed")[0]


def _heard(more: list[str], sources: Collection[str]) -> tuple[Mapping[str, Any], str, str]:
    """Let a process use MPI; return its news, how it failed, and what it printed.

    The news are the last value of each kind: ``phase``, ``missing``, ``trees``, ``nccl``.
    """
    report, printed = os.memfd_create("report"), os.memfd_create("printed")
    os.set_inheritable(report, True)
    command = [*PROGRAM, str(report), ",".join(sorted(sources)), *more]
    environment = dict(os.environ) | (_NCCL_ENVIRONMENT if more else {})
    # PMI's socket is a descriptor that a rank inherits from its launcher.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        close_fds=False,
        env=environment,
    ) as process:
        try:
            status: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
    said = _text(printed)
    news: dict[str, Any] = {}
    for line in _text(report).splitlines():
        news |= json.loads(line)
    return news, _failure(status, news, said), said


def _text(descriptor: int) -> str:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode(errors="replace")


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
