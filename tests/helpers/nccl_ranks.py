"""Ranks with NCCL between their devices: threads of this process, or the processes of an MPI job.

NCCL refuses two ranks of one process on one GPU ("Duplicate GPU detected", init.cc). NCCL_HOSTID cannot
make them look like two hosts, because it is read once per process. So tests whose ranks are threads
are skipped where there are fewer GPUs than ranks. Those with the mark ``processes``, whose ranks share
nothing, run under ``mpiexec`` as well.
"""

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from ranked import each_rank

import hpccomm
from hpccomm import testing
from hpccomm.backends.control import Control
from hpccomm.backends.loopback import LoopbackBackend, make_world
from hpccomm.backends.nccl import collectives, open_nccl
from hpccomm.errors import CollectiveTimeout
from hpccomm.memory.cuda import library
from hpccomm.runtime.waiting import Gate, drive

in_job = False
"""Whether the ranks are those of an MPI job, which runs the same test on all of them."""

LEFT_SECONDS = 2.0
"""How long the others have after a rank has failed."""


class Waits:
    """Waits under a deadline, as a communicator's calls do."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.gate = Gate(shares_process=True)

    def drive(self, name, steps):
        """Move steps on until they are done."""

        def expired(elapsed):
            return CollectiveTimeout(f"{name} was not done after {elapsed:.3g} s")

        drive(steps, timeout=self.timeout, gate=self.gate, expired=expired)


@dataclass
class Rank:
    """One rank: its host side, and what opens NCCL for it."""

    rank: int
    size: int
    device: int | None
    host: LoopbackBackend
    waits: Waits
    control: Control

    def open(self, **keywords: Any):
        """Return the NCCL side or None, and why."""
        return open_nccl(self.host, self.control, self.waits.drive, self.device, **keywords)

    def opened(self, **keywords: Any):
        """Return the NCCL side, which there must be."""
        backend, why = self.open(**keywords)
        assert backend is not None, why
        return backend

    def group(self, ranks, label):
        """Return the rank as a member of a group."""
        host = self.host.group(ranks, label)
        control = Control(host.collectives, self.waits.drive)
        return Rank(host.rank, host.size, self.device, host, self.waits, control)


@pytest.fixture
def pinned(monkeypatch):
    """Have NCCL held to an algorithm by a communicator of its own, as below 2.32."""
    # The NCCL that is installed has one version alone.
    monkeypatch.setattr(collectives, "selectable", lambda call, ability: False)


def skip_where_ranks_share(devices):
    """Skip a test whose ranks are threads, where there are fewer devices than that."""
    there = library.visible_devices()
    if devices > there:
        pytest.skip(f"NCCL wants a device for each of {devices} ranks, and there are {there}")


def run_ranks(n, function, *args, backend="loopback", timeout=60.0, **how):
    """As `hpccomm.testing.run_ranks`; in an MPI job this process is one of the ranks.

    It then returns only what this rank's call returned.
    """
    if in_job:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size != n:
            pytest.skip(f"runs on {n} ranks")
        library = "mpi" if backend == "loopback" else backend
        with hpccomm.new_comm(library, timeout=timeout, **how) as comm:
            return [function(comm, *args)]
    if backend == "nccl":
        skip_where_ranks_share(n)
    return testing.run_ranks(n, function, *args, backend=backend, timeout=timeout, **how)


def in_threads(n, main, whole=30.0):
    """Return what ``main(rank)`` gave or raised in each of `n` threads, for so many seconds at most."""
    results: list[Any] = [TimeoutError("this rank was not done")] * n

    def run(rank):
        try:
            results[rank] = main(rank)
        except BaseException as error:  # noqa: BLE001 (given to the test)
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    # A rank that fails leaves the others waiting for it: the first failure is what is told.
    ends = time.monotonic() + whole
    while any(thread.is_alive() for thread in threads) and time.monotonic() < ends:
        if any(
            isinstance(each, Exception) and not isinstance(each, TimeoutError) for each in results
        ):
            ends = min(ends, time.monotonic() + LEFT_SECONDS)
        time.sleep(0.005)
    return results


def on_ranks(n, function, *, timeout=20.0, devices=None, whole=30.0):
    """Return what ``function(rank)`` gave or raised on `n` ranks, each of them a thread.

    By default each has a device of its own; the test is skipped where there are too few.
    """
    devices = list(range(n)) if devices is None else devices
    skip_where_ranks_share(1 + max(device for device in devices if device is not None))
    world = make_world(n)

    def main(rank):
        host = LoopbackBackend(world, (), range(n), rank)
        waits = Waits(timeout)
        control = Control(host.collectives, waits.drive)
        return function(Rank(rank, n, devices[rank], host, waits, control))

    return in_threads(n, main, whole)


def on_devices(n, function, *args, backend="nccl", **how):
    """As `run_ranks`, with each rank's device current in it."""

    def main(comm):
        with library.cupy().cuda.Device(comm.device):
            return function(comm, *args)

    return run_ranks(n, main, backend=backend, **how)


def ranked(n, *, current=True, **how):
    """Make a test of what each of `n` ranks does, given its communicator and the test's fixtures.

    Its device is current in the rank, unless `current` is False; `how` is for `run_ranks`.
    """
    run = on_devices if current else run_ranks
    return each_rank(lambda test: run(n, test, **how))


def bare(n, **how):
    """Make a test of what each of `n` ranks does, given its `Rank` and the test's fixtures.

    Its device is current; `how` is for `on_ranks`.
    """

    def main(rank, test):
        with library.cupy().cuda.Device(rank.device):
            test(rank)

    return each_rank(lambda test: sound(on_ranks(n, partial(main, test=test), **how)))


def sound(results):
    """Return results of which none is an exception, else raise the first that says most."""
    for each in sorted(results, key=lambda each: isinstance(each, TimeoutError)):
        if isinstance(each, BaseException):
            raise each
    return results
