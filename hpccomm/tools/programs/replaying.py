"""What each rank of a replay does, from a recorded program; and both compared.

`hpccomm.tools.programs.player` makes the calls.
"""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.contracts.collectives import CALLS
from hpccomm.errors import ResultsError
from hpccomm.reductions import Op, ReduceOp, premul_sum
from hpccomm.results import lateness
from hpccomm.results.recording import DEVICE, CallSignature, RecordedGroup, Recording
from hpccomm.tools.programs.steps import ProgramSteps

MOST_BUFFERS = 256
"""Arrays of a rank, at most: calls on more of them share."""

BATCHES = ("batch", "halo")
OBJECTS = ("broadcast_object", "all_gather_object", "gather_object", "scatter_object")
ENDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("send", "send_object"), ("dst",)),
    **dict.fromkeys(("recv", "recv_object"), ("src",)),
    "send_recv": ("dst", "src"),
}
"""The other ranks of each call of messages."""

EVENT = [("gap", "i8"), ("signature", "i4"), ("waits", "?"), ("later", "?"), ("call", "i8"), ("buffer", "i8"), ("step", "i8"), ("rank", "i8")]  # fmt: skip
"""A call, or the wait for one that is made later: nanoseconds of computation before it, the call, and its array.

The computation before it begins when a call has ended, or when one that is waited for later was made.
"""


@dataclass(frozen=True, slots=True)
class Score:
    """What the ranks do in the replayed steps; each gets its own.

    Attributes
    ----------
    signatures, groups : tuple
        Of the recording.
    used : tuple of int
        The numbers of the communicators with calls, on any rank.
    steps : int
        Their number.
    events : ndarray of EVENT
        In order, by rank.
    """

    signatures: tuple[CallSignature, ...]
    groups: tuple[RecordedGroup, ...]
    used: tuple[int, ...]
    steps: int
    events: NDArray[Any]

    def of_rank(self, rank: int) -> "Score":
        """Return what one rank does."""
        return replace(self, events=self.events[self.events["rank"] == rank])


def score(
    recording: Recording, steps: ProgramSteps, first: int, number: int, ranks: int
) -> tuple[Score, Counter[str]]:
    """Return what the ranks do, and how many calls are left out for which reason.

    Parameters
    ----------
    recording : Recording
        The recording.
    steps : ProgramSteps
        Its steps.
    first, number : int
        The first step that is replayed, and their number.
    ranks : int
        The ranks of the replay are the first ones of the recording.
    """
    calls, signature, rank = recording.calls, recording.calls["signature"], recording.calls.ranks()
    bounds = steps.bounds[first : first + number + 1]
    begin, end, group = calls["begin"], calls["end"], recording.of_signature("group")
    inside = (group >= 0) & (rank < ranks) & (begin >= bounds[0][rank]) & (begin < bounds[-1][rank])
    reasons = [_unfit(each, recording.groups) for each in recording.signatures]
    fits = inside & np.array([not each for each in reasons])[signature] & (calls["failed"] == 0)
    _complete(recording, fits, group, ranks)
    left_out = Counter(
        f"{recording.signatures[each].operation}: "
        + (reasons[each] or "not of these steps on all of its ranks")
        for each in signature[inside & ~fits].tolist()
    )

    # All ranks at once: each has a time of its own behind that of the ranks before.
    moved = rank * (end.max() - begin.min() + 1)
    blocks = recording.of_signature("blocks")
    blocking = np.flatnonzero(inside & blocks)
    reach = np.maximum.accumulate((end + moved)[blocking])[:-1]
    beside = np.unique(group[blocking[1:]][(begin + moved)[blocking[1:]] < reach])
    # What another thread calls meanwhile is asynchronous here, if it can be.
    threaded = blocks & np.isin(group, beside) & ~np.isin(recording.of_signature("operation"), OBJECTS)  # fmt: skip
    later = ~blocks | threaded
    asked = np.where(threaded, end, calls["asked"])
    chosen = np.flatnonzero(inside)
    waits = chosen[(later & (asked > 0))[chosen]]
    returned = np.where(threaded, end, asked + calls["waited"])
    at = np.concatenate([begin[chosen], asked[waits]])
    until = np.concatenate([np.where(later, begin, end)[chosen], returned[waits]])
    rows = np.zeros(len(at), EVENT)
    rows["call"] = call = np.concatenate([chosen, waits])
    rows["waits"][len(chosen) :] = True
    rows["signature"], rows["rank"], rows["later"] = signature[call], rank[call], later[call]
    places, which = np.unique(calls["buffer"][call], return_inverse=True)
    rows["buffer"] = places[which % MOST_BUFFERS]
    for one in range(ranks):
        own = rows["rank"] == one
        rows["step"][own] = np.searchsorted(bounds[:, one], at[own], "right") - 1
    order = np.lexsort([at, rank[call]])
    rows, at, until = rows[order], (at + moved[call])[order], (until + moved[call])[order]
    starts = bounds[0][rows["rank"]] + moved[rows["call"]]
    before = np.concatenate([starts[:1], np.maximum.accumulate(until)[:-1]])
    rows["gap"] = np.maximum(at - np.maximum(before, starts), 0)
    rows = rows[fits[rows["call"]] & (rows["step"] < number)]
    used = tuple(np.unique(group[rows["call"]]).tolist())
    return Score(recording.signatures, recording.groups, used, number, rows), left_out


def _complete(
    recording: Recording, fits: NDArray[np.bool_], group: NDArray[Any], ranks: int
) -> None:
    """Take out the collectives and messages that are not whole."""
    matched, pairs = lateness.collectives(recording), lateness.messages(recording)
    present = np.array([sum(0 <= one < ranks for one in each.ranks) for each in recording.groups])
    sends, receives, rank = pairs.sends, pairs.receives, recording.calls.ranks()
    ends = np.bincount(np.concatenate([sends, receives]), minlength=len(fits))
    known = [
        sum(part.get(end) is not None for part in _parts(each) for end in ("dst", "src"))
        for each in recording.signatures
    ]
    fits &= ends == np.array(known)[recording.calls["signature"]]
    both = (rank[sends] < ranks) & (rank[receives] < ranks)
    sends, receives, before = sends[both], receives[both], None
    while before != (before := int(fits.sum())):  # batches may have both
        if len(matched):
            count = np.add.reduceat(fits[matched.calls].astype(int), matched.starts[:-1])
            whole = count == present[group[matched.calls[matched.starts[:-1]]]]
            fits[matched.calls] &= matched.of(whole)
        alone = fits[sends] != fits[receives]
        fits[sends[alone]] = fits[receives[alone]] = False


def _parts(signature: CallSignature) -> Sequence[Mapping[str, Any]]:
    """Return the values of each call of a batch, or of the one."""
    parts: Sequence[Mapping[str, Any]] = (signature.values,)
    return signature.values.get("calls", ()) if signature.operation in BATCHES else parts


def _unfit(signature: CallSignature, groups: Sequence[RecordedGroup]) -> str | None:
    """Return why calls are not replayed; None if they are."""
    name, values, parts = signature.operation, signature.values, _parts(signature)
    if signature.group < 0:
        return None
    if min(groups[signature.group].ranks) < 0:
        return "some ranks of its communicator are not known"
    if signature.mode == DEVICE or values.get("path", "host") != "host":
        return "its arrays are on a device"
    if not parts:
        return "its calls were not recorded"
    return next(filter(None, (_lacking(each.get("operation", name), each) for each in parts)), None)


def _lacking(name: str, values: Mapping[str, Any]) -> str | None:
    if name in ENDS:
        return None if "tag" in values else "its sender or tag was open"
    if name not in CALLS or CALLS[name].sends == "nothing":
        known = name in CALLS or name in OBJECTS
        return None if known else "it moves no arrays or objects that are known"
    if CALLS[name].reduces and op_of(values) is None:
        return "its op is a function"
    known = "dtype" in values and ("count" in values or "counts" in values)
    return None if known else "its counts were not recorded"


def op_of(values: Mapping[str, Any]) -> Op | None:
    """Return the reduction of a call; None for a function."""
    if "factor" in values:
        return premul_sum(ast.literal_eval(values["factor"]))
    named = {op.value: op for op in ReduceOp}
    return None if "code" in values else named.get(values.get("op", ""))


class ComparedCalls(NamedTuple):
    """Calls of one line of the program: how often in a step of a rank, and median seconds of both."""

    operation: str
    nbytes: int
    site: str
    calls: float
    recorded: float
    replayed: float


def compared(
    recording: Recording, replay: Recording, score: Score, at: int, several: int
) -> tuple[list[ComparedCalls], NDArray[np.float64]]:
    """Compare a replay with what it replays.

    Parameters
    ----------
    recording, replay : Recording
        What was replayed, and the recording of the replay, which has a mark behind each step.
    score : Score
        Of all ranks.
    at, several : int
        Each step was played with `several` algorithms, and this is the one that is compared.

    Returns
    -------
    list of ComparedCalls
        In the order of first use.
    ndarray of float64, shape (2, ranks)
        The seconds for which the program was blocked in a step, recorded and replayed; the median over the steps.
    """
    marks = replay.of_signature("marks")
    played = np.count_nonzero(marks[replay.calls.of_rank(0)]) // several
    expected, replayed, step = list[Any](), list[Any](), list[Any]()
    for rank in range(replay.ranks):
        own, whole = score.of_rank(rank).events, replay.calls.of_rank(rank)
        own = own[~own["waits"]]
        segment = np.cumsum(marks[whole])
        chosen = np.flatnonzero(~marks[whole] & (segment % several == at))
        parts = np.split(own["call"], np.searchsorted(own["step"], range(1, score.steps)))
        due = np.concatenate([parts[each % score.steps] for each in range(played)])
        if len(due) != len(chosen):
            raise ResultsError(
                f"rank {rank} has recorded {len(chosen)} calls of a replay of {len(due)}; replay fewer --steps"
            )
        expected.append(due)
        replayed.append(chosen + whole.start)
        step.append(rank * played + segment[chosen] // several)
    pairs = (recording.calls, np.concatenate(expected)), (replay.calls, np.concatenate(replayed))
    taken = [(of["end"][each] - of["begin"][each]) * 1e-9 for of, each in pairs]
    waited = [
        np.bincount(np.concatenate(step), of["waited"][each] * 1e-9, replay.ranks * played)
        for of, each in pairs
    ]
    names = [(one.operation, one.nbytes, one.site) for one in score.signatures]
    firsts = {name: at for at, name in reversed(list(enumerate(names)))}
    line = np.array([firsts[name] for name in names])[recording.calls["signature"][pairs[0][1]]]
    rows = []
    for number in dict.fromkeys(line.tolist()):
        medians = (float(np.median(each[line == number])) for each in taken)
        often = np.count_nonzero(line == number) / len(waited[0])
        one = score.signatures[number]
        rows.append(ComparedCalls(one.operation, one.nbytes, one.site, often, *medians))
    return rows, np.median(np.reshape(waited, (2, replay.ranks, played)), axis=2)
