"""A recorded program elsewhere: on a described network, with other ranks, and a model's gradients without a recording.

``hpccomm simulate --trace`` and ``hpccomm advise --what-if`` print it.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpccomm.recordings.prediction import Prediction, error, five_numbers, predict
from hpccomm.recordings.prices import fixed, on_network
from hpccomm.recordings.program import (
    ACT,
    BLOCK,
    END,
    EVENT,
    MOST_ACTS,
    START,
    WAIT,
    ProgramModel,
    model,
)
from hpccomm.recordings.steps import COMPUTE, HIDDEN, PARTS, WAITING, shares, steps
from hpccomm.results.lateness import waits
from hpccomm.results.recording import ASYNC, CallSignature, Recording
from hpccomm.schedules.cost.network import Network
from hpccomm.schedules.cost.network_files import load
from hpccomm.units import counted, rounded_size

LINKS = (
    ("NVLink", "nvlink8"),
    ("PCIe", "pcie8"),
    ("InfiniBand", "ib400x32"),
    ("Ethernet", "ethernet100"),
)
"""What is compared: a kind of link, and a network of it."""

MOST_GROWN = 1_000_000
"""The most acts of several steps on other ranks."""

BUCKET = 25 << 20
"""Bytes of gradients that are reduced together, as PyTorch's DistributedDataParallel does by default."""

BACKWARD = 2 / 3
"""The part of a step's computation that makes the gradients: twice as much as the forward pass."""


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


def elsewhere(recording: Recording, network: Network, algorithm: str = "") -> str:
    """Return what a recorded program would take on a network, beside what was recorded, as lines of comment.

    Parameters
    ----------
    recording : Recording
        The recording.
    network : Network
        The network. Its ranks take part; further ones do what `grown` says.
    algorithm : str, optional
        As of `hpccomm.recordings.prices.on_network`.
    """
    waiting = waits(recording)
    divided = steps(recording, waiting.collectives)
    ranks = network.ranks
    program = model(recording, divided, min(MOST_ACTS, MOST_GROWN * recording.ranks // ranks))
    priced = on_network(grown(program, ranks), network, algorithm)
    predicted = predict(priced)
    here = shares(recording, divided, waiting).mean * 1e-9
    then = five_numbers(predicted, fixed(priced, network, algorithm)).mean(axis=0)
    off = error(predict(program).seconds, divided)
    expected = "not known of one step" if np.isnan(off) else f"{off:.1%}"
    lines = [
        f"{recording.path.name}: {counted(recording.ranks, 'rank')}, {divided.how}",
        f"Predicted on {network.name} for {counted(ranks, 'rank')} on {counted(network.nodes, 'node')}"
        + f", each with the work of rank r modulo {recording.ranks}" * (ranks > recording.ranks),
        f"{'':>26}  {'recorded':>24}  {'predicted':>24}",
    ]
    for name, *two in [*zip(PARTS, here, then, strict=True), ("step", here.sum(), then.sum())]:
        cells = (
            f"{part * 1e3:>12.3f} ms  {part / all_of if all_of else 0:>6.1%}"
            for part, all_of in zip(two, (here.sum(), then.sum()), strict=True)
        )
        lines.append(f"{name:>26}  {'  '.join(cells)}")
    lines += [
        f"Expected error: {expected}, that of predicting the recorded steps, and what {network.name} "
        "leaves out of the network",
        f"Bound by {_bound(predicted, then)}",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _bound(predicted: Prediction, five: NDArray[np.float64]) -> str:
    """Return in words what takes most of a predicted step."""
    program, acts = predicted.program, predicted.program.acts
    most = PARTS[int(np.argmax(five))]
    event = acts["event"][(acts["kind"] >= BLOCK)]
    if most == PARTS[COMPUTE] or most == PARTS[HIDDEN] or not len(event):
        return most
    if most == PARTS[WAITING]:
        late = np.bincount(program.rank(), acts["compute"], minlength=program.ranks)
        return f"{most}: rank {int(np.argmax(late))} computes for longest"
    taken = np.bincount(program.events["signature"][event], program.events["seconds"][event])
    one = program.signatures[int(np.argmax(taken))]
    return f"{most}, most of all {one.operation} of {rounded_size(one.nbytes)}"


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


def gradients(nbytes: int, compute: float, ranks: int, *, overlap: bool) -> ProgramModel:
    """Return the program of a step that computes and then has gradients reduced.

    Parameters
    ----------
    nbytes : int
        Bytes of all gradients.
    compute : float
        Seconds of computation.
    ranks : int
        Number of ranks.
    overlap : bool
        Whether buckets of gradients are reduced beside the backward pass, which takes two thirds of the computation
        and makes them one after the other, instead of all at once after it.
    """
    count = max(1, round(nbytes / BUCKET)) if overlap else 1
    acts = np.zeros(2 * count + 1, ACT)
    acts["kind"] = np.repeat([START, WAIT, END], [count, count, 1])
    acts["event"] = [*range(count), *range(count), -1]
    acts["compute"][:count] = compute * BACKWARD / count
    acts["compute"][0] += compute * (1 - BACKWARD)
    events = np.zeros(count, EVENT)
    events["nbytes"], events["source"] = nbytes // count, -1
    signature = CallSignature("all_reduce", 0, nbytes // count, ASYNC)
    starts, table = np.arange(ranks + 1) * len(acts), np.tile(acts, ranks)
    return ProgramModel(starts, table, events, np.zeros(ranks), (signature,), 1, compute)
