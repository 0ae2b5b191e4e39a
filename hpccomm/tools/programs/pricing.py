"""The prices of a program's calls on a described network, also with another number of ranks.

``hpccomm simulate --trace`` and ``hpccomm advise --what-if`` predict with them.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpccomm.calls.policy import applicable, fastest
from hpccomm.contracts.collectives import CALLS, Collective
from hpccomm.contracts.signature import Signature
from hpccomm.reductions import ReduceOp
from hpccomm.schedules.cost.network import Network, load, typical
from hpccomm.schedules.cost.rounds import price
from hpccomm.schedules.cost.terms import Estimated, rounds_of
from hpccomm.schedules.schedule import Tuning
from hpccomm.settings import DEFAULT_SEGMENT
from hpccomm.tools.programs.model import END, ProgramModel, five_numbers, predict
from hpccomm.tools.programs.steps import WAITING

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


LINKS = (
    ("NVLink", "nvlink8"),
    ("PCIe", "pcie8"),
    ("InfiniBand", "ib400x32"),
    ("Ethernet", "ethernet100"),
)
"""What is compared: a kind of link, and a network of it."""


def grown(program: ProgramModel, ranks: int) -> ProgramModel:
    """Return a program of another number of ranks, each with as much to do: weak scaling.

    Rank r does what rank r modulo the recorded ranks did. Collectives of all ranks are among all of them, with the
    same bytes; each further copy of the recorded ranks has its own other communicators and messages. What has
    a single rank left takes no time.
    """
    own, count = program.ranks, len(program.events)
    copies = np.arange(-(-ranks // own))
    number = program.members()
    common = (number == own) & (program.events["queue"] >= 0)
    events, copy = np.tile(program.events, len(copies)), np.repeat(copies, count)
    for name, each in (("queue", int(events["queue"].max(initial=-1)) + 1), ("source", own)):
        events[name] += np.where(events[name] < 0, 0, each * copy)
    events["source"][events["source"] >= ranks] = -1
    acts, copy = np.tile(program.acts, len(copies)), np.repeat(copies, len(program.acts))
    stays = np.append(common, True)[acts["event"]]  # so does -1, of END
    acts["event"] += np.where(stays, 0, count * copy)
    starts = np.cumsum([0, *np.tile(np.diff(program.starts), len(copies))[:ranks]])
    begins = np.tile(program.begins, len(copies))[:ranks]
    many = replace(program, starts=starts, acts=acts[: starts[-1]], events=events, begins=begins)
    events["seconds"][(many.members() < 2) & (np.tile(number, len(copies)) > 1)] = 0
    return many


def what_if(program: ProgramModel) -> str:
    """Return the predicted step of a program over networks, as lines of comment.

    Networks that do not have its ranks are left out, as one node is all that they describe.
    """
    lines = [_HEAD.format("step over", "", "step", "of it computation")]
    for kind, name in LINKS:
        network = load(name)
        if program.ranks > network.ranks_per_node and network.across is None:
            continue
        # All ranks on one node would not use the link between nodes.
        near = network.across is None or program.ranks > network.ranks_per_node
        network = network.placed(program.ranks, network.ranks_per_node if near else 1, network)
        predicted = predict(on_network(program, network))
        five = five_numbers(predicted, np.zeros(len(program.events))).mean(axis=0)
        step = five.sum()
        computing = five[:WAITING].sum() / step if step else 0
        lines.append(_HEAD.format(kind, name, f"{step * 1e3:.3f} ms", f"{computing:.1%}"))
    return "".join(f"# {line}\n" for line in lines)


_HEAD = "{:<12}{:<14}{:>14}{:>20}"
