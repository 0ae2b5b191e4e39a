"""The rows of a stored run as calls whose prices are known, for `hpccomm.bench.simulated.like`."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from hpccomm.bench.perf.names import OPS, TYPES
from hpccomm.contracts.collectives import DESCRIPTIONS
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.results.run import Run, WholeSamples
from hpccomm.results.schema import Row
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.proof import signatures
from hpccomm.schedules.schedule import Tuning
from hpccomm.settings import DEFAULT_SEGMENT

CHANNELS = 2
"""Pieces that are under way at the same time, unless a run says otherwise."""


class Measurement(NamedTuple):
    """One measured time: a row, its call on any rank, the parameters of its algorithm, and seconds."""

    row: Row
    call: Signature
    tuning: Tuning
    seconds: float


def measurements(run: Run, network: Network) -> tuple[list[Measurement], Counter[str], list[str]]:
    """Choose the rows of hpccomm's own algorithms: what they do on `network` is known.

    Returns
    -------
    list of Measurement
        Each with the median time of its repetitions on the slowest rank, or the printed time if no
        repetition was kept.
    Counter of str
        How many rows cannot be used, by why.
    list of str
        Samples that are damaged.
    """
    facts = run.info.simulation
    segment = facts.get("segment") or run.info.environment.get("HPCCOMM_SEGMENT")
    nbytes = int(segment.split()[0]) if segment else DEFAULT_SEGMENT
    channels = int(facts.get("channels", CHANNELS))
    used, others, samples = [], Counter[str](), WholeSamples(run)
    for index, row in enumerate(run.rows):
        seconds = _seconds(row, samples(index))
        why = _unusable(row)
        if why or not seconds > 0:
            others[why or "took no time, or its samples are damaged"] += 1
            continue
        call = _call(row, network.ranks)
        tuning = Tuning(max(1, nbytes // call.dtype.itemsize), channels, network.topology())
        used.append(Measurement(row, call, tuning, seconds))
    return used, others, samples.damage()


def _unusable(row: Row) -> str:
    """Return why a row says nothing about the parameters; empty if it does."""
    what = DESCRIPTIONS.get(row.collective)
    if what is None or row.algorithm not in ALGORITHMS[row.collective]:
        return f"{row.collective} by {row.algorithm}: what it does is not known"
    if row.wrong > 0:
        return "its result was wrong"
    if what.peers:
        return f"{row.collective}: ranks send different amounts"
    return "" if row.count or what.sends == "nothing" else "size 0: nothing is sent"


def _call(row: Row, ranks: int) -> Signature:
    root, op = max(row.root, 0), OPS.get(row.op, ReduceOp.SUM)
    dtype = TYPES.get(row.dtype, np.dtype(np.uint8))
    calls = signatures(
        row.collective, ranks, row.count, root=root, in_place=row.in_place, dtype=dtype, op=op
    )
    return calls[root]


def _seconds(row: Row, samples: np.ndarray | None) -> float:
    """Return the time of a row; not a number if its samples are damaged."""
    if samples is None:
        return float("nan")
    return float(np.median(samples.max(axis=1))) if len(samples) else row.time * 1e-6
