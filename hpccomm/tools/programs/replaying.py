"""What each rank of a replay does, from a recorded program; and both compared.

`hpccomm.tools.programs.replaying` makes the calls.

Makes the calls of a recorded program again. Nothing of the program itself runs.

Arrays are of zeros. Where the program computed, the core is busy for as long: it writes what is sent next, so that the
caches of other cores lack it, and then works on data of its own, which take the caches. Calls are a quarter faster
where it reads the clock alone.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from time import perf_counter
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccomm.communicator import Communicator
from hpccomm.communicator.objects import dump
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.signature import MEMORY, REGISTERED, Signature
from hpccomm.errors import ResultsError, UsageError
from hpccomm.reductions import Op, ReduceOp, premul_sum
from hpccomm.results import recording as lateness
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


RECORDED = "recorded"
"""The algorithm of a replay that takes what the recording has."""

Act = Callable[[], Any]

Move = tuple[float, list[NDArray[Any]], Act | None, object]
"""Seconds before it, the arrays that are written in that time, what makes a call (None: the wait for one), and what
names an asynchronous call."""

DATA = 8 << 20
"""Bytes of the program's own data, which take the caches."""

PIECE = 10e-6
"""More seconds than the computation on a piece of them takes."""

WRITTEN = 0.25
"""Nanoseconds a byte in which a program writes an array."""

_CALL = (lambda function, given, named: function(*given, **named)).__code__


def _at(site: str) -> Callable[..., Any]:
    """Return a function that calls another one, at a line of the program: recordings of the replay name it."""
    code, parts = _CALL, re.fullmatch(r"(?:(.+)\(\), )?(.+) line (\d+)", site)
    if parts is not None:
        name, file, line = parts[1] or "<module>", parts[2], int(parts[3])
        code = code.replace(co_filename=file, co_firstlineno=line, co_qualname=name)
        code = code.replace(co_name=name.rpartition(".")[2])
    return FunctionType(code, {})


class Player:
    """Plays a score. Making one is collective and blocks, and so are its methods.

    Parameters
    ----------
    comm : Communicator
        Of the ranks.
    score : Score
        Of this rank.
    algorithms : sequence of str
        One of these is played at a time, by the calls that have it. `RECORDED` stands for the recorded ones.
    gaps : bool
        Whether to compute between the calls.

    Attributes
    ----------
    takers : list of set of str
        The calls that take each algorithm.
    """

    def __init__(
        self,
        comm: Communicator,
        score: Score,
        algorithms: Sequence[str],
        *,
        gaps: bool,
    ) -> None:
        self._comm, self._score = comm, score
        self.takers = [set[str]() for _ in algorithms]
        self._memory: dict[object, NDArray[Any]] = {}
        self._works: dict[object, Any] = {}
        self._members = {
            each: [at for at, rank in enumerate(score.groups[each].ranks) if rank < comm.size]
            for each in score.used
        }
        self._comms = {
            each: comm.split_ranks([score.groups[each].ranks[at] for at in members], score.groups[each].name)
            for each, members in self._members.items()
        }  # fmt: skip
        self._moves = [self._played(at, name, gaps) for at, name in enumerate(algorithms)]
        self._data = cycle(np.zeros((DATA >> 14, 1 << 11)))
        self._now = perf_counter()

    def _played(self, at: int, algorithm: str, gaps: bool) -> list[list[Move]]:
        """Return the moves of each step."""
        acts: dict[tuple[int, int], tuple[Act, list[NDArray[Any]]]] = {}
        moves: list[list[Move]] = [[] for _ in range(self._score.steps)]
        for gap, number, waits, later, call, buffer, step, _ in self._score.events.tolist():
            act: Act | None = None
            sent: list[NDArray[Any]] = []
            if not waits:
                if (number, buffer) not in acts:
                    signature = self._score.signatures[number]
                    acts[number, buffer] = self._act(signature, buffer, later, at, algorithm)
                act, sent = acts[number, buffer]
            written = sum(each.nbytes for each in sent) * WRITTEN < gap and gaps
            key = (at, call) if later else None
            moves[step].append((gap * 1e-9 * gaps, sent if written else [], act, key))
        return moves

    def play(self, step: int, at: int = 0) -> None:
        """Make the calls of a step, with the algorithm of that number."""
        now, works, clock = self._now, self._works, perf_counter
        for gap, sent, act, key in self._moves[at][step]:
            until = now + gap
            for each in sent:
                each.fill(0)
            for piece in self._data:
                if clock() + PIECE >= until:
                    break
                np.add(piece, 1, piece)
            while (now := clock()) < until:
                pass
            if act is not None and key is not None:
                works[key] = act()  # which is part of the gap behind it
                continue
            if act is not None:
                act()
            elif key in works:
                works.pop(key).wait()
            now = clock()
        self._now = now

    def end(self) -> None:
        """Wait for all asynchronous calls."""
        while self._works:
            self._works.pop(next(iter(self._works))).wait()

    def close(self) -> None:
        """End the communicators."""
        self.end()
        for comm in filter(None, self._comms.values()):
            comm.finalize()

    # How a call is made.

    def _act(
        self, signature: CallSignature, buffer: int, later: bool, at: int, algorithm: str
    ) -> tuple[Act, list[NDArray[Any]]]:
        """Return the function that makes a call, and the arrays that it sends."""
        comm: Any = self._comms[signature.group]
        values, line = signature.values, _at(signature.site)
        several = signature.operation in BATCHES
        parts = []
        for place, each in enumerate(values["calls"] if several else (values,)):
            name = each.get("operation", signature.operation)
            nbytes, key = each.get("nbytes", signature.nbytes), (buffer or signature, place)
            members = self._members[signature.group]
            if name in ENDS:
                named = self._message(name, each, key, nbytes, members)
            elif name in OBJECTS:
                named = _objects(name, each, nbytes, members)
            else:
                registered = each.get(MEMORY) == REGISTERED
                named = self._collective(comm.rank, name, each, (key, registered), members)
                named |= self._algorithm(comm, name, named, each["algorithm"], at, algorithm)
            parts.append((getattr(comm, name), named))
        sent = [named["x"] for _, named in parts if named.get("x") is not None]
        if not several:
            method, named = parts[0]
            return partial(line, method, (), named | ({"async_op": True} if later else {})), sent

        def batch() -> Any:
            whole = comm.batch(async_op=later)
            whole.__enter__()
            for method, named in parts:
                method(**named)
            line(whole.__exit__, (None, None, None), {})
            return whole.work

        return batch, sent

    def _array(self, key: object, role: str, dtype: np.dtype[Any], size: int, shared: bool) -> Any:
        """Return an array of zeros: the same memory for the same key, role and kind of memory."""
        nbytes, of = size * dtype.itemsize, (key, role, shared)
        known = self._memory.get(of)
        if known is None or known.nbytes < nbytes:
            known = self._memory[of] = (self._comm if shared else np).empty(nbytes, np.uint8)
            known.fill(0)  # which also places its pages
        return known[:nbytes].view(dtype)

    def _message(
        self, name: str, values: Mapping[str, Any], key: object, nbytes: int, members: list[int]
    ) -> dict[str, Any]:
        named: dict[str, Any] = {"tag": values["tag"]}
        for end in ENDS[name]:
            peer, sends = values.get(end), end == "dst"
            named[end] = members.index(peer) if peer in members else None
            if not name.endswith("_object"):
                size = values.get("sent" if sends else "received", nbytes)
                role = "x" if sends else "out"
                named[role] = self._array(key, role, np.dtype(np.uint8), size, False)
            elif sends:
                named["value"] = _object(nbytes)
        return named

    def _collective(
        self, rank: int, name: str, values: Mapping[str, Any], memory: Any, members: list[int]
    ) -> dict[str, Any]:
        what = CALLS[name]
        if what.sends == "nothing":
            return {}
        (key, shared), named, text = memory, dict[str, Any](), values["dtype"]
        dtype = np.dtype(ast.literal_eval(text) if text[0] in "[{" else text)
        counts, taken = values.get("count", values.get("counts")), values.get("recv_counts") or []
        peers, uniform = values.get("peers") or [], isinstance(counts, int)
        if uniform:
            counts = taken = [counts] * (len(members) if what.blockwise else 1)
        else:
            of = peers if what.peers else range(len(counts))
            # -1: of no rank
            left = [place for place, each in enumerate(of) if each in (-1, *members)]
            counts, taken = ([each[at] for at in left if each] for each in (counts, taken))
            peers = [None if peers[at] < 0 else members.index(peers[at]) for at in left if what.peers]  # fmt: skip
        root = _root(values, members) if what.rooted else -1
        call = Signature(what.name, dtype, tuple(counts), tuple(taken), root=root)
        (send, recv), (sends, receives) = call.lengths_of(rank), what.uses(rank, root)
        named["x"] = None
        if sends or what.in_place == "always":
            x = self._array(key, "x", dtype, send if sends else recv, shared)
            shape = ast.literal_eval(values.get("shape", "()"))
            named["x"] = x.reshape(shape) if shape and np.prod(shape) == x.size else x
        if receives and what.in_place not in ("always", "by default"):
            named["out"] = self._array(key, "out", dtype, recv, shared)
        if what.reduces:
            named |= {"op": op_of(values), "deterministic": values["deterministic"]}
        named |= {"root": root} if what.rooted else {}
        named |= {"exclusive": values["exclusive"]} if what.prefix else {}
        named |= {"peers": peers} if what.peers else {}
        if not uniform:
            lists = {"send_counts": counts, "recv_counts": taken}
            named |= lists if what.individual else {"counts": counts}
        return named

    def _algorithm(
        self, comm: Any, name: str, named: dict[str, Any], recorded: str, at: int, wanted: str
    ) -> dict[str, Any]:
        """Return the argument for the algorithm: none where that of the recording is chosen anyway."""
        for one in (wanted, None, recorded):
            try:
                choice = None if one == RECORDED else comm.explain(name, **named, algorithm=one)
            except UsageError:
                continue
            if choice is None or (one is None and choice.algorithm != recorded):
                continue
            self.takers[at] |= {name} if one == wanted else set()
            return {} if one is None else {"algorithm": one}
        return {}


def _root(values: Mapping[str, Any], members: list[int]) -> int:
    """Return the root among the ranks that are there."""
    root: int = values["root"]
    return members.index(root) if root in members else root % len(members)


def _objects(
    name: str, values: Mapping[str, Any], nbytes: int, members: list[int]
) -> dict[str, Any]:
    named = {"root": _root(values, members)} if "root" in values else {}
    if name == "scatter_object":
        return named | {"values": [_object(nbytes // len(members))] * len(members)}
    return named | {"value": _object(nbytes)}


def _object(nbytes: int) -> bytes | None:
    """Return bytes whose pickle has that size; None is the smallest object."""
    value = bytes(max(0, nbytes - 20))
    length = len(value) + nbytes - len(dump(value).inline)
    return bytes(length) if length >= 0 else None
