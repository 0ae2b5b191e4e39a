"""A recorded program elsewhere: on a described network, with other ranks, and a model's gradients without a recording.

``hpccomm simulate --trace`` and ``hpccomm advise --what-if`` print it.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpccomm.recordings.prediction import Prediction, error, five_numbers, predict
from hpccomm.recordings.prices import fixed, on_network
from hpccomm.recordings.program import ACT, BLOCK, END, EVENT, START, WAIT, ProgramModel, model
from hpccomm.recordings.shares import COMPUTE, HIDDEN, PARTS, WAITING, shares
from hpccomm.recordings.steps import steps
from hpccomm.results.lateness import waits
from hpccomm.results.recording import ASYNC, POLLED, CallSignature, RecordedGroup, Recording
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

BUCKET = 25 << 20
"""Bytes of gradients that are reduced together, as PyTorch's DistributedDataParallel does by default."""

BACKWARD = 2 / 3
"""The part of a step's computation that makes the gradients: twice as much as the forward pass."""


def grown(program: ProgramModel, ranks: int) -> ProgramModel:
    """Return a program of another number of ranks, each with as much to do: weak scaling.

    Rank r does what rank r modulo the recorded ranks did. Collectives of all ranks are among all of them, with the
    same bytes; each further copy of the recorded ranks has its own other communicators and messages.
    """
    own, events = program.ranks, program.events
    whole = np.array([len(each.ranks) == own for each in program.groups], bool)
    group = np.array([each.group for each in program.signatures])[events["signature"]]
    common = whole[group] & (events["queue"] >= 0)
    tables: list[tuple[NDArray[np.void], NDArray[np.void]]] = []
    groups: list[RecordedGroup] = []
    signatures: list[CallSignature] = []
    for copy in range(-(-ranks // own)):
        each, acts, shift = events.copy(), program.acts.copy(), copy * own
        each["signature"] += np.where(common, 0, len(signatures))
        each["queue"] += np.where(common | (each["queue"] < 0), 0, 2 * len(groups))
        each["source"] += np.where(common | (each["source"] < 0), 0, shift)
        each["source"][each["source"] >= ranks] = -1
        acts["event"] += np.where(
            (acts["kind"] == END) | common[acts["event"]], 0, copy * len(each)
        )
        tables.append((each, acts))
        signatures += [replace(one, group=one.group + len(groups)) for one in program.signatures]
        for one, all_of in zip(program.groups, whole, strict=True):
            own_ranks = (rank + shift for rank in one.ranks if 0 <= rank < ranks - shift)
            groups.append(replace(one, ranks=tuple(range(ranks) if all_of else own_ranks)))
    number = np.tile(np.diff(program.starts), len(tables))[:ranks]
    starts = np.concatenate([[0], np.cumsum(number)])
    return replace(
        program,
        starts=starts,
        acts=np.concatenate([acts for _, acts in tables])[: starts[-1]],
        events=np.concatenate([each for each, _ in tables]),
        begins=np.tile(program.begins, len(tables))[:ranks],
        signatures=tuple(signatures),
        groups=tuple(groups),
    )


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
    program = model(recording, divided)
    ranks = network.ranks
    priced = on_network(grown(program, ranks), network, algorithm)
    predicted = predict(priced)
    here = shares(recording, divided, waiting).mean * 1e-9
    then = five_numbers(predicted, fixed(priced, network, algorithm)).mean(axis=0)
    off = error(program, divided)
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
        f"Expected error: {off:.1%}, that of predicting the recorded steps, and what {network.name} "
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
        single = network.across is not None and program.ranks <= network.ranks_per_node
        network = (
            network.placed(program.ranks, 1, network) if single else network.resized(program.ranks)
        )
        predicted = predict(on_network(program, network))
        five = five_numbers(predicted, np.zeros(len(program.events))).mean(axis=0)
        step, computing = five.sum(), five[:WAITING].sum()
        lines.append(
            _HEAD.format(
                kind, name, f"{step * 1e3:.3f} ms", f"{computing / step if step else 0:.1%}"
            )
        )
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
    acts = np.zeros(2 * count + 1 if overlap else 2, ACT)
    acts["event"][:-1] = np.arange(len(acts) - 1) % count
    acts["kind"][:-1] = np.repeat([START, WAIT], count) if overlap else BLOCK
    acts["event"][-1], acts["kind"][-1] = -1, END
    acts["compute"][:count] = compute * BACKWARD / count if overlap else compute
    acts["compute"][0] += compute * (1 - BACKWARD) * overlap
    events = np.zeros(count, EVENT)
    events["nbytes"], events["source"] = nbytes // count, -1
    signature = CallSignature("all_reduce", 0, nbytes // count, ASYNC if overlap else POLLED)
    world = RecordedGroup("world", "world", tuple(range(ranks)))
    starts = np.arange(ranks + 1) * len(acts)
    begins, signatures = np.zeros(ranks), (signature,)
    table = np.tile(acts, ranks)
    return ProgramModel(starts, table, events, begins, signatures, (world,), 1, compute)
