"""What would make a program of mpi4py's faster: rules that only recordings of its calls need.

They are rules as those of `hpccomm.tools.programs.advice`. What is to be tried is a line of mpi4py's, and one of hpccomm's.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS
from hpccomm.results.recording import Indices
from hpccomm.tools.programs.analysis import Analysis, Change
from hpccomm.tools.programs.lines_to_try import bare, both, name_of
from hpccomm.tools.programs.model import BLOCK, END, START, WAIT
from hpccomm.tools.programs.prices import price
from hpccomm.tools.programs.steps import BETWEEN, COMPUTE, HIDDEN, Floats, disjoint, within

LITTLE = 0.1
"""The part of a time that is little of it."""

MESSAGES = ("send", "recv", "send_recv")

SENDABLE = re.compile(r"array of (u?int|float|complex)\d+|array of bool")
"""Objects that calls of arrays can send."""


def only_recorded(analysis: Analysis, acts: Indices, computed: Floats) -> Floats:
    """Return the seconds of calls of mpi4py's that are beyond their measured price: only recording them takes these.

    Parameters
    ----------
    analysis : Analysis
        The analysis.
    acts : ndarray of int64
        Calls in its model.
    computed : ndarray of float64
        Seconds in front of each that making it takes.
    """
    predicted, facts = analysis.predicted, analysis.recording.facts.machine
    least = analysis.each(lambda one: price(facts, bare(one) and one.operation, one.nbytes))
    taken = computed + predicted.end[acts] - predicted.begin[acts]
    beyond: Floats = np.maximum(taken - least[analysis.model.acts["event"][acts]], 0)
    return np.where(np.isnan(beyond), 0, beyond)


class _Messages:
    """What the acts of a program have to do with messages.

    Attributes
    ----------
    rank, signature, blocks : ndarray
        Of each act: its rank, the number of the signature of its call, and whether that blocks.
    to, source : ndarray of int64
        The rank that it sends to, and that it receives from; -1 if it does not, or does both.
    next : ndarray of int64
        What its rank does next, but for waits and the ends of steps.
    """

    def __init__(self, analysis: Analysis) -> None:
        program, recording = analysis.model, analysis.recording
        call, kind, self.rank = program.acts["call"], program.acts["kind"], program.rank()
        self.signature = np.where(kind == END, 0, recording.calls["signature"][call])
        ends = np.full((2, len(recording.signatures)), -1)
        for at, one in enumerate(recording.signatures):
            ways = [way for way in ("dst", "src") if way in one.values]
            if bare(one) in MESSAGES and len(ways) == 1:
                peer = recording.groups[one.group].ranks[one.values[ways[0]]]
                ends[int(ways == ["src"]), at] = peer
        self.to, self.source = np.where(kind == END, -1, ends[:, self.signature])
        self.blocks = np.array([one.blocks for one in program.signatures])[self.signature]
        places = np.where(np.isin(kind, [WAIT, END]), len(kind), np.arange(len(kind)))
        lasts = program.starts[1:] - 1
        following = np.append(np.minimum.accumulate(places[:0:-1])[::-1], len(kind))
        self.next = np.minimum(following, lasts[self.rank])


def _later(analysis: Analysis, chosen: Indices, what: str) -> Iterator[Change]:
    """Compute what follows some waits in front of them."""
    if not len(chosen):
        return
    program, predicted = analysis.model, analysis.predicted
    acts, messages, event = program.acts.copy(), _Messages(analysis), program.acts["event"][chosen]
    for wait in chosen.tolist():
        between = slice(wait + 1, int(messages.next[wait]) + 1)
        acts["compute"][wait] += acts["compute"][between].sum()
        acts["compute"][between] = 0
    # On one node the ranks' own cores move the bytes.
    acts["own"][chosen] += np.where(analysis.far[event], 0, program.events["seconds"][event])
    why = (
        f"they are awaited for {_each(analysis, predicted.end - predicted.begin, chosen)}, and what is computed right "
        "after that is computed before; the gain is an upper bound, as a recording does not show which values are needed when"
    )
    name = name_of(program.signatures[messages.signature[chosen[0]]]).lower()
    name = name.removesuffix("_init").removeprefix("i")
    attempt = both(f"I{name}", "request = ", "; what does not need x; request.Wait()")
    calls = analysis.named(_these(analysis, event))
    yield replace(program, acts=acts), f"{what} {calls}", why, attempt


def _these(analysis: Analysis, event: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each event of the model is among some."""
    return np.isin(np.arange(len(analysis.model.events)), event)


def _each(analysis: Analysis, seconds: Floats, chosen: Any) -> str:
    """Return the sum of the seconds of some acts in words, by step and rank."""
    program = analysis.model
    return f"{seconds[chosen].sum() / program.steps / program.ranks * 1e3:.3g} ms a step and rank"


def wait_at_once(analysis: Analysis) -> Iterator[Change]:
    """Compute before a wait for a call that has just begun."""
    acts, messages = analysis.model.acts, _Messages(analysis)
    begun = np.append(False, ((acts["kind"] == START) & ~messages.blocks)[:-1])
    computed = np.append(0, np.cumsum(acts["compute"]))
    after = computed[messages.next + 1] - computed[1:]
    heard = np.array([bool(bare(one)) for one in analysis.model.signatures])[messages.signature]
    at_once = heard & begun & (acts["kind"] == WAIT) & (acts["compute"] < LITTLE * after)
    yield from _later(analysis, np.flatnonzero(at_once), "Compute before the wait for")


def chain(analysis: Analysis) -> Iterator[Change]:
    """Let ranks that wait for each other in a row compute before they receive."""
    acts, messages = analysis.model.acts, _Messages(analysis)
    receives = (messages.source >= 0) & (acts["kind"] >= BLOCK)
    sends = np.flatnonzero((messages.to >= 0) & (acts["kind"] != WAIT))
    sent = np.zeros(len(analysis.model.events), np.int64)
    sent[acts["event"][sends]] = sends
    received = np.flatnonzero(receives)
    source, onward = messages.source[received], messages.to[messages.next[received]]
    # What the sender did before: the first act of the model is no receive of a chain.
    before = np.maximum(sent[acts["event"][received]] - 1, 0)
    passed = receives[before] & (messages.rank[before] == source)
    passed &= messages.source[before] != messages.rank[received]
    chosen = received[passed | ((onward >= 0) & (onward != source))]
    yield from _later(analysis, chosen, "Break the chain of ranks: compute before")


def pickled(analysis: Analysis) -> Iterator[Change]:
    """Move arrays as they are, and not pickled."""
    program, facts = analysis.model, analysis.recording.facts.machine
    arrays = analysis.each(
        lambda one: SENDABLE.fullmatch(str(one.values.get("object"))) is not None
    )
    least = analysis.each(lambda one: price(facts, bare(one), one.nbytes))
    fits = arrays & (least < program.events["seconds"])
    if not fits.any():
        return
    acts = program.acts.copy()
    chosen = (acts["event"] >= 0) & fits[acts["event"]]
    acts["own"][chosen] = np.minimum(acts["own"], least[acts["event"]])[chosen]
    acts["tail"][chosen] = 0
    taken, less = (float(each[fits].mean()) * 1e3 for each in (program.events["seconds"], least))
    name = name_of(program.signatures[program.events["signature"][np.argmax(fits)]]).capitalize()
    why = (
        f"each takes {taken:.3g} ms, as the arrays are pickled and copied; {name} takes {less:.3g} ms for as many "
        "bytes, as measured on these ranks when the recording started"
    )
    changed = analysis.priced(np.where(fits, least, program.events["seconds"]))
    what = f"Move the arrays of {analysis.named(fits)} by {name}, not pickled"
    yield replace(changed, acts=acts), what, why, both(name)


def barrier(analysis: Analysis) -> Iterator[Change]:
    """Leave out barriers that only computation, collectives and messages stand around."""
    acts, messages, predicted = analysis.model.acts.copy(), _Messages(analysis), analysis.predicted
    barriers = analysis.each(lambda one: bare(one) == "barrier" and one.blocks)
    moving = (*CALLS, *MESSAGES, *(f"{each}_object" for each in (*CALLS, *MESSAGES)))
    moves = np.array([one.operation in moving for one in analysis.model.signatures])
    others = np.flatnonzero((acts["event"] >= 0) & ~moves[messages.signature])
    beside = acts["event"][np.clip([others - 1, others + 1], 0, len(acts) - 1)]
    barriers[beside[beside >= 0]] = False
    chosen = (acts["event"] >= 0) & barriers[acts["event"]]
    if not chosen.any():
        return
    acts["kind"][chosen] = START
    acts["own"][chosen] = acts["tail"][chosen] = 0
    waited = _each(analysis, predicted.end - predicted.begin, chosen)
    why = f"it takes {waited}, and moves no data: collectives and messages order themselves"
    attempt = "leave comm.Barrier() out, unless it is there for files, memory or timing; in hpccomm: the same"
    yield replace(analysis.model, acts=acts), f"Leave out {analysis.named(barriers)}", why, attempt


def serial(analysis: Analysis) -> Iterator[Change]:
    """Let all ranks do a part of what one does while all others wait."""
    program, begin, messages = analysis.model, analysis.predicted.begin, _Messages(analysis)
    acts, compute = program.acts.copy(), program.acts["compute"]
    work = analysis.shares.typical[:, [COMPUTE, HIDDEN]].sum(axis=1)
    root = int(np.argmax(work))
    if not any(map(bare, program.signatures)) or work[root] < (1 + LITTLE) * work.mean():
        return
    others, own = np.flatnonzero(messages.rank != root), np.flatnonzero(messages.rank == root)
    computing = disjoint(begin[others] - compute[others], begin[others])[:2]
    bounds = np.stack([begin[own] - compute[own], begin[own]], axis=1)
    beside = within(*computing, bounds.ravel())[::2]
    chosen = own[(beside < LITTLE * compute[own]) & (compute[own] > BETWEEN)]
    share, middle = compute[chosen] / program.ranks, begin[chosen] - compute[chosen] / 2
    acts["compute"][chosen] = share
    waiting = []
    for rank in np.delete(np.arange(program.ranks), root).tolist():
        # The others do it before the calls in which they wait.
        first, stop = program.starts[rank : rank + 2].tolist()
        place = first + np.maximum(np.searchsorted(begin[first:stop], middle, "right") - 1, 0)
        np.add.at(acts["compute"], place, share)
        waiting.append(place)
    event = acts["event"][np.concatenate(waiting)] if waiting else np.array([])
    if not (event >= 0).any():
        return
    spent = compute[chosen].sum() / program.steps * 1e3
    why = f"rank {root} computes for {spent:.3g} ms a step while all others wait for it"
    calls = analysis.named(_these(analysis, event))
    what = f"Divide what rank {root} does alone among all ranks, which wait in {calls}"
    code = "comm.gather(work(part), root), or comm.all_gather(work(part))"
    attempt = both("Gather", "x = work(part) on each rank; ", ", or Allgather", code)
    yield replace(program, acts=acts), what, why, attempt


def loops(analysis: Analysis) -> Iterator[Change]:
    """Make one collective of a loop of messages from one rank to all others, or from all others to one."""
    program, messages, events = analysis.model, _Messages(analysis), analysis.model.events
    calls, facts = analysis.recording.calls, analysis.recording.facts.machine
    for root, peers in product(range(program.ranks), (messages.to, messages.source)):
        others = np.delete(np.arange(program.ranks), root)
        own = np.flatnonzero((messages.rank == root) & (peers >= 0) & messages.blocks)
        if len(others) < 2 or not len(own) or len(own) % len(others):
            continue
        runs = own.reshape(-1, len(others))
        if (np.sort(peers[runs]) != others).any() or (np.ptp(runs, axis=1) >= len(others)).any():
            continue
        same = (np.ptp(calls["buffer"][program.acts["call"][runs]], axis=1) == 0).all()
        name = "Gather" if peers is messages.source else "Bcast" if same else "Scatter"
        event = program.acts["event"][runs.ravel()]
        operation = {"Gather": "gather", "Bcast": "broadcast", "Scatter": "scatter"}[name]
        all_take = price(facts, operation, float(events["nbytes"][event].max()))
        seconds, acts = events["seconds"].copy(), program.acts.copy()
        for each, places in ((seconds, event), (acts["own"], runs.ravel())):
            each[places] = np.fmin(each[places], all_take / len(others))
        why = f"rank {root} has a message with each other rank, one after the other; in {name} the ranks share that"
        # Parts of one array have the memory of that array.
        among = ", or Scatter if they differ," if name == "Bcast" else ""
        what = f"Make one {name}{among} of {analysis.named(_these(analysis, event))}"
        yield replace(analysis.priced(seconds), acts=acts), what, why, both(name)
