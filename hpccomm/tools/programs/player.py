"""Makes the calls of a recorded program again. Nothing of the program itself runs.

Arrays are of zeros. Where the program computed, the core is busy for as long: it writes what is sent next, so that the
caches of other cores lack it, and then works on data of its own, which take the caches. Calls are a quarter faster
where it reads the clock alone.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from time import perf_counter
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccomm.communicator import Communicator
from hpccomm.communicator.object_transfer import dump
from hpccomm.contracts.collectives import CALLS
from hpccomm.contracts.fingerprint import MEMORY, REGISTERED
from hpccomm.contracts.signature import Signature
from hpccomm.errors import UsageError
from hpccomm.results.recording import CallSignature
from hpccomm.tools.programs.replaying import BATCHES, ENDS, OBJECTS, Score, op_of

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
