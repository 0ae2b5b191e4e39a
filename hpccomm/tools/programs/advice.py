"""What would make a recorded program faster, and by how much: each rule changes the program's model.

`predicted_on` says what it would take on another network.

A rule is a pure function of an `Analysis`. It returns the changed `ProgramModel` and words. The predicted step is the recorded
one times the prediction of the changed program over that of the program as it was, so that errors that both predictions have cancel.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hpccomm.contracts.collectives import CALLS, DESCRIPTIONS
from hpccomm.results.recording import (
    CallSignature,
    Recording,
)
from hpccomm.schedules.algorithms import ALGORITHMS
from hpccomm.schedules.cost.network import Network, typical
from hpccomm.tools.programs import lines_to_try, mpi_advice
from hpccomm.tools.programs.analysis import Advice, Analysis, Change
from hpccomm.tools.programs.model import (
    BLOCK,
    END,
    MOST_ACTS,
    START,
    Prediction,
    ProgramModel,
    five_numbers,
    predict,
)
from hpccomm.tools.programs.pricing import collective, fixed, grown, on_network
from hpccomm.tools.programs.steps import (
    BETWEEN,
    COMPUTE,
    FIXED,
    HIDDEN,
    PARTS,
    WAITING,
    Bools,
    Floats,
)
from hpccomm.units import counted, few, ranks_named, rounded_size

LEAST = 0.03
"""The least part of a step that advice must gain."""

MOST = 5
"""The most pieces of advice."""

MOST_GROWN = 1_000_000
"""The most acts of several steps on the ranks of another network."""

EXACTLY = {"balance": "serial"}
"""For a rule, another one that also says what is to be changed: it replaces the first if it gains as much."""

PIECES = 8
"""Parts in which gradients are reduced while others are computed."""


def advise(analysis: Analysis) -> list[Advice]:
    """Return what would help, the greatest gain first: at most `MOST` changes, which gain `LEAST` of a step each."""
    advice, before = [], analysis.predicted.seconds
    for cause, rule in RULES.items():
        for changed, what, why, attempt in rule(analysis):
            left = predict(changed).seconds / before if before else 1.0
            if left <= 1 - LEAST:
                seconds, uncertain = analysis.step * left, not 1 - left >= analysis.error
                advice.append(Advice(cause, what, seconds, why, attempt, uncertain))
    found = {each.cause: each.seconds - LEAST * analysis.step for each in advice}
    advice = [
        each for each in advice if found.get(EXACTLY.get(each.cause, ""), math.inf) > each.seconds
    ]
    return sorted(advice, key=lambda each: each.seconds)[:MOST]


def bound(analysis: Analysis) -> str:
    """Return in words what most of a step is."""
    mean = analysis.shares.mean
    if not mean.any():
        return "its steps take no time"
    largest = int(np.argmax(mean))
    return f"{mean[largest] / mean.sum():.0%} of a step is {PARTS[largest]}"


def predicted_on(network: Network, recording: Recording, algorithm: str = "") -> str:
    """Return what a recorded program would take on a network, beside what was recorded, as lines of comment.

    Parameters
    ----------
    network : Network
        The network. Its ranks take part; further ones do what `grown` says.
    recording : Recording
        The recording.
    algorithm : str, optional
        As of `on_network`.
    """
    ranks = network.ranks
    analysis = Analysis(recording, min(MOST_ACTS, MOST_GROWN * recording.ranks // ranks))
    priced = on_network(grown(analysis.model, ranks), network, algorithm)
    predicted = predict(priced)
    here = analysis.shares.mean * 1e-9
    there = five_numbers(predicted, fixed(priced, network, algorithm)).mean(axis=0)
    expected = "not known of one step" if math.isnan(analysis.error) else f"{analysis.error:.1%}"
    lines = [
        f"{recording.path.name}: {counted(recording.ranks, 'rank')}, {analysis.steps.how}",
        f"Predicted on {network.name} for {counted(ranks, 'rank')} on {counted(network.nodes, 'node')}"
        + f", each with the work of rank r modulo {recording.ranks}" * (ranks > recording.ranks),
        f"{'':>26}  {'recorded':>24}  {'predicted':>24}",
    ]
    totals = here.sum(), there.sum()
    for name, *both in [*zip(PARTS, here, there, strict=True), ("step", *totals)]:
        cells = (
            f"{part * 1e3:>12.3f} ms  {part / total if total else 0:>6.1%}"
            for part, total in zip(both, totals, strict=True)
        )
        lines.append(f"{name:>26}  {'  '.join(cells)}")
    lines += [
        f"Expected error: {expected}, that of predicting the recorded steps, and what {network.name} "
        "leaves out of the network",
        f"Bound by {_bound_of(predicted, there)}",
    ]
    return "".join(f"# {line}\n" for line in lines)


def _bound_of(predicted: Prediction, five: Floats) -> str:
    """Return in words what takes most of a predicted step."""
    program, acts = predicted.program, predicted.program.acts
    most = int(np.argmax(five))
    event = acts["event"][acts["kind"] >= BLOCK]
    if most in (COMPUTE, HIDDEN) or not len(event):
        return PARTS[most]
    if most == WAITING:
        late = np.bincount(program.rank(), acts["compute"], minlength=program.ranks)
        return f"{PARTS[most]}: rank {int(np.argmax(late))} computes for longest"
    taken = np.bincount(program.events["signature"][event], program.events["seconds"][event])
    one = program.signatures[int(np.argmax(taken))]
    return f"{PARTS[most]}, most of all {one.operation} of {rounded_size(one.nbytes)}"


def balance(analysis: Analysis) -> Iterator[Change]:
    """Let all ranks compute for as long as the mean; a slow node, for as long as the others."""
    work = analysis.shares.typical[:, [COMPUTE, HIDDEN]].sum(axis=1) * 1e-9
    hosts = np.array(analysis.recording.facts.hosts)
    late = work > work.mean() * (1 + LEAST)
    if not late.any() or not work.min():
        return
    slow = np.unique(hosts[late])
    on_slow = np.isin(hosts, slow)
    node = (
        on_slow.sum() > len(slow)
        and np.array_equal(on_slow, late)
        and np.ptp(work[late]) < 0.1 * work[late].mean()
    )
    # The ranks that change, and those that give the mean.
    changing, some = (late, ~late) if node else (work > 0, work > 0)
    even = work[some].mean()
    acts, rank = analysis.model.acts.copy(), analysis.model.rank()
    modelled = np.bincount(rank, acts["compute"], len(work))
    goal = np.where(changing, modelled[some].mean(), modelled)
    # Noise stays in its place. In the short gaps between close calls, a rank computes nothing.
    usual = _usual(analysis.model)
    usual[usual < BETWEEN] = 0
    idle = np.bincount(rank, usual, len(work)) == 0
    first = np.append(True, acts["kind"][:-1] == END)
    usual[idle[rank] & first] = 1
    total = np.bincount(rank, usual, len(work))
    more = usual * ((goal - modelled) / total)[rank]
    whole = analysis.model.steps >= 1  # in pieces, ranks have other calls
    if whole and len(set(np.diff(analysis.model.starts).tolist())) == 1:  # each part by itself
        parts = _usual(analysis.model).reshape(len(work), -1)
        parted = np.where(changing[:, None], parts[some].mean(axis=0) - parts, 0)
        # A rank that computes more in some parts and less in others changes by the difference alone.
        left = parted.sum(axis=1, keepdims=True)
        parted = np.where(np.sign(parted) == np.sign(left), parted, 0)
        sums = parted.sum(axis=1, keepdims=True)
        more = (parted * np.divide(left, sums, out=np.zeros_like(sums), where=sums != 0)).ravel()
    acts["compute"] = np.maximum(acts["compute"] + more, 0)
    ranks = np.flatnonzero(late).tolist()
    who = ranks_named(ranks) + (f" ({few(slow, 3)})" if all(slow) else "")
    changed = replace(analysis.model, acts=acts)
    others = "the others" if node else "the mean"
    spent = f"computes for {_ms(work[late].mean())} a step, {others} for {_ms(even)}"
    waited = analysis.shares.typical[~late, WAITING].mean() * 1e-9
    why = f"{spent}; each other rank waits for {_ms(waited)}{_late_at(analysis, late)}"
    less = 1 - even / work[late].mean()
    if node:
        attempt = f"on {few(slow, 3)}: hpccomm doctor; hpccomm topo (cores, clocks, binding)"
        yield changed, f"Let {few(slow, 3)} be as fast as the other nodes: {who}", why, attempt
    else:
        attempt = f"give {ranks_named(ranks)} {less:.0%} less of the work, and the others more"
        yield changed, f"Balance the load of {who}", why, attempt


def _late_at(analysis: Analysis, late: Bools) -> str:
    """Return where in the program others waited for some ranks for longest."""
    calls, blocked = analysis.recording.calls, analysis.waits.blocked
    waiting = np.flatnonzero(blocked)
    cause = analysis.waits.awaited[waiting]
    own = late[calls.ranks()[cause]]
    spent = np.bincount(calls["signature"][cause[own]], blocked[waiting[own]], 1)
    site = analysis.recording.signatures[int(np.argmax(spent))].site
    return f", most at {site}" if site else ""


def merge(analysis: Analysis) -> Iterator[Change]:
    """Make one call of small ones that follow each other."""
    program = analysis.model
    acts, events = program.acts, program.events
    kinds: dict[tuple[object, ...], int] = {}

    def kind(each: CallSignature) -> int:
        names = ("dtype", "op", "root", "dst", "src")
        values = tuple(str(each.values.get(name)) for name in names)
        return kinds.setdefault((each.operation, each.group, *values), len(kinds))

    alike, nbytes = analysis.each(kind), events["nbytes"]
    kinds_that_merge = (*DESCRIPTIONS, *mpi_advice.MESSAGES)
    moves = analysis.each(lambda each: each.operation.removesuffix("_object") in kinds_that_merge)
    fits = moves & (nbytes > 0) & (nbytes <= analysis.half)
    event = acts["event"]
    # From small sends that block, the program goes on.
    goes_on = (acts["kind"] == START) & analysis.each(lambda each: each.blocks)[event]
    single = (event >= 0) & ((acts["kind"] == BLOCK) | goes_on) & fits[event]
    follows = single & (_usual(program) < BETWEEN)
    follows[1:] &= single[:-1] & (alike[event[1:]] == alike[event[:-1]])
    follows[program.starts[:-1]] = False
    # An event goes if it follows on all its ranks.
    gone = fits & (np.bincount(event[~follows & (event >= 0)], minlength=len(events)) == 0)
    if not gone.any():
        return
    dropped = (event >= 0) & gone[event]
    acts, seconds = acts.copy(), events["seconds"].copy()
    heads = np.maximum.accumulate(np.where(dropped, 0, np.arange(len(acts))))
    head = np.zeros(len(events), np.int64)
    head[event[dropped]] = event[heads[dropped]]
    moved = analysis.each(lambda each: analysis.cost(each).beta) * nbytes
    seconds[gone] = 0
    np.add.at(seconds, head[gone], moved[gone])
    # Making a call takes the least time between two calls.
    for start, stop in itertools.pairwise(program.starts.tolist()):
        own = start + np.flatnonzero(dropped[start:stop])
        if len(own):
            computed = acts["compute"][own]
            less = np.minimum(computed, np.median(computed))
            acts["compute"][own] -= less - mpi_advice.only_recorded(analysis, own, less)
    acts["own"][dropped] = acts["tail"][dropped] = 0
    whole = gone.copy()
    whole[head[gone]] = True
    changed = replace(analysis.priced(seconds), acts=acts)
    fixed = analysis.shares.mean[FIXED] * 1e-9
    one = program.signatures[events["signature"][np.argmax(gone)]]
    cost = analysis.cost(one)
    left = max(1, round((whole.sum() - gone.sum()) / program.steps))
    blocked = float((analysis.predicted.end - analysis.predicted.begin)[dropped].sum())
    blocked /= program.ranks * program.steps * max(analysis.predicted.seconds, 1e-9)
    why = (
        f"they block for {blocked:.0%} of a step, and in each of them ranks wait for each other; the fixed cost of small "
        f"calls is {_ms(fixed)} a step: each takes {cost.alpha * 1e6:.3g} µs before its bytes"
    )
    if cost.beta:
        why += f", as long as {rounded_size(cost.half_performance_bytes, 2)} take to move"
    attempt = lines_to_try.merged(one)
    yield changed, f"Merge {analysis.named(whole)} into {left}", why, attempt


def _usual(program: ProgramModel) -> Floats:
    """Return the computation in front of each act: its median over the steps, on ranks whose steps are alike."""
    compute = program.acts["compute"].copy()
    number = int(program.steps)  # none in pieces of one
    for start, stop in itertools.pairwise(program.starts.tolist() if number else ()):
        each, rest = divmod(stop - start, number)
        kinds = program.acts["kind"][start:stop]
        if not rest and np.array_equal(kinds, np.tile(kinds[:each], number)):
            steps = compute[start:stop].reshape(number, each)
            steps[:] = np.median(steps, axis=0)
    return compute


def overlap(analysis: Analysis) -> Iterator[Change]:
    """Let large calls that block go on beside the computation in front of them or behind them, between nodes."""
    program = analysis.model
    fits = analysis.far & analysis.each(lambda each: each.blocks)
    acts, seconds = program.acts, program.events["seconds"]
    own = np.flatnonzero((acts["event"] >= 0) & (acts["kind"] == BLOCK))
    own = own[fits[acts["event"][own]]]
    if not len(own):
        return
    following = np.append(acts["compute"][1:], 0.0)
    following[program.starts[1:] - 1] = 0

    def least(beside: Floats) -> Floats:
        gap = np.full(len(seconds), np.inf)
        np.minimum.at(gap, acts["event"][own], beside[own])
        return np.where(np.isinf(gap), 0, gap)

    before, after = least(acts["compute"]), least(following)
    one = program.signatures[program.events["signature"][acts["event"][own[0]]]]
    if before.sum() > after.sum():
        hidden = np.maximum(seconds / PIECES, seconds - before * (1 - 1 / PIECES))
        where = "before"
        attempt = "sync = GradientSync(comm, parameters); sync.ready(name) for each that is computed; sync.wait()"
        attempt = lines_to_try.begun(one, "the next part is computed", attempt)
    else:
        hidden, where = np.maximum(seconds - after, 0), "after"
        attempt = f"work = comm.{one.operation}(x, async_op=True); and work.wait() before x is used"
        attempt = lines_to_try.begun(one, "what does not need x", attempt)
    taken, beside = (
        float(each.sum()) / program.steps for each in (seconds[fits], np.maximum(before, after))
    )
    why = (
        f"they block for {_ms(taken)} a step, and {_ms(beside)} are computed right {where} them; the gain is an upper "
        "bound, as a recording does not show which values are needed when"
    )
    changed = analysis.priced(np.where(fits, hidden, seconds))
    yield changed, f"Overlap {analysis.named(fits)} with computation", why, attempt


def compress(analysis: Analysis) -> Iterator[Change]:
    """Send floats with half the bytes."""

    def floats(each: CallSignature) -> bool:
        sums = each.operation == "all_reduce" and each.values.get("op") in ("sum", "avg")
        return sums and each.values.get("dtype") == "float32"

    fits = analysis.far & analysis.each(floats)
    if not fits.any():
        return
    events, rate = analysis.model.events, converting()
    alpha = analysis.each(lambda each: analysis.cost(each).alpha)
    fixed = np.minimum(alpha, events["seconds"])
    shorter = fixed + (events["seconds"] - fixed) / 2 + rate * events["nbytes"]
    seconds = np.where(fits, shorter, events["seconds"])
    taken = float(events["seconds"][fits].sum()) / analysis.model.steps
    spent = rate * float(events["nbytes"][fits].sum()) / analysis.model.steps
    why = f"they transfer for {_ms(taken)} a step; to convert the values takes {_ms(spent)} here"
    attempt = 'half = x.astype("float16"); comm.all_reduce(half); or GradientSync(..., compressor=MixedPrecision())'
    if analysis.each(lambda each: "mpi" in each.values)[fits].any():
        attempt = f"MPI has no sums of float16; in hpccomm: {attempt}"
    what = f"Compress {analysis.named(fits)} to half the bytes"
    yield analysis.priced(seconds), what, why, attempt


def converting() -> float:
    """Return the seconds that a byte of float32 takes to become float16 and float32 again on this machine."""
    x = np.ones(1 << 18, np.float32)
    narrow = np.ones(len(x), np.float16)
    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        narrow[:] = x
        x[:] = narrow
        taken.append(time.perf_counter() - begin)
    return min(taken) / x.nbytes


def another_algorithm(analysis: Analysis) -> Iterator[Change]:
    """Take the algorithm that the cost model finds faster than the one that was recorded, by at least a fifth."""
    program, events = analysis.model, analysis.model.events
    better: dict[tuple[str, str], list[int]] = {}
    seconds = events["seconds"].copy()
    pairs, which = np.unique(events[["signature", "nbytes"]], return_inverse=True)
    for at, (number, nbytes) in enumerate(pairs.tolist()):
        each = program.signatures[number]
        used, what = str(each.values.get("algorithm")), CALLS.get(each.operation)
        ranks, nodes = analysis.nodes(each)
        if ranks < 2 or what is None or used not in ALGORITHMS.get(each.operation, ()):
            continue
        network = typical().placed(ranks, -(-ranks // nodes), typical())
        own, best = (collective(network, what, nbytes, name) for name in (used, ""))
        if best.seconds < 0.8 * own.seconds:
            seconds[which == at] *= best.seconds / own.seconds
            better.setdefault((used, best.algorithm), []).append(at)
    for (used, name), places in better.items():
        chosen = np.isin(which, places)
        one = program.signatures[pairs["signature"][places[0]]]
        why = f"{used} was used; by the cost model on a typical network {name} is the fastest for these sizes"
        attempt = f'comm.{one.operation}(x, algorithm="{name}"), or "auto" after hpccomm tune'
        changed = analysis.priced(np.where(chosen, seconds, events["seconds"]))
        yield changed, f"Let {analysis.named(chosen)} use {name}", why, attempt


RULES: dict[str, Callable[[Analysis], Iterator[Change]]] = {
    "balance": balance,
    "merge": merge,
    "overlap": overlap,
    "compress": compress,
    "algorithm": another_algorithm,
    "pickled": mpi_advice.pickled,
    "serial": mpi_advice.serial,
    "wait at once": mpi_advice.wait_at_once,
    "chain": mpi_advice.chain,
    "barrier": mpi_advice.barrier,
    "loop": mpi_advice.loops,
}
"""The rules, by the names of causes."""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
