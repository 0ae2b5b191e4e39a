"""The making of communicators: `hpccomm.new_comm` makes the first one, and `make` makes any over a given backend.

`new_comm` opens the backend and compares the settings of all ranks. `make` adds the lane of device arrays, the node's
communicator and a self-check. Communicators that are made from others are made by it, too.
"""

import json
import logging
import sys
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

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
from hpccomm.calls.core import Core, counting, dropped, end_dropped
from hpccomm.calls.lanes import AnyDeviceLane, Check, HostLane, Lanes, RefusingLane
from hpccomm.calls.on_host import HostDispatch
from hpccomm.calls.policy import Machine, Tables
from hpccomm.calls.tuning_table import Table
from hpccomm.communicator.communicator import Communicator
from hpccomm.communicator.groups import grouped, own_ranks
from hpccomm.contracts.backend import Backend
from hpccomm.errors import (
    BackendUnavailable,
    CollectiveTimeout,
    CommunicationError,
    ConfigurationError,
    HpccommError,
    PeerLost,
    UsageError,
    did_you_mean,
)
from hpccomm.memory.cuda import library
from hpccomm.memory.cuda.library import choose, visible_devices
from hpccomm.runtime.dump import DIRECTORY, install, process, write
from hpccomm.runtime.engine import CallEngine
from hpccomm.runtime.recorder import user_site
from hpccomm.runtime.service import before_end, guard_logging
from hpccomm.settings import CommOptions, Settings

if TYPE_CHECKING:
    from hpccomm.backends.nccl import NcclBackend
    from hpccomm.contracts.device import DeviceDispatch

NCCL, AWARE, STAGED = "nccl", "mpi", "staged"

_ORDER = {"nccl": (NCCL,), "mpi": (AWARE, STAGED), "loopback": (STAGED,)}
"""The ways for device arrays that are tried, by the backend that the user named. For another backend or ``"auto"``,
NCCL, the MPI library and staging are tried in this order."""


def open_device_lane(
    core: Core,
    parent: "AnyDeviceLane | None",
    left_out: tuple[int, ...],
    tell: bool,
    nccl_comm: object,
) -> AnyDeviceLane:
    """Return the lane of device arrays. Collective; blocks; the same on all ranks.

    Parameters
    ----------
    core : Core
        Core of the communicator that is being made.
    parent : DeviceLane, RefusingLane or None
        Device lane of the communicator that this one is made from; None without one.
    left_out : tuple of int
        Ranks of the parent that this communicator leaves out.
    tell : bool
        Whether to warn if device arrays must be staged, which is slow.
    nccl_comm : object
        The program's NCCL communicator; None makes one.

    Raises
    ------
    BackendUnavailable
        On every rank, if the user asked for NCCL and it cannot run.
    CollectiveTimeout
        If a rank does not take part.
    """
    backend, calls, control, settings = core.backend, core.calls, core.control, core.settings
    host, device = core.lanes.host.dispatch, core.device
    if isinstance(parent, RefusingLane):
        return RefusingLane(calls.name, parent.reason)
    mine = "" if device is not None else library.unavailable() or "it has no CUDA device"
    absent = control.objections(mine)
    if absent:
        if settings.backend == NCCL:
            raise BackendUnavailable(f"backend 'nccl' cannot run: {absent}")
        _log(calls, f"device arrays are refused: {absent}")
        return RefusingLane(calls.name, absent)
    assert device is not None
    # From here on there is a device. The imports are here so that hosts without a device do not load them.
    from hpccomm.backends.nccl import open_nccl
    from hpccomm.calls.lanes.device import DeviceLane
    from hpccomm.calls.on_device import NcclDispatch
    from hpccomm.calls.staged import StagedDispatch

    reasons, why = list[str](), ""
    for way in _ORDER.get(settings.backend, (NCCL, AWARE, STAGED)):
        reason = "; ".join(reasons) or "that was asked for"
        staged = StagedDispatch(host, backend.messages, device, reason)
        dispatch: DeviceDispatch | None = staged
        over: NcclBackend | None = None
        if way == NCCL:
            over, why = open_nccl(
                backend,
                control,
                calls.run_steps,
                device,
                name=calls.name,
                parent=parent.backend if parent is not None and left_out else None,
                left_out=left_out,
                settling=None if parent is None else parent.settling,
                config=settings.nccl_config,
                given=nccl_comm,
            )
            if over is None:
                dispatch = None
            else:
                dispatch = NcclDispatch(over, backend.topology, settings, staged)
        elif way == AWARE:
            from hpccomm.calls.cuda_aware import open_aware

            dispatch, why = open_aware(backend, control, calls, device, settings, staged)
        else:
            why = ""
        if dispatch is not None:
            best = "as asked" if settings.backend in _ORDER else "it is the best way"
            because = "; ".join((*reasons, why) if why else reasons) or best
            # Staging because the other ways failed is slow, and deserves a warning.
            level = logging.WARNING if tell and way == STAGED and reasons else logging.INFO
            _log(calls, f"device arrays go over {dispatch.name}: {because}", level)
            high = settings.high_priority_stream
            return DeviceLane(calls, core.check, dispatch, over, device, high_priority=high)
        reasons.append(f"{way} cannot: {why}")
    if settings.backend == NCCL:
        raise BackendUnavailable(f"backend 'nccl' cannot run: {why}")
    return RefusingLane(calls.name, "; ".join(reasons))


def _log(calls: CallEngine, text: str, level: int = logging.INFO) -> None:
    if calls.backend.rank == 0:
        logger.log(level, "%s: %s", calls.name, text)


NODE = "new_comm had nccl=, which is not the node's; comm.split(comm.node) takes them"
"""Reason for which a node's communicator refuses device arrays when the program gave its NCCL communicator."""


def make(
    backend: Backend,
    name: str,
    settings: Settings,
    device: int | None,
    parent: "AnyDeviceLane | None" = None,
    left_out: tuple[int, ...] = (),
    *,
    tables: Tables,
    of_node: bool = False,
    nccl: object = None,
) -> Communicator:
    """Return the communicator over `backend`, with its node's communicator if there are several nodes.

    Collective; blocks.

    Parameters
    ----------
    backend : Backend
        The ranks of the communicator.
    name : str
        The communicator's name.
    settings : Settings
        The communicator's settings.
    device : int or None
        CUDA device of this rank.
    parent : DeviceLane, RefusingLane or None
        The parent communicator's device lane; None without a parent.
    left_out : tuple of int
        Ranks of the parent that this communicator leaves out.
    tables : policy.Tables
        The tables of ``"auto"``.
    of_node : bool
        Whether it is the communicator of a node of another one.
    nccl : object
        The program's NCCL communicator of these ranks; None makes one.

    Raises
    ------
    BackendUnavailable
        On every rank, if the settings ask for what cannot run here.
    """
    calls = CallEngine(name, backend, settings)
    control = Control(backend.collectives, calls.run_steps)
    node_comm: Communicator | None = None
    try:
        if backend.topology.num_nodes > 1 and not of_node:
            with calls.beside_watchdog("making the node's communicator", ordered=True):
                group = grouped(backend, backend.topology.neighbors(backend.rank), 0)
            lane = parent if nccl is None else RefusingLane(name, NODE)
            try:
                with own_ranks(calls):
                    node_comm = make(
                        group, f"{name}.node", settings, device, lane, tables=tables, of_node=True
                    )
            except HpccommError as error:
                # The other nodes find a deadline or a loss by themselves.
                if not isinstance(error, CollectiveTimeout | PeerLost):
                    control.all_gather(str(error).encode())
                raise
            if why := max(control.all_gather(b"")):
                raise BackendUnavailable(f"on another node: {why.decode()}")
        if settings.shared_memory == "off":  # calls, messages and `empty` find none to use
            backend.collectives.shared = backend.messages.shared = None
        check = Check(calls, control, settings.check)
        host = HostLane(calls, check, HostDispatch(backend, settings, tables), backend)
        lanes = Lanes(host, RefusingLane(name, "it is being made"))
        core = Core(backend, calls, control, check, settings, lanes, device)
        lanes.device = open_device_lane(core, parent, left_out, not of_node, nccl)
        # A communicator that is made from another one uses the same ways, which were checked.
        if settings.self_check and parent is None:
            _check(core)
        calls.opened()
        core.made, core.site = True, None if of_node else user_site()
        return Communicator(core, partial(make, tables=tables), node_comm)
    except BaseException:
        if node_comm is not None:
            node_comm.abort()  # no caller will get it
        raise


def _check(core: Core) -> None:
    """Reduce a few numbers in each way that the lanes have, and compare the results with the right ones.

    The ranks agree on the outcome, so that no rank makes other calls, or ends, during another rank's check.
    """
    backend, name, wrong = core.backend, core.calls.name, ""
    expected = np.arange(4.0) * backend.size + sum(range(backend.size))
    mine = np.arange(4.0) + backend.rank
    for lane in (core.lanes.host, core.lanes.device):
        for choice, result in lane.tried(mine, core.control):
            if not wrong and not np.array_equal(result, expected):
                wrong = (
                    f"{choice.algorithm} all_reduce of {lane.memory} arrays over {choice.backend} gave "
                    f"{result.tolist()} and {expected.tolist()} is right"
                )
    wrong = core.control.objections(wrong)
    if wrong:
        raise CommunicationError(
            f"self-check of communicator {name!r}: {wrong}; this installation does not compute correctly "
            "between these ranks",
            communicator=name,
            rank=backend.rank,
            operation="self-check",
        )


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
        ``"auto"`` picks the best usable backend for each kind of array, and logs its choice. ``"nccl"``
        sends device arrays over NCCL, and fails if NCCL cannot run. With ``"mpi"``, ``"loopback"``
        (threads as ranks, without MPI) or another package's backend, host arrays go over that backend, and
        device arrays over a CUDA-aware MPI library or through host memory. Equal on all ranks, as are
        `timeout` and `options`.
    mpi_comm : mpi4py.MPI.Intracomm, optional
        The ranks; ``COMM_WORLD`` if None. It is duplicated.
    device : int, optional
        CUDA device number; None is the node-local rank modulo the visible devices.
    name : str, optional
        Name in messages and logs.
    timeout : float, optional
        Seconds after which a waiting call gives up; with ``math.inf`` it waits for ever. None takes
        ``HPCCOMM_TIMEOUT`` or 1800.
    options : CommOptions, optional
        Further settings.
    nccl : object, optional
        The program's NCCL communicator of the same ranks, for device arrays: CuPy's
        ``NcclCommunicator``, nccl4py's ``Communicator``, a process group of PyTorch, or the pointer as an
        integer. Its owner ends it, after this communicator. None makes one. Given on all ranks, or on
        none. ``nccl_config`` of `CommOptions` cannot be given with it: its owner has chosen the settings.

    Returns
    -------
    Communicator
        Use it in a ``with`` statement, or call its `finalize`.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run here.
    LaunchError
        If a job of N processes started as N jobs of one process, or if this process is not a rank but a
        child of one.
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
    # From here on, waits poll, or have their own deadlines, so that an error can be raised when one passes.
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
    # A job of another backend need not start MPI, unless a launcher has several ranks.
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
    # Ask `mpi_comm`, not the launcher's variables or the world, which ranks may see differently.
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
    """Set this process's job, rank and folder of dumps, unless an earlier communicator did."""
    if process.job:
        return
    world = None if backend.mpi_comm is None else mpi.start().COMM_WORLD
    ranks = world if world is not None and world.size > 1 else launched() or backend
    directory = settings.read("HPCCOMM_DUMP_DIR")
    if directory is None:  # ranks that are threads, or alone, have nothing to compare
        directory = "" if backend.shares_process or backend.size == 1 else DIRECTORY
    # If ranks are threads, any of them may be the first to come here.
    process.rank = 0 if ranks is backend and backend.shares_process else ranks.rank
    process.size = ranks.size
    # Ranks whose first communicators differ write into one folder, if the launcher names the job.
    process.job, process.directory = job_name() or backend.uid, str(directory)
    if not backend.shares_process:
        install()
        before_end(partial(write, "the process was ended", tell=False))


def _open(merged: Settings, mpi_comm: Any) -> tuple[Backend, str]:
    """Return the opened backend, and why it was chosen."""
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
    """Raise on every rank unless all ranks have the same settings and versions."""
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
    """Return the tables from which `auto` chooses: those of rank 0, on every rank. Collective; blocks.

    A tuning file that was measured on another shape of job is not used; rank 0 warns of it.

    Raises
    ------
    ConfigurationError
        On every rank, if rank 0 cannot read the tuning file, the description of the network or the
        system's facts.
    """
    message: object = None
    if backend.rank == 0:
        # The other ranks wait for this message, so it also carries every failure.
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
    """Log a warning once per process, since programs make communicators again and again."""
    logger.warning("%s", message)


def _raise_different(settings_of: dict[int, dict[str, object]]) -> None:
    """Raise if ranks differ. `settings_of` holds the settings of rank 0, and of each rank that differs from it."""
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
