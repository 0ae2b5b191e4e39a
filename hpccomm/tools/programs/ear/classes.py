"""The classes that stand in place of mpi4py's: each of their calls is recorded.

Each one is a subclass of the mpi4py class of its name, with methods that call those of mpi4py. Tables say which methods these
are; where the arguments of a method stand is read from its signature. Whatever a call returns is put into the class in
place of its own. So ``isinstance``, comparisons, pickles and handles stay right: an object of mpi4py's own class counts as
one of the class in its place. Such objects come from C, as those of petsc4py and h5py do, and so their calls are not recorded.

Used by ``sitecustomize`` in the folder `site`.
"""

import pickle
from abc import ABCMeta
from collections.abc import Callable, Mapping
from copyreg import __newobj__  # type: ignore[attr-defined]
from ctypes import memmove
from functools import partial, wraps
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from hpccomm.runtime.recorder import ASYNC, BEGIN, BLOCKING, ENDED, LABEL, caller
from hpccomm.spelling import rows
from hpccomm.tools.programs.ear.calls import Arguments, HeardGroup, Labels, Open, under_way
from hpccomm.tools.programs.ear.listening import Ear

HANDLES = ("fromhandle", "f2py", "fromint")
"""Methods of all classes that make an object of a handle."""


Finish = Callable[[Any, Open, Any], Any]
"""``finish(self, call, result)`` notes how far a call is, and returns its result."""

Placed = tuple[HeardGroup | None, tuple[Any, ...]]
Place = Callable[[Any, Any, Any], Placed]
"""``place(self, given, named)`` returns the group of a call, None where it is not recorded, and ranks and tags that are no arguments."""


class RecordingClasses:
    """Makes the classes, and their methods.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    ear : Ear
        Takes the calls.
    """

    def __init__(self, mpi: ModuleType, ear: Ear) -> None:
        self._mpi, self._ear = mpi, ear
        self._classes: dict[type, Any] = {}
        self._methods: dict[type, dict[str, Any]] = {}
        self._constants: dict[str, Any] = {}
        packs = mpi.pickle
        packs.__init__(self._counts(pickle.dumps), self._counts(pickle.loads), packs.PROTOCOL)

    def _counts(self, function: Any) -> Any:
        """Return ``dumps`` or ``loads``, which counts the bytes that it makes or takes."""
        ear, makes = self._ear, function is pickle.dumps

        @wraps(function)
        def count(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            size = len(result if makes else given[0])
            ear.packed[get_ident()] = ear.packed_here() + size
            return result

        return count

    def names(self) -> dict[str, Any]:
        """Return what stands in ``mpi4py.MPI``, by name."""
        mpi = self._mpi
        of_class: dict[str, dict[str, Any]] = {}
        for row in rows(__package__, "methods.tsv"):
            methods = of_class.setdefault(row["class"], {})
            methods |= dict.fromkeys(row["methods"].split(), row)
        for name, methods in of_class.items():
            self._put(getattr(mpi, name), methods)
        for name, each in vars(mpi).items():
            if type(each) in self._classes:
                made = self._constants[name] = self._classes[type(each)]()
                # The handle, without the calls of MPI that a copy takes: MPI may not have started.
                memmove(mpi._addressof(made), mpi._addressof(each), mpi._sizeof(each))  # noqa: SLF001
        return {each.__name__: made for each, made in self._classes.items()} | self._constants

    def _put(self, own: type, table: Mapping[str, Mapping[str, str]]) -> None:
        """Make the class in place of `own`, of the methods that the table lists.

        It has the methods of the class above as well, and not that for its base: each base of it makes objects as `own` does.
        """
        methods = self._methods[own] = dict(self._methods.get(own.__mro__[1], {}))
        for name, there in vars(own).items():
            method = getattr(there, "__func__", there)
            if callable(method) and name != "__new__":
                if name in HANDLES:
                    made = self._wraps(method)
                elif name in ("free", "__reduce__"):
                    made = self._of_constant(method)
                else:
                    made = self._method(own, method, table[name]) if name in table else None
                if made is not None:
                    made = wraps(method)(made)
                    methods[name] = classmethod(made) if isinstance(there, classmethod) else made

        def __subclasshook__(cls: type, other: type) -> bool:  # noqa: N807
            return issubclass(other, own) if "_hpccomm_own" in vars(cls) else NotImplemented

        body: dict[str, Any] = {
            "__module__": own.__module__,
            "__doc__": own.__doc__,
            "_hpccomm_own": own,
        }
        body |= {
            "_hpccomm_group": None,
            "_hpccomm_call": None,
            "__subclasshook__": classmethod(__subclasshook__),
        }
        self._classes[own] = ABCMeta(own.__name__, (own,), body | methods)

    def _within(self, made: Any, name: str = "", like: HeardGroup | None = None) -> Any:
        """Return what mpi4py has made, in the class in place of its own; None as it is.

        With a name, its group is new. What ``Idup`` makes has no handle yet, and the ranks of `like`.
        """
        if isinstance(made, tuple):
            comm, request = map(self._within, made)
            if name:
                comm._hpccomm_group = self._ear.group(None, made=name, like=like)  # noqa: SLF001
            return comm, request
        kept = self._classes[type(made)](made) if type(made) in self._classes else made
        if name and kept:
            kept._hpccomm_group = self._ear.group(kept, made=name, like=like)  # noqa: SLF001
        return kept

    def _plain(self, result: Any) -> Any:
        """Return what a call has made that is not recorded: in mpi4py's class if it is hpccomm's call."""
        if not self._ear.hears:
            return self._within(result)
        own = getattr(type(result), "_hpccomm_own", None)
        return result if own is None else own(result)

    # Methods.

    def _heard(
        self,
        method: Any,
        labels: Labels,
        finish: Finish | None = None,
        *,
        mode: str = BLOCKING,
        collective: bool = False,
        place: Place | None = None,
    ) -> Any:
        """Return the method that records a call, and then does what `finish` does."""
        ear, mpi, plain = self._ear, self._mpi, self._plain
        may_be_open, probes, pickles = labels.takes_status, labels.probes, labels.pickles
        weighs = pickles and (mode is BLOCKING or labels.value)

        def call(self: Any, *given: Any, **named: Any) -> Any:
            site, ends = ear.site(caller(1)), ()
            if site is None:
                group = None
            elif place is not None:
                group, ends = place(self, given, named)
            else:
                group = getattr(self, "_hpccomm_group", None) or ear.group(self)
            if group is None:
                result = method(self, *given, **named)
                return result if finish is None else plain(result)
            asked, status = labels.asked(given, named, group.matched, ends), None
            if may_be_open and labels.open(asked):
                status = labels.arguments.one("status", given, named)
                if status is None:
                    status = mpi.Status()
                    given, named = labels.arguments.put("status", status, given, named)
            entry = group.begin(labels.of(asked), site, mode, collective)
            packed = ear.packed_here() if pickles else 0
            try:
                result = method(self, *given, **named)
            except BaseException as error:
                ear.failed(entry, error)
                raise
            if probes and not result:
                group.drop(entry)
                return result
            if status is not None:
                asked = labels.come(asked, status)
                entry[LABEL] = labels.of(asked)
            if weighs:
                value = labels.arguments.one(labels.value, given, named)
                value = result if value is None else value
                asked = labels.pickled(asked, ear.packed_here() - packed, value)
                entry[LABEL] = labels.of(asked)
            if mode is BLOCKING:
                entry[ENDED] = perf_counter() - entry[BEGIN]
            if ear.trace is not None:
                ear.trace.take(entry, given[0] if given and not pickles else None)
            if finish is None:
                return result
            return finish(self, Open(group, labels, asked, collective, entry), result)

        return call

    def _method(self, own: type, method: Any, row: Mapping[str, str]) -> Any:
        """Return the method that stands in place of `method`, as a row of the table says."""
        name, operation, (does, *more) = method.__name__, row["operation"], row["does"].split()
        if does in ("wait", "start", "free"):  # of requests
            return getattr(self, f"_{does}")(method)
        if does == "wrap":
            return self._wraps(method)
        ends: tuple[str, ...] = ()
        place: Place | None = None
        if own is self._mpi.Message and does != "find":
            method, place, ends = self._receives(method), self._of_message, ("source", "tag")
        elif does == "call" and name in ("reduce", "allreduce", "scan", "exscan"):
            method = self._lets_look(method)
        labels = Labels(self._mpi, method, name.lower() if operation == "=" else operation, ends)
        if "comm" in labels.arguments:
            place = partial(self._of_argument, labels.arguments)
        if does == "prepare":
            return self._prepares(method, labels, bool(more))
        kind = {"Win": "window", "File": "file"}.get(own.__name__, name.lower())
        finish: dict[str, Finish] = {
            "begin": self._begun,
            "find": self._found,
            "make": partial(self._made, kind, False),
            "copy": partial(self._made, kind, True),
            "end": self._ended,
        }
        mode = ASYNC if does == "begin" else BLOCKING
        return self._heard(
            method, labels, finish.get(does), mode=mode, collective=bool(more), place=place
        )

    # Where a call belongs that is not of the communicator on which it is called.

    def _of_argument(self, arguments: Arguments, _: Any, given: Any, named: Any) -> Placed:
        comm = arguments.one("comm", given, named)
        return getattr(comm, "_hpccomm_group", None) or self._ear.group(comm), ()

    def _of_message(self, its: Any, *_: Any) -> Placed:
        call = getattr(its, "_hpccomm_call", None)
        if call is None:  # it was found by a call that is not recorded
            return None, ()
        numbers = dict(zip(call.labels.names, call.asked[2], strict=True))
        return call.group, (numbers["source"], numbers["tag"])

    # What follows a call.

    def _begun(self, _: Any, call: Open, result: Any) -> Any:
        """Return a request that knows its call."""
        request = self._within(result)
        request._hpccomm_call = call  # noqa: SLF001
        return request

    def _found(self, _: Any, call: Open, result: Any) -> Any:
        """Return what a probe has found; a message knows its sender and its tag."""
        found = self._within(result)
        if isinstance(found, self._mpi.Message):
            found._hpccomm_call = call  # noqa: SLF001
        return found

    def _made(self, kind: str, alike: bool, _: Any, call: Open, result: Any) -> Any:
        """Return a communicator, window or file with a group of its own; `alike` if it has the same ranks."""
        title = f"{kind} of {call.group.origin.name}"
        return self._within(result, title, call.group if alike else None)

    def _ended(self, _: Any, call: Open, result: Any) -> Any:
        """Forget a communicator, window or file that has ended."""
        self._ear.forget(call.group)
        return result

    # Other methods.

    def _wraps(self, method: Any) -> Any:
        """Return the method that makes something, and whose call is not recorded."""

        def make(its: Any, *given: Any, **named: Any) -> Any:
            result = method(its, *given, **named)
            return self._within(result) if self._ear.site(caller(1)) else self._plain(result)

        return make

    def _prepares(self, method: Any, labels: Labels, collective: bool) -> Any:
        """Return the method that makes a persistent request; its starts are the calls."""
        ear = self._ear

        def prepare(its: Any, *given: Any, **named: Any) -> Any:
            request = self._within(method(its, *given, **named))
            if ear.site(caller(1)) is not None:
                group = getattr(its, "_hpccomm_group", None) or ear.group(its)
                asked = labels.asked(given, named, group.matched)
                request._hpccomm_call = Open(group, labels, asked, collective)  # noqa: SLF001
            return request

        return prepare

    def _receives(self, method: Any) -> Any:
        """Return the method that receives a message: a constant of the module stays what it is."""
        mpi = self._mpi

        @wraps(method)
        def receive(its: Any, *given: Any, **named: Any) -> Any:
            if its is self._constants["MESSAGE_NO_PROC"]:
                its = mpi.Message(its)
            return method(its, *given, **named)

        return receive

    def _lets_look(self, method: Any) -> Any:
        """Return the method of a reduction of objects, before which the ranks meet while calls have a deadline.

        In the first one of a communicator, mpi4py duplicates that with the interpreter's lock held (mpi4py#784). A rank
        that waits there could not say so. So the ranks meet before.
        """
        ear, meet = self._ear, self._mpi.Comm.Barrier

        @wraps(method)
        def reduce(its: Any, *given: Any, **named: Any) -> Any:
            group = getattr(its, "_hpccomm_group", None) or ear.group(its)
            if ear.ends_waits and not group.duplicated:
                group.duplicated = True
                meet(its)
            return method(its, *given, **named)

        return reduce

    def _of_constant(self, method: Any) -> Any:
        """Return ``free`` or ``__reduce__``, which do not treat the constants of the module as they do copies of them."""
        constants, pickles = self._constants, method.__name__ == "__reduce__"

        def treat(its: Any) -> Any:
            for name, each in constants.items():
                if each is its:
                    return name if pickles else None
                if each == its and pickles:
                    return __newobj__, (type(its), each)
            return method(its)

        return treat

    def _start(self, method: Any) -> Any:
        ear = self._ear
        several, arguments = method.__name__ == "Startall", Arguments(method)

        def start(its: Any, *given: Any, **named: Any) -> None:
            requests = arguments.one("requests", given, named) if several else [its]
            ear.starts(requests, caller(1))
            method(its, *given, **named)

        return start

    def _free(self, method: Any) -> Any:
        ear = self._ear

        def free(its: Any) -> None:
            if its._hpccomm_call and ear.site(caller(1)):  # noqa: SLF001
                ear.over(its._hpccomm_call, perf_counter(), None, 0, None)  # noqa: SLF001
            method(its)

        return free

    def _wait(self, method: Any) -> Any:
        """Return the method that waits for requests, or tests them."""
        ear, mpi, low = self._ear, self._mpi, method.__name__.lower()
        blocks, arguments = low.startswith("wait"), Arguments(method)
        several, of_each = "requests" in arguments, "statuses" in arguments
        status = "statuses" if of_each else "status"

        def wait(its: Any, *given: Any, **named: Any) -> Any:
            requests = arguments.one("requests", given, named) if several else (its,)
            calls = [getattr(each, "_hpccomm_call", None) for each in requests]
            if ear.site(caller(1)) is None or not any(map(under_way, calls)):
                return method(its, *given, **named)
            asked, packed, statuses = perf_counter(), ear.packed_here(), None
            if any(call and call.labels.open(call.asked) for call in calls):
                statuses = arguments.one(status, given, named)
                if statuses is None:
                    statuses = [mpi.Status() for _ in calls] if of_each else mpi.Status()
                    given, named = arguments.put(status, statuses, given, named)
            if blocks:
                ear.awaited[get_ident()] = asked, calls
            try:
                result = method(its, *given, **named)
            finally:
                ear.awaited.pop(get_ident(), None)
            over = _over(low, result, len(calls)) if several or not blocks else (0,)
            for at, place in enumerate(over):
                call = calls[place]
                if call is not None and under_way(call):
                    its_status = statuses[at] if of_each and statuses else statuses
                    nbytes = (ear.packed_here() - packed) // len(over)
                    ear.over(
                        call, asked, its_status, nbytes, _value(method.__name__, result, at, place)
                    )
            return result

        return wait


def _value(name: str, result: Any, at: int, place: int) -> Any:
    """Return the object of one request, the one `at` a place among those that are over, from what a method returned."""
    if name[0].isupper():
        return None
    last = result[-1] if isinstance(result, tuple) and name != "wait" else result
    return last[place] if name.endswith("all") else last[at] if name.endswith("some") else last


def _over(name: str, result: Any, count: int) -> list[int]:
    """Return which of `count` requests are over, from the result of a wait or test of that name, in small letters."""
    first = result[0] if isinstance(result, tuple) else result
    if name.endswith("any"):
        return [first] if 0 <= first < count else []
    if name.endswith("some"):
        return list(first or ())
    return list(range(count)) if name.startswith("wait") or first else []


def listen(mpi: Any) -> None:
    """Put the recording classes in place of mpi4py's, and record from the start of MPI on."""
    ear = Ear(mpi)
    world = mpi.COMM_WORLD
    for name, put in RecordingClasses(mpi, ear).names().items():
        setattr(mpi, name, put)

    def starting(function: Any) -> Any:
        @wraps(function)
        def start(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            ear.start(world)
            return result

        return start

    finalize = mpi.Finalize

    @wraps(finalize)
    def end() -> None:
        ear.end()
        finalize()

    mpi.Init, mpi.Init_thread, mpi.Finalize = starting(mpi.Init), starting(mpi.Init_thread), end
    if mpi.Is_initialized() and not mpi.Is_finalized():
        ear.start(world)
