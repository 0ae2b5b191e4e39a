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
from hpccomm.tools.programs.ear.calls import (
    Arguments,
    HeardGroup,
    Labels,
    Open,
    ranks_of,
    under_way,
)
from hpccomm.tools.programs.ear.listening import Ear

Finish = Callable[[Open, Any], Any]
"""``finish(call, result)`` notes how far a call is, and returns its result."""

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
        self._mpi, self._ear, self._barrier = mpi, ear, mpi.Comm.Barrier
        self._classes: dict[type, Any] = {}
        self._methods: dict[type, dict[str, Any]] = {}
        self._constants: dict[str, Any] = {}
        packs = mpi.pickle
        packs.__init__(self._counts(pickle.dumps), self._counts(pickle.loads), packs.PROTOCOL)

    def _counts(self, function: Any) -> Any:
        """Return ``dumps`` or ``loads``, which counts the bytes that it makes or takes."""
        packed, makes = self._ear.packed, function is pickle.dumps

        @wraps(function)
        def count(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            size = len(result if makes else given[0])
            packed[get_ident()] = packed.get(get_ident(), 0) + size
            return result

        return count

    def names(self) -> dict[str, Any]:
        """Return what stands in ``mpi4py.MPI``, by name."""
        mpi = self._mpi
        of_class: dict[str, dict[str, Any]] = {}
        for row in rows(__package__, "methods.tsv"):
            methods = of_class.setdefault(row["class"], {})
            methods |= dict.fromkeys(row["methods"].split(), row)
        of_all = of_class.pop("all")
        for name, methods in of_class.items():
            self._put(getattr(mpi, name), of_all | methods)
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
            if name in table:
                method = getattr(there, "__func__", there)
                made = wraps(method)(self._method(own, method, table[name]))
                methods[name] = classmethod(made) if isinstance(there, classmethod) else made

        def __subclasshook__(cls: type, other: type) -> bool:  # noqa: N807
            return issubclass(other, own) if "_hpccomm_own" in vars(cls) else NotImplemented

        body: dict[str, Any] = {
            "__module__": own.__module__,
            "__doc__": own.__doc__,
            "_hpccomm_own": own,
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
        kind = self._classes.get(type(made))
        kept = made if kind is None else kind(made)
        if name and kept:
            self._ear.group(kept, made=name, like=like)
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
        inside, packed = ear.now.inside, ear.packed
        may_be_open, pickles = "status" in labels.arguments, labels.pickles
        probes = labels.operation == "probe"
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
            (asked, label), status = labels.asked(given, named, group.matched, ends), None
            if may_be_open and labels.open(asked):
                status, given, named = labels.arguments.with_one("status", mpi.Status, given, named)
            entry = inside[get_ident()] = group.begin(label, site, mode, collective)
            before = packed.get(get_ident(), 0) if pickles else 0
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
                asked = labels.pickled(asked, packed.get(get_ident(), 0) - before, value)
                entry[LABEL] = labels.of(asked)
            if mode is BLOCKING:
                entry[ENDED] = perf_counter() - entry[BEGIN]
            if (trace := ear.trace) is not None:
                trace.take(entry, given[0] if given and not pickles else None)
            if finish is None:
                return result
            return finish(Open(group, labels, asked, collective, entry), result)

        return call

    def _method(self, own: type, method: Any, row: Mapping[str, str]) -> Any:
        """Return the method that stands in place of `method`, as a row of the table says."""
        name, operation, (does, *more) = method.__name__, row["operation"], row["does"].split()
        if does in ("wait", "start", "wrap", "keep"):
            return getattr(self, f"_{does}s")(method)
        arguments = Arguments(method)
        ends: tuple[str, ...] = ()
        place: Place | None = None
        if own is self._mpi.Message and does != "find":
            method, place, ends = _on(self._copied, method), self._of_message, ("source", "tag")
        elif does == "call" and name in ("reduce", "allreduce", "scan", "exscan"):
            method = _on(self._met, method)
        elif "group" in arguments and own is self._mpi.Win:
            place, ends = partial(self._with_ranks, arguments), ("peers",)
        elif "comm" in arguments:
            place = partial(self._of_argument, arguments)
        labels = Labels(self._mpi, method, name.lower() if operation == "=" else operation, ends)
        if does == "prepare":
            return self._prepares(method, labels, bool(more))
        kind = {"Win": "window", "File": "file"}.get(own.__name__, name.lower())
        finish: dict[str, Finish] = {
            **dict.fromkeys(("begin", "find"), self._begun),
            "make": partial(self._made, kind, False),
            "copy": partial(self._made, kind, True),
            "end": lambda call, _: self._ear.forget(call.group),
        }
        mode = ASYNC if does == "begin" else BLOCKING
        return self._heard(
            method, labels, finish.get(does), mode=mode, collective=bool(more), place=place
        )

    # Where a call belongs that is not of the communicator on which it is called.

    def _of_argument(self, arguments: Arguments, _: Any, given: Any, named: Any) -> Placed:
        return self._ear.group(arguments.one("comm", given, named)), ()

    def _with_ranks(self, arguments: Arguments, its: Any, given: Any, named: Any) -> Placed:
        ranks = ranks_of(self._mpi, arguments.one("group", given, named))
        return self._ear.group(its), (ranks,)

    def _of_message(self, its: Any, *_: Any) -> Placed:
        call = getattr(its, "_hpccomm_call", None)
        if call is None:  # it was found by a call that is not recorded
            return None, ()
        numbers = dict(zip(call.labels.names, call.asked[2], strict=True))
        return call.group, (numbers["source"], numbers["tag"])

    # What follows a call.

    def _begun(self, call: Open, result: Any) -> Any:
        """Return what a call has begun or found: a request or a message that knows the call, or else nothing."""
        made = self._within(result)
        if hasattr(made, "_hpccomm_call"):
            made._hpccomm_call = call  # noqa: SLF001
        return made

    def _made(self, kind: str, alike: bool, call: Open, result: Any) -> Any:
        """Return a communicator, window or file with a group of its own; `alike` if it has the same ranks."""
        title = f"{kind} of {call.group.origin.name}"
        return self._within(result, title, call.group if alike else None)

    # Other methods.

    def _wraps(self, method: Any) -> Any:
        """Return the method that makes something, and whose call is not recorded."""
        return lambda its, *given, **named: self._within(method(its, *given, **named))

    def _prepares(self, method: Any, labels: Labels, collective: bool) -> Any:
        """Return the method that makes a persistent request; its starts are the calls."""
        ear = self._ear

        def prepare(its: Any, *given: Any, **named: Any) -> Any:
            request = self._within(method(its, *given, **named))
            if ear.site(caller(1)) is not None:
                group = ear.group(its)
                asked, _ = labels.asked(given, named, group.matched)
                request._hpccomm_call = Open(group, labels, asked, collective)  # noqa: SLF001
            return request

        return prepare

    def _copied(self, message: Any) -> Any:
        """Return a message that can be received, which changes it: of a constant of the module it is a copy."""
        constant = message is self._constants["MESSAGE_NO_PROC"]
        return self._mpi.Message(message) if constant else message

    def _met(self, comm: Any) -> Any:
        """Return a communicator whose ranks have met before a reduction of objects, if calls have a deadline.

        In the first one of a communicator, mpi4py duplicates that with the interpreter's lock held (mpi4py#784). A rank
        that waits there could not say so. So the ranks meet before.
        """
        ear = self._ear
        if ear.ends_waits and not (group := ear.group(comm)).duplicated:
            group.duplicated = True
            self._barrier(comm)
        return comm

    def _keeps(self, method: Any) -> Any:
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

    def _starts(self, method: Any) -> Any:
        """Return the method that starts persistent requests."""
        ear = self._ear
        several, arguments = method.__name__ == "Startall", Arguments(method)

        def start(its: Any, *given: Any, **named: Any) -> None:
            requests = arguments.one("requests", given, named) if several else [its]
            site = ear.site(caller(1))
            for each in requests if site else ():
                if call := getattr(each, "_hpccomm_call", None):
                    label = call.labels.of(call.asked)
                    call.entry = call.group.begin(label, site, ASYNC, call.collective)
                    if ear.trace is not None:
                        ear.trace.take(call.entry, None)
            method(its, *given, **named)

        return start

    def _waits(self, method: Any) -> Any:
        """Return the method that waits for requests, tests them, or frees one."""
        ear, mpi, name, lower = self._ear, self._mpi, method.__name__, method.__name__.islower()
        awaited, packed = ear.now.awaited, ear.packed
        blocks, arguments = name.lower().startswith("wait"), Arguments(method)
        several, of_each = "requests" in arguments, "statuses" in arguments
        status = "statuses" if of_each else "status" if "status" in arguments else ""

        def wait(its: Any, *given: Any, **named: Any) -> Any:
            requests = arguments.one("requests", given, named) if several else (its,)
            calls = list(map(under_way, requests))
            if ear.site(caller(1)) is None or not any(calls):
                return method(its, *given, **named)
            asked, before, statuses = perf_counter(), packed.get(get_ident(), 0), None
            if status and any(call and call.labels.open(call.asked) for call in calls):
                statuses, given, named = arguments.with_one(
                    status,
                    lambda: [mpi.Status() for _ in calls] if of_each else mpi.Status(),
                    given,
                    named,
                )
            if blocks:
                awaited[get_ident()] = asked, calls
            try:
                result = method(its, *given, **named)
            except BaseException as error:
                for each, call in zip(requests, calls, strict=True):
                    if call and call.entry and not each:
                        ear.failed(call.entry, error)
                raise
            finally:
                awaited.pop(get_ident(), None)
            over = [(0, result if lower else None)]
            if several or not blocks:
                over = _over(name, result, len(calls))
            for at, (place, value) in enumerate(over):
                if call := calls[place]:
                    its_status = statuses[at] if of_each and statuses else statuses
                    nbytes = (packed.get(get_ident(), 0) - before) // len(over)
                    ear.over(call, asked, its_status, nbytes, value)
            return result

        return wait


def _on(change: Callable[[Any], Any], method: Any) -> Any:
    """Return the method that is called on what `change` makes of its object."""
    return wraps(method)(lambda its, *given, **named: method(change(its), *given, **named))


def _over(name: str, result: Any, count: int) -> list[tuple[int, Any]]:
    """Return which of `count` requests are over, and their objects, from what the method of that name has returned."""
    first, *_, last = result if isinstance(result, tuple) else (result, result)
    kind, places = name.lower()[4:], []
    if kind == "any":
        places = [first] if 0 <= first < count else []
    elif kind == "some":
        places = first or []
    elif first or name == "Free":
        places = [*range(count)]
    objects = last if kind in ("all", "some") else [last]
    return [(place, objects[at] if name.islower() else None) for at, place in enumerate(places)]


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
