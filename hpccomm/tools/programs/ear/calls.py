"""What is heard of a call: the ranks that make calls together, and what a call asks for.

Used by `classes` and `listening`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from operator import eq, index, itemgetter
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from hpccomm.contracts.signature import CallFingerprint, compared
from hpccomm.runtime import dump, recorder
from hpccomm.runtime.recorder import BEGIN, BLOCKING, ENDED, MODE, SEQUENCE, CallRecord, Origin

CALLS_KEPT = 1024
"""Calls of each communicator that a dump shows."""


MOST_KNOWN = 1 << 12
"""Fingerprints of a method, and reductions, that are kept."""


class Now:
    """What the program does now.

    Attributes
    ----------
    inside : dict of int to CallRecord
        The last call that each thread has begun, by its identifier.
    awaited : dict of int to (float, list of Open or None)
        Since when each thread waits for asynchronous calls, as of ``time.perf_counter``, and the calls.
    left : bool
        Whether it has come to its end.
    """

    def __init__(self) -> None:
        self.inside: dict[int, CallRecord] = {}
        self.awaited: dict[int, tuple[float, list[Any]]] = {}
        self.left = False

    def longest(self) -> float:
        """Return the seconds of the longest wait that is under way."""
        now, began = perf_counter(), [since for since, _ in list(self.awaited.values())]
        last = list(self.inside.values())
        began += [each[BEGIN] for each in last if each[ENDED] is None and each[MODE] is BLOCKING]
        return now - min(began, default=now)


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
    now : Now
        What the program does.

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
        now: Now,
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
        waits, since = list(self._now.awaited.values()), recorder.unix_ns
        own = [
            (each, began) for began, calls in waits for each in calls if each and each.group is self
        ]
        return {
            "uid": uid,
            "name": name,
            "ranks": [each for each in self.members if each >= 0],  # others are of another job
            "now": {
                "collective": self.collectives,
                "refused": None,
                "doing": recorder.doing(),
                "leaving": self._now.left,
                "awaited_since": {each.entry[SEQUENCE]: since(began) / 1e9 for each, began in own},
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
        self.defaults = tuple(
            None if each.default is each.empty else each.default for each in parameters
        )

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def with_one(
        self, name: str, make: Callable[[], Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return one argument of a call, which is made if it is None, and all of them by place and by name."""
        value, place = self.one(name, given, named), self.names.index(name)
        if value is None:
            value = make()
            if place < len(given):
                given = *given[:place], value, *given[place + 1 :]
            else:
                named = {**named, name: value}
        return value, given, named

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
        place = self.names.index(name)
        return given[place] if place < len(given) else named.get(name, self.defaults[place])


def ranks_of(mpi: ModuleType, group: Any) -> tuple[int, ...]:
    """Return the ranks of the job in a group."""
    everyone = mpi.COMM_WORLD.Get_group()
    ranks = tuple(group.Translate_ranks(None, everyone))
    everyone.Free()
    return ranks


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

TERMS = {"root": "root", "target_rank": "target", "rank": "target", "peers": "peers"}
"""Those that say with whom a collective or a call on a window is, and their names in a fingerprint."""

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
        Names of what is known otherwise than by arguments: ranks and tags, and the ranks of a group.
    """

    def __init__(
        self, mpi: ModuleType, method: Any, operation: str, ends: tuple[str, ...] = ()
    ) -> None:
        self.name, self.operation = method.__name__, operation
        self.arguments = arguments = Arguments(method)
        # The defaults that follow so many arguments.
        self._rest = {many: arguments.defaults[many:] for many in range(len(arguments.names))}
        self._mpi = mpi
        self._known: dict[Asked, CallFingerprint] = {}
        self._ops: dict[int, tuple[Any, str]] = {}  # with the object, so that an identity stays its
        self.pickles = operation.endswith("_object")
        names = tuple(each for each in NUMBERS if each in arguments)
        self._numbers = arguments.pick(names)
        self.names = *names, *ends
        anys = {"source": mpi.ANY_SOURCE, "tag": mpi.ANY_TAG, "recvtag": mpi.ANY_TAG}
        self._anys = tuple(map(anys.get, self.names)) if "source" in self.names else ()
        moved = [each for each in BUFFERS if each in arguments and not self.pickles]
        self._buffers = arguments.pick(moved)
        self.value = next((each for each in ("obj", "sendobj") if each in arguments), "")
        self._op = arguments.names.index("op") if "op" in arguments else None

    def asked(
        self,
        given: tuple[Any, ...],
        named: dict[str, Any],
        matched: bool,
        ends: tuple[Any, ...] = (),
    ) -> tuple[Asked, CallFingerprint]:
        """Return what a call with these arguments asks for, with `ends` that are known; of objects, not the bytes."""
        every = given + self._rest.get(len(given), ())
        if named:
            every = tuple(map(named.get, self.arguments.names, every))
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
                self._ops[op] = function, op_name(self._mpi, function)
        asked = nbytes, kind, numbers, op, matched
        try:
            return asked, self._known[asked]
        except (KeyError, TypeError):
            return asked, self.of(asked)

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
        return any(map(eq, self._anys, asked[2]))

    def of(self, asked: Asked) -> CallFingerprint:
        """Return the fingerprint of calls that ask for this."""
        try:
            return self._known[asked]
        except KeyError:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            made = self._known[asked] = self._new(*asked)
            return made
        except TypeError:  # a rank or tag is no number, which mpi4py will say
            return compared(self.operation, {"mpi": self.name})

    def _new(
        self, nbytes: int, kind: str, numbers: tuple[Any, ...], op: int, matched: bool
    ) -> CallFingerprint:
        # Of an intercommunicator, ranks are not those of the group; and mpi4py says what is wrong with others than numbers.
        every: dict[str, Any] = {
            name: each if name == "peers" else index(each)
            for name, each in zip(self.names, numbers, strict=True)
            if matched and (name == "peers" or hasattr(each, "__index__"))
        }
        values: dict[str, Any] = {"mpi": self.name}
        if self.pickles:
            values["object"] = kind
        elif kind:
            values["dtype"] = str(np.dtype(kind))
        if self._op is not None:
            _, values["op"] = self._ops[op]
        values |= {term: every[name] for name, term in TERMS.items() if name in every}
        mpi, ends = self._mpi, list[dict[str, Any]]()
        for way, peer, tag in (("dst", "dest", "sendtag"), ("src", "source", "recvtag")):
            whom = every.get(peer, mpi.PROC_NULL)
            if whom != mpi.PROC_NULL:
                number = every.get("tag", every.get(tag, 0))
                end = {} if whom == mpi.ANY_SOURCE else {way: whom}
                ends.append({**end, "tag": None if number == mpi.ANY_TAG else number})
        if len({each["tag"] for each in ends}) > 1:
            values["calls"] = ends
        else:
            for each in ends:
                values |= each
        return compared(self.operation, values, nbytes)


def op_name(mpi: ModuleType, op: Any) -> str:
    """Return hpccomm's name of a reduction: that of a function, or MPI's in lower case."""
    found = (name for name, each in vars(mpi).items() if isinstance(each, mpi.Op) and each == op)
    return getattr(op, "__qualname__", "") or next(found, "user's").lower()


@dataclass(slots=True)
class Open:
    """A call that goes on when its method has returned, or a persistent one that waits for its next start."""

    group: HeardGroup
    labels: Labels
    asked: Asked
    collective: bool
    entry: CallRecord | None = None


def under_way(request: Any) -> Open | None:
    """Return the call of a request if it has begun, and is not over."""
    call: Open | None = getattr(request, "_hpccomm_call", None)
    return call if call and call.entry and call.entry[ENDED] is None else None
