"""Makes the first communicator: `hpccomm.new_comm`.

It opens the backend, agrees the settings over all ranks, and calls `making`.
"""

import json
import logging
import sys
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np

import hpccomm
from hpccomm import backends, settings
from hpccomm.backends import seat
from hpccomm.backends.bootstrap import mpi
from hpccomm.backends.bootstrap.launch import cores, job_name, launched, processor
from hpccomm.backends.bootstrap.presence import JobArrival
from hpccomm.backends.control import Control
from hpccomm.backends.mpi import ended_making
from hpccomm.calls import policy
from hpccomm.calls.algorithms import memory_way, sharing
from hpccomm.calls.core import counting, dropped, end_dropped
from hpccomm.calls.policy import Machine, Tables
from hpccomm.calls.tuning_table import Table
from hpccomm.communicator import Communicator
from hpccomm.communicator.making import make
from hpccomm.contracts.backend import Backend
from hpccomm.errors import (
    BackendUnavailable,
    ConfigurationError,
    HpccommError,
    UsageError,
    did_you_mean,
)
from hpccomm.memory.cuda.library import choose, visible_devices
from hpccomm.runtime.dump import DIRECTORY, install, process, write
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.service import before_end, guard_logging
from hpccomm.settings import CommOptions, Settings

logger = logging.getLogger("hpccomm")

_warned = False


def new_comm(
    backend: str = "auto",
    *,
    mpi_comm: Any = None,
    device: int | None = None,
    name: str | None = None,
    timeout: float | None = None,
    options: CommOptions | None = None,
    nccl: object = None,
) -> Communicator:
    """Make a communicator. Collective over `mpi_comm`; blocks.

    Parameters
    ----------
    backend : str
        ``"auto"`` picks the best usable one for each kind of array, and logs its choice. ``"nccl"``
        has device arrays go over NCCL, and fails where that cannot be. ``"mpi"``; ``"loopback"``
        (threads as ranks, without MPI); or another package's: host arrays go over it, and device
        arrays over a CUDA-aware MPI library or through host memory. Equal on all ranks, as are
        `timeout` and `options`.
    mpi_comm : mpi4py.MPI.Intracomm, optional
        The ranks; ``COMM_WORLD`` if None. It is duplicated.
    device : int, optional
        CUDA device number; None is the node-local rank modulo the visible devices.
    name : str, optional
        For messages and logs.
    timeout : float, optional
        Seconds after which a call that waits gives up; ``math.inf`` never. None takes
        ``HPCCOMM_TIMEOUT`` or 1800.
    options : CommOptions, optional
        The rest.
    nccl : object, optional
        An NCCL communicator that the program has of the same ranks, for device arrays: CuPy's
        ``NcclCommunicator``, nccl4py's ``Communicator``, a process group of PyTorch, or the pointer as an
        integer. Its owner ends it, after this communicator. None makes one. Given on all ranks, or on
        none. ``nccl_config`` of `CommOptions` does not fit it: its owner has made it with settings of its own.

    Returns
    -------
    Communicator
        Use it in a ``with`` statement, or call its `finalize`.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run here.
    LaunchError
        If a job of N processes came up as N jobs of one, or if this process is not a rank, but was
        started by one.
    ConfigurationError
        On every rank, if settings or versions differ between ranks.
    UsageError
        If an argument does not fit.
    """
    global _warned
    if nccl is not None and backend not in ("auto", "nccl"):
        raise UsageError(f"nccl is given and backend is {backend!r}; leave backend out")
    merged = settings.merge(backend if nccl is None else "nccl", timeout, options)
    if nccl is not None and merged.nccl_config:
        raise UsageError(
            f"nccl is given and options.nccl_config has {', '.join(merged.nccl_config)}, but a communicator that exists "
            "keeps its owner's settings; leave nccl_config out, and have the owner set the fields; or leave nccl out"
        )
    if merged.algorithm != policy.AUTO and merged.algorithm not in policy.names():
        known = policy.names()
        advice = did_you_mean(merged.algorithm, known, f"give one of {', '.join(map(repr, known))}")
        raise ConfigurationError(
            f"algorithm (options.algorithm or HPCCOMM_ALGORITHM) is {merged.algorithm!r}; {advice}"
        )
    if merged.backend not in ("auto", *backends.FOR_DEVICES):
        backends.opener(merged.backend)
    settings.check_name(name)
    if not _warned:
        _warned = True
        settings.warn_of_unknown()
    if device is not None:
        device = choose(device, 0, visible_devices())
    called = name or "world"
    arrival = JobArrival(called, merged.timeout, mpi.end_started_job)
    # Threads as ranks poll, and raise by themselves.
    alone = seat.world is not None or merged.backend == "loopback"
    if not alone:
        mpi.check_own()
    with counting(), nullcontext() if alone else arrival.awaited():
        with arrival.apart(), suppress(BackendUnavailable):  # which is raised, if it matters, below
            if not alone:
                mpi.load()
        try:
            _agree_backend(merged.backend, mpi_comm)
            opened, why = _open(merged, mpi_comm)
        except Exception as error:
            if alone or isinstance(error, HpccommError):
                raise
            told = ended_making(error, mpi_comm)
            if told is None:
                raise
            raise told from error
        settings.start_logging(opened.rank)
        guard_logging()
        _describe_process(opened)
        logger.info("host arrays go over %s: %s", opened.name, why)
        control = Control(opened.collectives, CallEngine(called, opened, merged).run_steps)
        _agree(opened, control, merged, nccl)
        there = dropped(opened)
        everyone = control.all_gather(json.dumps([*there]).encode())
        end_dropped(there, map(json.loads, everyone))
        place = opened.topology.local_rank(opened.rank)
        device = choose(device, place, visible_devices())
        tables = _tables(opened, control, merged)
    if not alone and opened.mpi_comm is not None:
        mpi.note_present(merged.timeout, opened)
    # What follows polls, or sees to its own deadlines: what passes them there can be raised.
    with counting():
        comm = make(opened, called, merged, device, tables=tables, nccl=nccl)
    file = settings.read("HPCCOMM_RECORDING")
    if file and not alone:
        from hpccomm.communicator.recording import record_job

        record_job(comm, str(file))
    return comm


def _agree_backend(name: str, mpi_comm: Any) -> None:
    """Raise on every rank of an MPI job unless all ask for the same backend.

    Ranks that open different ones would never meet.
    """
    launch = launched()
    # Other backends' need not start MPI, unless a launcher has several ranks.
    starts = name in ("auto", "mpi", *backends.FOR_DEVICES) or (launch and launch.size > 1)
    if not starts or seat.world is not None:
        return
    if name == "loopback":
        try:
            mpi.check_own()
        except HpccommError:
            return  # a child of a rank: its MPI is not for this process
    try:
        started = mpi.start()
    except BackendUnavailable:
        return  # `_open` reports it, if it matters
    # Not by the launcher's variables or by the world, which ranks may see differently.
    everyone = started.COMM_WORLD if mpi_comm is None else mpi_comm
    usable = isinstance(everyone, started.Intracomm) and everyone != started.COMM_NULL
    if not usable or everyone.size == 1:
        return  # likewise
    apart = everyone.Dup()
    asked = apart.allgather(name)
    apart.Free()
    _raise_different(
        {rank: {"backend": each} for rank, each in enumerate(asked) if each != asked[0] or not rank}
    )


def _describe_process(backend: Backend) -> None:
    """Say who this process is and where its records go, unless an earlier communicator did."""
    if process.job:
        return
    world = None if backend.mpi_comm is None else mpi.start().COMM_WORLD
    ranks = world if world is not None and world.size > 1 else launched() or backend
    directory = settings.read("HPCCOMM_DUMP_DIR")
    if directory is None:  # ranks that are threads, or alone, have nothing to compare
        directory = "" if backend.shares_process or backend.size == 1 else DIRECTORY
    process.rank, process.size = ranks.rank, ranks.size
    # Ranks whose first communicators differ write into one folder, if the launcher names the job.
    process.job, process.directory = job_name() or backend.uid, str(directory)
    if not backend.shares_process:
        install()
        before_end(partial(write, "the process was ended", tell=False))


def _open(merged: Settings, mpi_comm: Any) -> tuple[Backend, str]:
    """Return the backend and why it is that one."""
    hints = merged.hints
    if merged.backend not in ("auto", *backends.FOR_DEVICES):
        return backends.opener(merged.backend)(mpi_comm, hints), "as asked"
    if mpi_comm is None and seat.world is not None:
        return backends.opener("loopback")(None, hints), "this thread is a rank of run_ranks"
    try:
        return backends.opener("mpi")(mpi_comm, hints), "it is the best that runs here"
    except BackendUnavailable as error:
        launch = launched()
        if mpi_comm is not None or (launch is not None and launch.size > 1):
            raise
        logger.warning("running as a single rank without MPI: %s", error)
        why = f"a single rank needs no MPI, and there is none ({error})"
        return backends.opener("loopback")(None, hints), why


def _agree(backend: Backend, control: Control, merged: Settings, nccl: object) -> None:
    """Raise on every rank unless all have the same settings and versions."""
    mine = {
        **merged.agreed(),
        "nccl": "None" if nccl is None else "given",
        "hpccomm": hpccomm.__version__,
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "byteorder": sys.byteorder,
    }
    differing = control.differing(json.dumps(mine).encode())
    if differing:
        backend.close()
    _raise_different({rank: json.loads(text) for rank, text in differing.items()})


def _tables(backend: Backend, control: Control, merged: Settings) -> Tables:
    """Return the tables that `auto` chooses from: rank 0's, on every rank. Collective; blocks.

    A tuning file that was measured on another shape of job is left aside, with a warning on rank 0.

    Raises
    ------
    ConfigurationError
        On every rank, if rank 0 cannot read the tuning file or the description of the network, or
        the system's facts cannot be read.
    """
    message: object = None
    if backend.rank == 0:
        # The others wait for this message, so every failure is in it.
        try:
            library = "" if backend.mpi_comm is None else mpi.vendor(mpi.start())
            found = library, processor(), cores()
            tuned: tuple[Table, ...] = ()
            if merged.tuning_file:
                tuned = policy.read(merged.tuning_file)
            links: tuple[str, ...] = ()
            if merged.network:
                from hpccomm.schedules.cost.network import dump, load

                network = load(merged.network)
                links = network.name, dump(network)
            message = found, [table.document() for table in tuned], links, ""
        except ConfigurationError as error:
            message = (), [], (), str(error)
        except OSError as error:
            message = (), [], (), f"rank 0 cannot read what auto goes by: {error}; let it be read"
    facts, written, links, failure = json.loads(control.bcast(json.dumps(message).encode()))
    try:
        if failure:
            raise ConfigurationError(failure)
        fitting = tuple(map(Table.of, written))
        tables = Tables(Machine(*facts), fitting, merged.tuning_file, tuple(links))
        way = memory_way(sharing(backend, merged))
    except ConfigurationError:
        backend.close()
        raise
    misfit = tables.misfit(tables.shape(backend.name, backend.topology, way))
    if misfit and backend.rank == 0:
        _warn_once(misfit)
    return tables


@cache
def _warn_once(message: str) -> None:
    """Log a warning, unless it was logged before: programs make communicators again and again."""
    logger.warning("%s", message)


def _raise_different(settings_of: dict[int, dict[str, object]]) -> None:
    """Raise for the ranks that differ from rank 0, if any."""
    if len(settings_of) < 2:
        return
    reference = settings_of.pop(0)
    differences = [
        f"{key} is {reference[key]!r} on rank 0 and {theirs[key]!r} on rank {rank}"
        for rank, theirs in settings_of.items()
        for key in reference
        if theirs[key] != reference[key]
    ]
    raise ConfigurationError(
        f"the ranks have different settings: {'; '.join(differences)}; make them equal on all ranks"
    )
