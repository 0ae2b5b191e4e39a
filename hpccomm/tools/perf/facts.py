"""The facts of a run: its user, machine, libraries and settings.

perf, tune and simulate print these facts in the header of a table, and store them in the results file. Replay also uses
`on_root`.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from hpccomm.backends.bootstrap import launch
from hpccomm.communicator import Communicator
from hpccomm.errors import HpccommError, ResultsError
from hpccomm.results import facts as origin
from hpccomm.results import schema
from hpccomm.results.facts import Others
from hpccomm.results.files import as_utf8
from hpccomm.settings import busy
from hpccomm.tools.doctor.sources.limits import Span, look, shares
from hpccomm.tools.doctor.sources.limits import rested as rested
from hpccomm.units import counted, ranges


class DeviceDescription(NamedTuple):
    """The device of one rank. The first four fields are fields of `RankInfo`."""

    device: int
    device_hex: str
    device_info: str
    driver: str
    more: schema.DeviceInfo | None


ON_HOST = DeviceDescription(-1, "", "host memory", "", None)
"""The description for a rank whose arrays are in host memory."""


def run_info(
    comm: Communicator,
    config: schema.Config,
    skipped: tuple[str, ...] = (),
    *,
    device: DeviceDescription = ON_HOST,
    versions: Mapping[str, str] | None = None,
    series: Mapping[str, str] | None = None,
    group: int = 0,
    machine: Mapping[str, str] | None = None,
) -> schema.RunInfo:
    """Gather the facts of a run. Collective; every rank gets them.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    config : Config
        The settings.
    skipped : tuple of str
        The combinations of collective, backend and algorithm that are left out because they do not exist.
    device : DeviceDescription
        This rank's device.
    versions : mapping of str to str, optional
        Versions of further libraries.
    series : mapping of str to str, optional
        The series of launches to which the run belongs.
    group : int
        Color of this rank's group.
    machine : mapping of str to str, optional
        Further facts of this node.
    """
    of_node = launch.facts() | dict(machine or {})
    process = os.getpid(), ranges(os.sched_getaffinity(0))
    where = comm.rank, group, origin.host(), comm.node, *process, *device[:4]
    of_ranks = comm.all_gather_object((schema.RankInfo(*where), device.more, of_node))
    return local_run_info(
        config,
        skipped,
        tuple(rank for rank, *_ in of_ranks),
        devices=tuple(device for _, device, _ in of_ranks if device is not None),
        versions=_versions(comm) | dict(versions or {}),
        machine=together({rank.node: facts for rank, _, facts in of_ranks}),
        series=dict(series or {}),
    )


def local_run_info(
    config: schema.Config,
    skipped: tuple[str, ...],
    ranks: tuple[schema.RankInfo, ...],
    **more: Any,
) -> schema.RunInfo:
    """Return the facts of a run that this process starts now; `more` are further fields."""
    place = launch.launched()
    facts: dict[str, Any] = {
        "started": datetime.now().astimezone(),
        "user": origin.user(),
        "arguments": ("hpccomm", *map(as_utf8, sys.argv[1:])),
        "launcher": "none" if place is None else place.launcher,
        "versions": origin.versions(),
        "environment": schema.recorded_environment(os.environ),
        "slurm": schema.recorded_slurm(os.environ),
    }
    return schema.RunInfo(skipped=skipped, config=config, ranks=ranks, **(facts | more))


def others(comm: Communicator, rest: Span) -> Others:
    """Return how much of the machine other processes used during the rest, and from its end until now. Collective.

    Rank 0 gets it. The other ranks get empty lists.
    """
    comm.barrier()
    looks = comm.gather_object((origin.host(), *rest, look())) or []
    before = shares([(first, second) for _, first, second, _ in looks])
    during = shares([(first, last) for _, first, _, last in looks])
    return Others([host for host, *_ in looks], before, during, busy())


def together(nodes: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Return each fact of several nodes as one text. If nodes differ, the text has each value and its number of nodes."""
    result = {}
    for name in dict.fromkeys(name for facts in nodes.values() for name in facts):
        values = Counter(facts.get(name, "unknown") for facts in nodes.values()).most_common()
        spread = "; ".join(f"{value} on {counted(number, 'node')}" for value, number in values)
        result[name] = spread if len(values) > 1 else values[0][0]
    return result


def _versions(comm: Communicator) -> dict[str, str]:
    result = origin.versions()
    if comm.mpi_comm is not None:
        from mpi4py import MPI

        name, number = MPI.get_vendor()
        result["mpi4py"] = metadata.version("mpi4py")
        result["mpi"] = f"{name.replace(' ', '')}-{'.'.join(map(str, number))}"
    return result


T = TypeVar("T")


def on_root(comm: Communicator, action: Callable[[], T]) -> T | None:
    """Call `action` on rank 0 alone, and raise its expected errors on every rank. Collective; blocks.

    After any other error, rank 0 alone raises it. Once rank 0 leaves the communicator, the others raise PeerLost.

    Returns
    -------
    object
        The result of `action` on rank 0; None elsewhere.

    Raises
    ------
    HpccommError
        The error of `action`. An OSError becomes a `ResultsError`.
    """
    value: T | None = None
    failure: HpccommError | None = None
    if comm.rank == 0:
        try:
            value = action()
        except HpccommError as error:
            failure = error
        except OSError as error:
            failure = ResultsError(f"rank 0 cannot read or write a file: {error}")
    failure = comm.broadcast_object(failure)
    if failure is not None:
        raise failure
    return value


def figures(
    nbytes: float, seconds: float, factor: float, printed: float | None = None
) -> tuple[float, float, float]:
    """Return time, algorithm bandwidth and bus bandwidth of a measurement, as fields of `Row`.

    Parameters
    ----------
    nbytes : float
        Bytes that count in algorithm bandwidth.
    seconds : float
        Time of one operation, from which bandwidths are computed.
    factor : float
        Bus bandwidth divided by algorithm bandwidth.
    printed : float, optional
        The printed time in seconds, if it differs from `seconds`.
    """
    # An operation that takes no time gets bandwidth 0: an infinite one would make the average infinite.
    algbw = nbytes / 1e9 / seconds if seconds > 0 else 0.0
    return (seconds if printed is None else printed) * 1e6, algbw, algbw * factor
