"""Run the communication of a recorded program again, as a benchmark.

Each rank makes the recorded calls, in their order and with their arguments, on arrays of zeros. Where the program
computed, its core is busy for as long. Calls that cannot be made again are listed first: reductions by a function of the
program, calls on device arrays, windows. Objects are bytes of the recorded size. Settings are of this
job (HPCCOMM_ALGORITHM, ...), not of the recorded one.

On fewer ranks than recorded, these are the first ones: messages to others are not sent, blocks of others are left
out, and ranks that are there take the place of roots that are not.

A line is a call of the program, with medians over all ranks. The last lines say for how long calls blocked each rank
in a step.

Examples
--------
  mpiexec -n 8 hpccomm record --output t.h5 -- python train.py
  mpiexec -n 8 hpccomm replay t.h5
  mpiexec -n 8 hpccomm replay t.h5 --algorithm recorded,ring     two replays, step by step in turns
  mpiexec -n 4 hpccomm replay t.h5 --without-gaps --steps 1000 --output r.h5
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle
from time import perf_counter
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import hpccomm
from hpccomm.calls import policy
from hpccomm.communicator import Communicator
from hpccomm.communicator.objects import dump
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.signature import MEMORY, REGISTERED, Signature
from hpccomm.errors import ResultsError, UsageError
from hpccomm.reductions import Op, ReduceOp, premul_sum
from hpccomm.results.recording import (
    DEVICE,
    CallSignature,
    Indices,
    RecordedGroup,
    Recording,
    collectives,
)
from hpccomm.results.recording_file import read_recordings
from hpccomm.tools import flags, output
from hpccomm.tools.flags import Flag
from hpccomm.tools.perf.facts import on_root
from hpccomm.tools.programs.model import BESIDE, END, WAIT, ProgramModel, modelled
from hpccomm.tools.programs.steps import Bools, ProgramSteps, steps
from hpccomm.units import counted, ranges, rounded_size

SECONDS = 10
MOST_CALLS = 100_000
"""Recorded seconds that are replayed by default, and the most calls of a rank."""

HEAD = "recorded(us)  replayed(us)   ratio  where"

RECORDED = "recorded"
"""The name that stands for the recorded algorithms."""

FLAGS = (
    Flag("FILE", flags.file, "a results file with a recording", "file"),
    Flag("--run NAME", str, "the recording, by name (default: the last one)"),
    Flag(
        "--algorithm NAME[,NAME...] recorded",
        flags.algorithms({RECORDED, *policy.NAMES}, "is not an algorithm"),
        "what the calls take that have it; each of several is replayed, in turns",
    ),
    Flag(
        "--steps N",
        flags.integer(1),
        f"steps to run; more than recorded begin anew (default: what fills {SECONDS} s)",
    ),
    Flag("--warm-up N 5", flags.integer(0), "steps that are run before, and not counted"),
    Flag("--without-gaps", bool, "call after call, without computation between them"),
    Flag("--backend NAME auto", str, "as in perf"),
    Flag("-T --timeout SECONDS 60", flags.integer(1), "deadline of each call"),
    Flag("--output FILE.h5", flags.file, "add the recording of the replay to this file"),
)


def run(args: argparse.Namespace) -> int:
    """Replay. Collective: every rank of the job runs it."""
    with hpccomm.new_comm(args.backend, timeout=args.timeout, name="replay") as comm:
        try:
            return _replayed(args, comm)
        except (UsageError, ResultsError) as refused:  # on all ranks
            error = refused
    raise error


def _replayed(args: argparse.Namespace, comm: Communicator) -> int:
    planned = on_root(comm, lambda: _planned(args, comm.size))
    parts = [(planned.steps, planned.score.of_rank(each)) for each in range(comm.size)] if planned else None  # fmt: skip
    total, score = comm.scatter_object(parts)
    player = Player(comm, score, args.algorithm, gaps=not args.without_gaps)
    each_rank = comm.all_gather_object(player.takers)
    takers = [set[str]().union(*each) for each in zip(*each_rank, strict=True)]
    for name, calls in zip(args.algorithm, takers, strict=True):
        if name != RECORDED and not calls:
            player.close()
            raise UsageError(f"--algorithm {name}: no call of these steps has it; give another")
    for step in range(-args.warm_up, total):
        if step == 0:
            recorder = comm.record(args.output)
        if step % score.steps == 0:
            player.end()
        for at in range(len(args.algorithm)):
            player.play(step % score.steps, at)
            if step >= 0:
                recorder.step()
    player.end()
    recorder.close()
    player.close()
    on_root(comm, lambda: _report(args, planned, recorder, takers) if planned else None)
    status: int = comm.broadcast_object(planned.status if planned else None)
    return status


class _Planned(NamedTuple):
    """A replay, on rank 0: how many steps are made, and the status of the file."""

    recording: Recording
    score: "Score"
    steps: int
    status: int


def _planned(args: argparse.Namespace, ranks: int) -> _Planned:
    """Choose the steps to replay, and print them."""
    chosen, status = output.read_recording(args.file, args.run)
    if ranks > chosen.ranks:
        raise UsageError(
            f"{chosen.name} of {args.file} is of {counted(chosen.ranks, 'rank')}, and this job has {ranks}; "
            f"start {chosen.ranks} or fewer"
        )
    parts = steps(chosen, collectives(chosen))
    most = min(
        SECONDS * 1e9 / parts.durations.mean(),
        MOST_CALLS * len(parts) * chosen.ranks / chosen.calls.count,
    )
    total = args.steps or max(1, min(len(parts), int(most)))
    number = min(total, len(parts))
    first = (len(parts) - number) // 2
    whole, left_out = score(chosen, parts, first, number, ranks)
    span = ranges(range(first, first + number))
    if not whole.used:
        why = "; ".join(left_out) or "they make no calls"
        raise UsageError(f"no call of steps {span} can be made again: {why}")
    fewer = f" of {chosen.ranks}" if ranks < chosen.ranks else ""
    again = f" {total} times in turn" if total > number else ""
    output.write(
        f"# {chosen.name} of {args.file}: {counted(ranks, 'rank')}{fewer}, steps {span}{again} ({parts.how}), "
        f"{'without' if args.without_gaps else 'with'} gaps\n"
        + "".join(f"# left out: {counted(count, 'call')}, {what}\n" for what, count in left_out.items())
    )  # fmt: skip
    return _Planned(chosen, whole, total, status)


def _report(
    args: argparse.Namespace, planned: _Planned, recorder: Any, takers: Sequence[set[str]]
) -> None:
    """Print recorded and replayed times, algorithm by algorithm."""
    replay = recorder.recording or read_recordings(args.output)[-1]
    for at, (name, calls) in enumerate(zip(args.algorithm, takers, strict=True)):
        by = "" if name == RECORDED else f", taken by {', '.join(sorted(calls))}"
        head = f"#\n# Algorithms: {name}{by}\n# {'call':<22}  {'size':>9}  {'a step':>7}  {HEAD}\n"
        lines = compared(planned.recording, replay, planned.score, at, len(takers))
        output.write("".join([head, *lines]))


def _line(
    what: str, size: str, often: str, recorded: float, replayed: float, site: str = ""
) -> str:
    ratio = f"{replayed / recorded:.2f}" if recorded else ""
    line = f"{what:<24}  {size:>9}  {often:>7}  {recorded * 1e6:12.1f}  {replayed * 1e6:12.1f}  {ratio:>6}  {site}"
    return line.rstrip() + "\n"


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


@dataclass(frozen=True, slots=True)
class Score:
    """The acts of the ranks in the replayed steps. Each rank is sent its own acts.

    Attributes
    ----------
    signatures, groups : tuple
        Of the recording.
    used : tuple of int
        The numbers of the communicators with calls, on any rank.
    steps : int
        Their number.
    starts : ndarray of int64, shape (ranks + 1,)
        The first act of each rank, and behind the last one.
    acts : ndarray of hpccomm.tools.programs.model.ACT
        In order, by rank.
    """

    signatures: tuple[CallSignature, ...]
    groups: tuple[RecordedGroup, ...]
    used: tuple[int, ...]
    steps: int
    starts: Indices
    acts: NDArray[Any]

    def of_rank(self, rank: int) -> "Score":
        """Return the score of one rank."""
        return replace(self, acts=self.acts[slice(*self.starts[rank : rank + 2])])


def score(
    recording: Recording, parts: ProgramSteps, first: int, number: int, ranks: int
) -> tuple[Score, Counter[str]]:
    """Return the score of all ranks, and the number of calls that are left out for each reason.

    Parameters
    ----------
    recording : Recording
        The recording.
    parts : ProgramSteps
        Its steps.
    first, number : int
        The first step that is replayed, and their number.
    ranks : int
        Number of ranks of the replay: the first ones of the recording.
    """
    program, calls = modelled(recording, parts.bounds[first : first + number + 1]), recording.calls
    acts = program.acts[: program.starts[ranks]].copy()
    ends = acts["kind"] == END
    places, which = np.unique(acts["buffer"], return_inverse=True)
    acts["buffer"] = places[which % MOST_BUFFERS]

    made = np.flatnonzero(program.calls()[: len(acts)])
    _, firsts, call = np.unique(acts["call"][made], return_index=True, return_inverse=True)
    reasons = [_unfit(each, recording.groups) for each in recording.signatures]
    lost = np.array([each is not None for each in reasons])[acts["signature"][made]]
    lost = _spread(program, recording, made, call, lost | (calls["failed"][acts["call"][made]] > 0))
    left_out = Counter[str]()
    missing = np.unique(acts["signature"][made[firsts[lost[firsts]]]], return_counts=True)
    for each, count in zip(*(part.tolist() for part in missing), strict=True):
        why = reasons[each] or "not of these steps on all of its ranks"
        left_out[f"{recording.signatures[each].operation}: {why}"] += count
    # A call with several messages has an act for each of them. It is made once.
    kept = ends | ((acts["kind"] == WAIT) & ~np.isin(acts["call"], acts["call"][made[lost]]))
    kept[made[firsts[~lost[firsts]]]] = True
    starts = np.searchsorted(np.flatnonzero(kept), program.starts[: ranks + 1])
    acts = acts[kept]
    groups = recording.of_signature("group")[acts["call"][acts["kind"] != END]]
    used = tuple(np.unique(groups).tolist())
    return Score(recording.signatures, recording.groups, used, number, starts, acts), left_out


def _spread(
    program: ProgramModel, recording: Recording, made: Indices, call: Indices, lost: Bools
) -> Bools:
    """Return which acts are lost: also those whose collective or message lacks the act of another rank.

    Parameters
    ----------
    program, recording
        The model, and its recording.
    made : ndarray of int64
        The acts that make calls.
    call : ndarray of int64
        Number of the call that each of them makes, from 0.
    lost : ndarray of bool
        The acts that are lost by themselves.
    """
    acts = program.acts[made]
    ends = [
        sum(part.get(end) is not None for part in _parts(each) for end in ("dst", "src"))
        for each in recording.signatures
    ]
    due = np.array(ends)[recording.calls["signature"][acts["call"]]]
    due += recording.calls["number"][acts["call"]] > 0
    event, whole = acts["event"], program.members() == program.events["ranks"]
    lost = lost | ~whole[event] | (np.bincount(call)[call] != due)
    before = -1
    while before != (before := int(lost.sum())):
        lost = np.bincount(event, lost)[event] + np.bincount(call, lost)[call] > 0
    return lost


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


def compared(
    recording: Recording, replay: Recording, score: Score, at: int, several: int
) -> list[str]:
    """Return a line for each call of the program, with median seconds of both, and how long ranks were blocked in a step.

    Parameters
    ----------
    recording, replay : Recording
        What was replayed, and the recording of the replay, which has a mark behind each step.
    score : Score
        Of all ranks.
    at, several : int
        Each step was played with `several` algorithms, and this is the one that is compared.
    """
    marks = replay.of_signature("marks")
    # A call that follows asynchronous ones may have waited for them, which is recorded as a call of its own.
    made = [not each.marks and _unfit(each, replay.groups) is None for each in replay.signatures]
    replayable = np.array(made)[replay.calls["signature"]]
    played = np.count_nonzero(marks[replay.calls.of_rank(0)]) // several
    expected, replayed, step = list[Any](), list[Any](), list[Any]()
    for rank in range(replay.ranks):
        own, whole = score.of_rank(rank).acts, replay.calls.of_rank(rank)
        segment = np.cumsum(marks[whole])
        chosen = np.flatnonzero(replayable[whole] & (segment % several == at))
        each_step = np.split(own, np.flatnonzero(own["kind"] == END))
        parts = [each["call"][~np.isin(each["kind"], (END, WAIT))] for each in each_step]
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
    names: dict[tuple[str, int, str], int] = {}
    each_line = [
        names.setdefault((one.operation, one.nbytes, one.site), len(names))
        for one in score.signatures
    ]
    line = np.array(each_line)[recording.calls["signature"][pairs[0][1]]]
    lines = []
    for number in dict.fromkeys(line.tolist()):
        operation, nbytes, site = list(names)[number]
        before, after = (float(np.median(each[line == number])) for each in taken)
        often = f"{np.count_nonzero(line == number) / len(waited[0]):.1f}"
        lines.append(_line(operation, rounded_size(nbytes), often, before, after, site))
    blocked = np.median(np.reshape(waited, (2, replay.ranks, played)), axis=2)
    lines += [_line(f"rank {rank}", "", "a step", *each) for rank, each in enumerate(blocked.T)]
    return [*lines, _line("# communication, mean", "", "a step", *blocked.mean(axis=1))]


Act = Callable[[], Any]

Key = tuple[int, int]
"""The number of an algorithm, and of a call."""

Move = tuple[float, list[NDArray[Any]], Act | None, list[Key]]
"""Seconds before it, the arrays that are written in that time, what makes a call, and the key of that if it is
asynchronous; without a call, the keys of those that are waited for."""

DATA = 8 << 20
"""Bytes of the program's own data, which fill the caches."""

PIECE = 10e-6
"""Seconds: more than an addition to one piece of these data takes."""

WRITTEN = 0.25
"""Nanoseconds that a program takes to write a byte of an array."""

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

    Arrays hold zeros. Where the program computed, the core is busy for as long. It first writes the arrays that are sent
    next, so that the caches of other cores lack them. Then it works on data of its own, which fill its caches. If it
    only read the clock, calls would be a quarter faster.

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
        self, comm: Communicator, score: Score, algorithms: Sequence[str], *, gaps: bool
    ) -> None:
        self._comm, self._score = comm, score
        self.takers = [set[str]() for _ in algorithms]
        self._memory: dict[object, NDArray[Any]] = {}
        self._works: dict[Key, Any] = {}
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
        make = cache(partial(self._act, at, algorithm))
        moves: list[list[Move]] = [[]]
        acts = self._score.acts
        awaited = set(acts["call"][acts["kind"] == WAIT].tolist())
        others: list[Key] = []  # no act waits for them; the end of their step does
        names = ["kind", "compute", "call", "signature", "buffer"]
        for kind, gap, call, number, buffer in acts[names].tolist():
            act, sent, keys = None, list[NDArray[Any]](), [(at, call)]
            if kind == END:
                keys, others = others, []
            elif kind != WAIT:
                signature = self._score.signatures[number]
                beside = kind == BESIDE and signature.operation not in OBJECTS
                later = beside or not signature.blocks
                act, sent = make(number, buffer, later)
                keys *= later
                others += [] if call in awaited else keys
            written = sum(each.nbytes for each in sent) * WRITTEN < gap * 1e9 and gaps
            moves[-1].append((gap * gaps, sent if written else [], act, keys))
            if kind == END:
                moves.append([])
        return moves

    def play(self, step: int, at: int = 0) -> None:
        """Make the calls of a step, with the algorithm of that number."""
        now, works, clock = self._now, self._works, perf_counter
        for gap, sent, act, keys in self._moves[at][step]:
            until = now + gap
            for each in sent:
                each.fill(0)
            for piece in self._data:
                if clock() + PIECE >= until:
                    break
                np.add(piece, 1, piece)
            while (now := clock()) < until:
                pass
            if act is not None and keys:
                works[keys[0]] = act()  # which is part of the gap behind it
                continue
            if act is not None:
                act()
            else:
                for key in filter(works.__contains__, keys):
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
        self, at: int, algorithm: str, number: int, buffer: int, later: bool
    ) -> tuple[Act, list[NDArray[Any]]]:
        """Return the function that makes the calls of a signature on a buffer, and the arrays that it sends."""
        signature = self._score.signatures[number]
        comm: Any = self._comms[signature.group]
        members, line = self._members[signature.group], _at(signature.site)
        parts = []
        for place, each in enumerate(_parts(signature)):
            name = each.get("operation", signature.operation)
            nbytes, key = each.get("nbytes", signature.nbytes), (buffer or -number, place)
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
        if signature.operation not in BATCHES:
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
        """Return the argument for the algorithm: none if the recorded one is chosen without it."""
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
    """Return the root; if it is not there, another rank in its place."""
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
