"""The part of the doctor that needs MPI, in a process of its own, so that the report survives.

``python -m hpccomm.tools.doctor.in_mpi DESCRIPTOR SOURCES [nccl]`` writes lines of JSON to an inherited
file: its progress and, on rank 0, finally the trees of all nodes. Every rank of the job runs it.
`hpccomm.tools.doctor.job` starts it.
"""

import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from hpccomm.backends.bootstrap.mpi import load
from hpccomm.errors import HpccommError
from hpccomm.tools.doctor import facts, rank
from hpccomm.tools.doctor.sources.others import rested, shares

READINGS = 7
"""Exchanges with each node to measure the offset of its clock: the quickest counts."""


def main(argv: Sequence[str]) -> None:
    """Gather the facts of all nodes. Every rank calls it; MPI is started and ended."""
    report, sources = int(argv[0]), argv[1].split(",")

    def say(**news: Any) -> None:
        os.write(report, (json.dumps(news) + "\n").encode())

    say(phase="mpi4py loads its MPI library")
    try:
        mpi = load()
    except HpccommError as error:
        say(missing=str(error))
        return
    say(phase="MPI_Init")
    mpi.Init_thread(mpi.THREAD_MULTIPLE)
    say(phase="facts")
    trees = gathered(mpi, sources)
    if trees is not None:
        say(trees=trees)
    if "nccl" in argv[2:]:
        say(phase="NCCL")
        say(nccl=_communicate())
    say(phase="MPI_Finalize")
    mpi.Finalize()
    say(phase="")


def gathered(mpi: Any, sources: Sequence[str]) -> dict[str, Any] | None:
    """Return the trees of all nodes by their names, on rank 0. Collective."""
    world = mpi.COMM_WORLD
    node = world.Split_type(mpi.COMM_TYPE_SHARED)
    leads = world.Split(0 if node.rank == 0 else 1)
    of_mpi = rank.of_mpi(mpi)
    own = {"rank": world.rank} | rank.gather()
    looks = world.gather(rested(world.barrier))
    if peers := _peers(node):
        own["peers"] = peers
    else:
        own.setdefault("unread", {})["peers"] = "the node has one rank"
    ranks = node.gather(own)
    trees = None
    if ranks is not None:
        offset = _clock(leads)
        tree = facts.gather(sources)
        tree |= {"mpi": of_mpi | {"nodes": leads.size}, "ranks": ranks}
        tree.setdefault("host", {})["clock"] = offset
        trees = leads.gather((platform.node(), tree))
    for each in (node, leads):
        each.Free()
    if trees is None or world.rank:
        return None
    taken = shares(looks)
    for _, tree in trees:
        for each in tree["ranks"]:
            each["others"] = taken[each["rank"]]
    return named(trees)


def named(nodes: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return trees by the names of their nodes; nodes of one name are numbered."""
    trees: dict[str, Any] = {}
    for name, tree in nodes:
        number = sum(each.partition("#")[0] == name for each in trees)
        trees[f"{name}#{number + 1}" if number else name] = tree
    return trees


def _peers(node: Any) -> dict[str, str]:
    """Return why this rank does not reach the memory of others on its node; empty texts if it does. Collective."""
    from hpccomm.memory.shared import offer, tried

    offers = dict(enumerate(node.allgather(offer())))
    outcome = tried(offers, node.rank)
    node.Barrier()  # until all have tried, the memory stays
    return {} if len(offers) == 1 else outcome._asdict()


def _clock(leads: Any) -> dict[str, float]:
    """Return how far this node's clock is ahead of rank 0's, and how sure that is, in seconds. Collective."""
    offset, uncertain = 0.0, 0.0
    for other in range(1, leads.size):
        if leads.rank == 0:
            for _ in range(READINGS):
                leads.recv(source=other)
                leads.send(time.time(), dest=other)
        elif leads.rank == other:
            readings = []
            for _ in range(READINGS):
                began = time.time()
                leads.send(None, dest=0)
                theirs = leads.recv(source=0)
                ended = time.time()
                readings.append((ended - began, (began + ended) / 2 - theirs))
            uncertain, offset = min(readings)
    return {"ahead": round(offset, 6), "uncertain": round(uncertain / 2, 6)}


def _communicate() -> str:
    """Make a communicator of NCCL and reduce over it; return why that failed, or an empty text. Collective."""
    import hpccomm

    try:
        with hpccomm.new_comm("nccl", timeout=60) as comm:
            from hpccomm.memory.cuda.library import cupy

            comm.all_reduce(cupy().ones(1024, dtype="float32"))
            comm.barrier()
            time.sleep(2)  # what NCCL compares between the ranks comes later
    except HpccommError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1:])
