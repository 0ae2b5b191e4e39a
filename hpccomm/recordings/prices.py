"""The prices of a program's calls on a described network.

`hpccomm.recordings.elsewhere` predicts with them.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS, Collective
from hpccomm.contracts.signature import Signature
from hpccomm.dispatch.policy import applicable, fastest
from hpccomm.recordings.program import END, ProgramModel
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.cost.model import price
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import typical
from hpccomm.schedules.cost.terms import Estimated, rounds_of
from hpccomm.schedules.schedule import Tuning
from hpccomm.settings import DEFAULT_SEGMENT

MOST_ROUNDS = 1 << 17
"""Rounds times ranks of a schedule that is priced exactly; more are estimated."""

CHANNELS = 2
"""Segments under way at the same time, as in calls."""


def on_network(program: ProgramModel, network: Network, algorithm: str = "") -> ProgramModel:
    """Return a program with the prices of a network, its ranks placed node by node.

    Calls that are neither collectives nor messages keep what they took.

    Parameters
    ----------
    program : ProgramModel
        The program.
    network : Network
        The network, with at least its ranks.
    algorithm : str, optional
        An algorithm for the collectives that have it; by default, and for others, the one that is estimated to be
        the fastest there.
    """
    events, acts = program.events.copy(), program.acts.copy()
    calls = program.calls()
    event, node = acts["event"][calls].astype(np.int64), network.node(program.rank()[calls])
    places, number = np.unique(event * network.nodes + node, return_counts=True)
    per_node = np.zeros(len(events), np.int64)  # at most, of each event
    np.maximum.at(per_node, places // network.nodes, number)
    each = np.stack([events["signature"], events["nbytes"], program.members(), per_node])
    kinds, which = np.unique(each, axis=1, return_inverse=True)
    # Seconds of each kind, and seconds for which its sender is busy. Negative: not known.
    prices = np.full((kinds.shape[1], 2), -1.0)
    for kind, (at, nbytes, ranks, near) in enumerate(kinds.T.tolist()):
        signature = program.signatures[at]
        what = CALLS.get(signature.operation)
        level = network.across if ranks > near else network.inner
        if what is not None and ranks > 1 and not what.peers:
            within = network.placed(ranks, near, typical())
            prices[kind] = collective(within, what, nbytes, algorithm).seconds, 0
        elif level is not None and ranks == 2 and {"dst", "src"} & signature.values.keys():
            passed = level.gap + nbytes / level.bandwidth
            prices[kind] = network.overhead + passed + level.latency, passed
    seconds, sent = prices[which.ravel()].T
    priced = seconds >= 0
    events["seconds"] = np.where(priced, seconds, events["seconds"])
    changed = priced[acts["event"]] & (acts["kind"] != END)
    sends = changed & (program.rank() == events["source"][acts["event"]])
    acts["tail"][changed] = acts["own"][changed] = 0
    acts["own"][sends] = sent[acts["event"][sends]]
    return replace(program, acts=acts, events=events)


def fixed(program: ProgramModel, network: Network, algorithm: str = "") -> NDArray[np.float64]:
    """Return the seconds of each event of a program of a network that do not depend on its bytes."""
    empty = program.events.copy()
    empty["nbytes"] = np.minimum(empty["nbytes"], 1)
    priced = on_network(replace(program, events=empty), network, algorithm).events["seconds"]
    least: NDArray[np.float64] = np.minimum(priced, program.events["seconds"])
    return least


@lru_cache(1 << 12)
def collective(network: Network, what: Collective, nbytes: int, algorithm: str = "") -> Estimated:
    """Return the seconds of a collective between all ranks of a network, by an algorithm or the fastest one.

    Parameters
    ----------
    network : Network
        The network.
    what : Collective
        The collective.
    nbytes : int
        Bytes of the larger array of a rank.
    algorithm : str, optional
        The algorithm, if the collective has it.
    """
    if network.ranks == 1 or not (nbytes or what.sends == "nothing"):
        return Estimated(algorithm, network.overhead)
    counts = (-(-nbytes // network.ranks),) * network.ranks if what.blockwise else (nbytes,)
    received = counts if what.individual else ()
    op, root = ReduceOp.SUM if what.reduces else None, 0 if what.rooted else -1
    call = Signature(what.name, np.dtype(np.uint8), counts, received, op=op, root=root)
    names = applicable(call, shared=network.nodes == 1)
    name, seconds = fastest(call, [algorithm] if algorithm in names else names, network)
    tuning = Tuning(DEFAULT_SEGMENT, CHANNELS, network.topology())
    rounds = rounds_of(network, what.name, nbytes, name, DEFAULT_SEGMENT)
    few = rounds * network.ranks <= MOST_ROUNDS
    return Estimated(name, price(network, call, name, tuning) if few else seconds)
