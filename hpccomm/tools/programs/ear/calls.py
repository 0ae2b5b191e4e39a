"""What is heard of a call: the ranks that make calls together, and what a call asks for.

Used by `classes` and `listening`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from operator import index, itemgetter
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from hpccomm.contracts.signature import CallFingerprint, compared
from hpccomm.runtime import dump, recorder
from hpccomm.runtime.recorder import BEGIN, ENDED, CallRecord, Origin

CALLS_KEPT = 1024
"""Calls of each communicator that a dump shows."""


MOST_KNOWN = 1 << 12
"""Fingerprints of a method, and reductions, that are kept."""


class HeardGroup:
    """Ranks that make calls together: a communicator, a window or a file.

    Parameters
    ----------
    uid, name : str
        As of `Origin`.
    members : tuple of int
        The ranks, as ranks of the job.
    rank : int
        This rank of them.
    now : callable
        Returns further facts of it for a dump.

    Attributes
    ----------
    origin : Origin
        Its identity.
    matched : bool
        Whether its ranks are those that messages name: those of an intercommunicator are not.
    duplicated : bool
        Whether its ranks have met before mpi4py duplicated it.
    collectives : int
        Number of collectives that were begun.
    """

    def __init__(
        self,
        uid: str,
        name: str,
        members: tuple[int, ...],
        rank: int,
        now: Callable[["HeardGroup"], dict[str, Any]],
    ) -> None:
        self.origin = Origin(uid, name, rank, len(members))
        self.members, self.matched, self._now = members, True, now
        self.duplicated = False
        self.collectives = self._calls = 0
        self._ring = recorder.ring(CALLS_KEPT)
        dump.add(self)

    def begin(self, label: CallFingerprint, site: Any, mode: str, collective: bool) -> CallRecord:
        """Return the record of a call that begins now."""
        number = 0
        if collective:
            number = self.collectives = self.collectives + 1
        self._calls = calls = self._calls + 1
        entry = [self.origin, calls, number, label, mode, site, perf_counter(), inf, None, None]
        self._ring.append(entry)
        return entry

    def drop(self, entry: CallRecord) -> None:
        """End a call that is not recorded, and forget it unless another one has begun since."""
        entry[ENDED] = perf_counter() - entry[BEGIN]
        if self._ring and self._ring[-1] is entry:
            self._ring.pop()

    def flight_facts(self) -> dict[str, Any]:
        """Return its part of a dump."""
        uid, name, *_ = self.origin
        return {
            "uid": uid,
            "name": name,
            "ranks": [each for each in self.members if each >= 0],  # others are of another job
            "now": {
                "collective": self.collectives,
                "refused": None,
                "doing": recorder.doing(),
                **self._now(self),
            },
            "answers": {},
        }


class Arguments:
    """Finds the arguments of a method among those of a call, which are given by place and by name.

    Parameters
    ----------
    method : callable
        The method of mpi4py. `self` and `cls` do not count.
    """

    def __init__(self, method: Any) -> None:
        parameters = list(inspect.signature(method).parameters.values())
        if parameters and parameters[0].name in ("self", "cls"):
            parameters = parameters[1:]
        self.names = tuple(each.name for each in parameters)
        self._defaults = tuple(
            None if each.default is each.empty else each.default for each in parameters
        )

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def all(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a call, in order."""
        full = given + self._defaults[len(given) :]
        return tuple(map(named.get, self.names, full)) if named else full

    def put(
        self, name: str, value: Any, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call as they are given by place and by name, with another value of one."""
        place = self.names.index(name)
        if place < len(given):
            return (*given[:place], value, *given[place + 1 :]), named
        return given, {**named, name: value}

    def pick(self, names: Sequence[str]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """Return a function that takes these arguments out of all. It is a slice, or the interpreter's own."""
        places = [self.names.index(each) for each in names]
        if len(places) > 1:
            return itemgetter(*places)
        first = places[0] if places else 0
        return itemgetter(slice(first, first + len(places)))

    def one(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return one argument of a call; None where the method has none of that name."""
        if name not in self.names:
            return None
        return self.all(given, named)[self.names.index(name)]


def nbytes_of(mpi: ModuleType, buffer: Any) -> int:
    """Return the bytes of an argument that is a buffer, in any of the forms that mpi4py takes; 0 where they are not clear."""
    if buffer.__class__ is np.ndarray:
        return int(buffer.nbytes)
    try:
        if isinstance(buffer, (list, tuple)):
            count, kind = buffer[1] if len(buffer) > 2 else None, buffer[-1]
            if isinstance(kind, str):
                kind = mpi.Datatype.fromcode(kind)
            if count is not None and isinstance(kind, mpi.Datatype):
                count = np.sum(count[0] if isinstance(count, tuple) else count)
                return int(count) * int(kind.Get_size())
            return nbytes_of(mpi, buffer[0])
        return int(buffer.nbytes if hasattr(buffer, "nbytes") else memoryview(buffer).nbytes)
    except Exception:  # noqa: BLE001 (mpi4py says what is wrong with it; or it is IN_PLACE)
        return 0


def kind_of(value: Any) -> str:
    """Return what is pickled, in a word or two: the dtype of an array, the class of any other object."""
    name = type(value).__qualname__
    return f"array of {value.dtype}" if value.__class__ is np.ndarray else name


NUMBERS = ("dest", "source", "tag", "sendtag", "recvtag", "root", "target_rank", "rank")
"""The arguments of methods that are ranks and tags."""

BUFFERS = ("buf", "sendbuf", "recvbuf", "memory", "origin", "result")
"""The arguments that are buffers."""

Asked = tuple[int, str, tuple[Any, ...], Any, bool]
"""What a call asks for: bytes; what is moved, in a word; ranks and tags; the reduction; and whether these are of the group."""


class Labels:
    """The fingerprints of the calls of one method.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    method : callable
        The method of mpi4py.
    operation : str
        hpccomm's name of it.
    ends : tuple of str
        Names of ranks and tags that are known otherwise than by arguments.
    """

    def __init__(
        self, mpi: ModuleType, method: Any, operation: str, ends: tuple[str, ...] = ()
    ) -> None:
        self.name, self.operation = method.__name__, operation
        self.arguments = arguments = Arguments(method)
        self._mpi = mpi
        self._known: dict[Asked, CallFingerprint] = {}
        self._ops: dict[int, Any] = {}  # which keeps them, so that an identity stays theirs
        self.pickles, self.probes = operation.endswith("_object"), operation == "probe"
        names = tuple(each for each in NUMBERS if each in arguments)
        self._numbers = arguments.pick(names)
        self._of_group = operation in ("post", "start")
        self.names = (*names, "group") if self._of_group else (*names, *ends)
        moved = [each for each in BUFFERS if each in arguments and not self.pickles]
        self._buffers = arguments.pick(moved)
        self.value = next((each for each in ("obj", "sendobj") if each in arguments), "")
        self._op = arguments.names.index("op") if "op" in arguments else None
        self.takes_status = "status" in arguments
        self.receives = "source" in self.names

    def asked(
        self,
        given: tuple[Any, ...],
        named: dict[str, Any],
        matched: bool,
        ends: tuple[Any, ...] = (),
    ) -> Asked:
        """Return what a call with these arguments asks for, with `ends` that are known; of objects, not the bytes."""
        every = self.arguments.all(given, named)
        nbytes, kind, op = 0, "", 0
        for buffer in self._buffers(every):
            if buffer.__class__ is np.ndarray:
                size, kind = buffer.nbytes, buffer.dtype.char
            else:
                size = 0 if buffer is None else nbytes_of(self._mpi, buffer)
            if size > nbytes:
                nbytes = size
        numbers = self._numbers(every) + ends
        if self._op is not None:
            function = every[self._op]
            op = id(function)
            if op not in self._ops:
                if len(self._ops) > MOST_KNOWN:
                    self._ops.clear()
                    self._known.clear()
                self._ops[op] = function
        elif self._of_group:
            numbers += (self._ranks(self.arguments.one("group", given, named)),)
        return nbytes, kind, numbers, op, matched

    def _ranks(self, group: Any) -> tuple[int, ...]:
        """Return the ranks of the job in a group."""
        everyone = self._mpi.COMM_WORLD.Get_group()
        ranks = tuple(group.Translate_ranks(None, everyone))
        everyone.Free()
        return ranks

    def pickled(self, asked: Asked, nbytes: int, value: Any) -> Asked:
        """Return what a call asked for that has pickled or unpickled so many bytes, of a value."""
        if value.__class__ is np.ndarray:
            nbytes = int(value.nbytes)
        return nbytes, kind_of(value), *asked[2:]

    def come(self, asked: Asked, status: Any) -> Asked:
        """Return what a call asked for, with the sender and the tag of the message that came."""
        found = {"source": status.Get_source(), "tag": status.Get_tag()}
        found["recvtag"] = found["tag"]
        numbers = [found.get(name, each) for name, each in zip(self.names, asked[2], strict=True)]
        return *asked[:2], tuple(numbers), *asked[3:]

    def open(self, asked: Asked) -> bool:
        """Whether the sender or the tag is open."""
        mpi = self._mpi
        if not self.receives:
            return False
        for name, each in zip(self.names, asked[2], strict=True):
            if (name == "source" and each == mpi.ANY_SOURCE) or (
                name in ("tag", "recvtag") and each == mpi.ANY_TAG
            ):
                return True
        return False

    def of(self, asked: Asked) -> CallFingerprint:
        """Return the fingerprint of calls that ask for this."""
        try:
            found = self._known.get(asked)
            if found is None:
                if len(self._known) > MOST_KNOWN:
                    self._known.clear()
                found = self._known[asked] = self._new(*asked)
        except TypeError:  # a rank or tag is no number, which mpi4py will say
            return compared(self.operation, {"mpi": self.name})
        return found

    def _new(
        self, nbytes: int, kind: str, numbers: tuple[Any, ...], op: int, matched: bool
    ) -> CallFingerprint:
        mpi = self._mpi
        every: dict[str, Any] = {
            name: each if name == "group" else index(each)
            for name, each in zip(self.names, numbers, strict=True)
        }
        values: dict[str, Any] = {"mpi": self.name}
        if self.pickles:
            values["object"] = kind
        elif kind:
            values["dtype"] = str(np.dtype(kind))
        if self._op is not None:
            values["op"] = op_name(mpi, self._ops[op])
        if "root" in every and matched:
            values["root"] = every["root"]
        if "target_rank" in every or "rank" in every:
            values["target"] = every.get("target_rank", every.get("rank"))
        if "group" in every:
            values["peers"] = every["group"]
        ends: list[dict[str, Any]] = []
        for way, peer, tag in (("dst", "dest", "sendtag"), ("src", "source", "recvtag")):
            whom = every.get(peer, mpi.PROC_NULL)
            if matched and whom != mpi.PROC_NULL:
                number = every.get("tag", every.get(tag, 0))
                end = {} if whom == mpi.ANY_SOURCE else {way: whom}
                ends.append({**end, "tag": None if number == mpi.ANY_TAG else number})
        if len({each["tag"] for each in ends}) > 1:
            values["calls"] = ends
        else:
            for each in ends:
                values |= each
        return compared(self.operation, values, nbytes)


OPS = (
    *("SUM", "PROD", "MIN", "MAX", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR"),
    *("MINLOC", "MAXLOC", "REPLACE", "NO_OP"),
)


def op_name(mpi: ModuleType, op: Any) -> str:
    """Return hpccomm's name of a reduction: MPI's in lower case, or that of a function."""
    known = (name.lower() for name in OPS if op == getattr(mpi, name))
    return next(known, "") or str(getattr(op, "__qualname__", "user's"))


@dataclass(slots=True)
class Open:
    """A call that goes on when its method has returned, or a persistent one that waits for its next start."""

    group: HeardGroup
    labels: Labels
    asked: Asked
    collective: bool
    entry: CallRecord | None = None


def under_way(call: Open | None) -> bool:
    """Whether a call has begun, and is not over."""
    return call is not None and call.entry is not None and call.entry[ENDED] is None
