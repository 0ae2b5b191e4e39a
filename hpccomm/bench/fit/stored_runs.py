"""The rows of a stored run, in the form that the cost model is fitted to.

`hpccomm.bench.fit.report` reads them for ``hpccomm fit``.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from hpccomm.bench.fit.parameters import Measurement
from hpccomm.bench.perf.names import OPS, TYPES
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.signature import Signature
from hpccomm.errors import ResultsError, UsageError
from hpccomm.reductions import ReduceOp
from hpccomm.results.run import Run, WholeSamples
from hpccomm.results.schema import Row
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Level, Network
from hpccomm.schedules.cost.network_files import load, parse
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Tuning
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.units import few

CHANNELS = 2
"""Pieces that are under way at the same time, unless a run says otherwise."""

GUESS = 1e-6, 5e9
"""Latency and bandwidth from which a fit begins."""


@dataclass(frozen=True, slots=True)
class Usable:
    """The usable part of a run.

    Attributes
    ----------
    rows : tuple of Row
        The rows.
    measurements : tuple of Measurement
        One for each.
    others : Counter of str
        How many rows cannot be used, by why.
    damage : list of str
        Rows whose samples alone are damaged.
    """

    rows: tuple[Row, ...]
    measurements: tuple[Measurement, ...]
    others: Counter[str]
    damage: list[str]


def usable(run: Run, network: Network, *, segment: int | None, channels: int | None) -> Usable:
    """Choose the rows of own algorithms.

    Parameters
    ----------
    run : Run
        The run.
    network : Network
        Its ranks.
    segment : int or None
        Bytes that the algorithms moved at a time; None is what the run says, or the default.
    channels : int or None
        Pieces that were under way at the same time; None is what the run says, or 2.
    """
    facts = run.info.simulation
    if segment is None:
        value = facts.get("segment") or run.info.environment.get("HPCCOMM_SEGMENT")
        segment = int(value.split()[0]) if value else DEFAULT_SEGMENT
    if channels is None:
        channels = int(facts.get("channels", CHANNELS))
    rows, measurements = [], []
    others: Counter[str] = Counter()
    samples = WholeSamples(run)
    for index, row in enumerate(run.rows):
        seconds = _seconds(row, samples(index))
        why = _unusable(row, network)
        if not why and math.isnan(seconds):
            why = "its samples are damaged"
        if not why and not seconds > 0:
            why = "took no time"
        if why:
            others[why] += 1
            continue
        call = _call(row, network.ranks)
        elements = max(1, segment // call.dtype.itemsize)
        tuning = Tuning(elements, channels, network.topology())
        rows.append(row)
        measurements.append(Measurement(call, row.algorithm, tuning, seconds))
    return Usable(tuple(rows), tuple(measurements), others, samples.damage())


def _unusable(row: Row, network: Network) -> str:
    """Return why a row says nothing about the parameters; empty if it does."""
    if row.algorithm in ("native", "auto"):
        return f"{row.algorithm}: which algorithm ran is not known"
    if row.algorithm not in ALGORITHMS.get(row.collective, {}):
        return f"{row.collective} by {row.algorithm}: is not one of its own algorithms"
    if row.algorithm == "shm" and network.nodes > 1:
        return "shm on several nodes"
    if row.wrong > 0:
        return "its result was wrong"
    what = DESCRIPTIONS[row.collective]
    if what.peers:
        return f"{row.collective}: ranks send different amounts"
    if not row.count and what.sends != "nothing":
        return "size 0: nothing is sent"
    return ""


def _call(row: Row, ranks: int) -> Signature:
    calls = signatures(
        row.collective,
        ranks,
        row.count,
        root=max(row.root, 0),
        in_place=row.in_place,
        dtype=TYPES.get(row.dtype, np.dtype(np.uint8)),
        op=OPS.get(row.op, ReduceOp.SUM),
    )
    return calls[max(row.root, 0)]


def _seconds(row: Row, samples: np.ndarray | None) -> float:
    """Return the slowest rank's time, the median of repetitions; the printed one if none was kept.

    It is nan where the samples are damaged.
    """
    if samples is None:
        return math.nan
    if not len(samples):
        return row.time * 1e-6
    return float(np.median(samples.max(axis=1)))


def described(run: Run, cluster: str | None) -> Network:
    """Return the ranks of a run on their nodes, and the parameters that are known before a fit.

    Parameters
    ----------
    run : Run
        The run.
    cluster : str or None
        The description of the cluster, by name or file. Without one each rank has a port, and what
        a fit does not find costs nothing; a simulated run says its ports.

    Raises
    ------
    ResultsError
        If the ranks do not fill nodes one after the other, or were split into groups.
    ConfigurationError, UsageError
        If the description is missing, or describes other nodes.
    """
    ranks = run.info.ranks
    nodes = [rank.node - ranks[0].node for rank in ranks]
    per_node = nodes.count(0)
    if nodes != [index // per_node for index in range(len(nodes))]:
        raise ResultsError(
            f"the ranks of {run.name} are on nodes {few(nodes, 8)}; prices are known where nodes are "
            "filled one after the other, with equally many ranks each: measure with ranks placed so"
        )
    if len({rank.group for rank in ranks}) > 1:
        raise ResultsError(
            f"{run.name} measured several groups of ranks at once; fit a run of one group"
        )
    name, description = "fitted", f"fitted to {run.name} of {run.path.name}"
    if cluster is not None:
        return _placed(load(cluster), len(nodes), per_node, description)
    level = Level(*GUESS, ports=per_node)
    network = Network(
        name=name,
        ranks=len(nodes),
        ranks_per_node=per_node,
        reduce=math.inf,
        inner=level if per_node > 1 else None,
        across=level if len(nodes) > per_node else None,
        description=description,
    )
    if "network" in run.info.simulation:
        simulated = parse(run.info.simulation["network"], name, run.name)
        network = replace(
            network,
            # One rank has no [inner], which nodes of several need.
            ranks_per_node=simulated.ranks_per_node if per_node > 1 else 1,
            inner=_guessed(simulated.inner) if network.inner else None,
            across=_guessed(simulated.across) if network.across else None,
        )
    return network


def _guessed(level: Level | None) -> Level | None:
    """Return a level with its ports and guesses."""
    latency, bandwidth = GUESS
    return level and replace(level, latency=latency, bandwidth=bandwidth)


def _placed(network: Network, ranks: int, per_node: int, description: str) -> Network:
    """Return the described network with the ranks of a run."""
    if min(network.ranks_per_node, ranks) != per_node:
        raise UsageError(
            f"{network.name} has {network.ranks_per_node} ranks on a node, and the run {per_node}; "
            "give a description of the same nodes, or none"
        )
    placed = network.resized(ranks)
    across = placed.across if ranks > per_node else None
    return replace(placed, description=description, across=across)
