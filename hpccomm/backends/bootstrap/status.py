"""The status with which this process is about to exit, as far as Python reveals it.

Functions of `atexit` do not get the status. Known are an uncaught exception, and the status of a
``SystemExit``, raised by ``sys.exit`` or in another way. `shutdown` passes it to the launcher.
"""

import ctypes
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from hpccomm.backends.bootstrap import presence
from hpccomm.runtime import answering, raised
from hpccomm.runtime.lifetime import Status, status_of
from hpccomm.runtime.recorder import described, frames, in_standard, own_frame, site_of

_known: int | None = None
_installed = False


def known() -> int | None:
    """Return the exit status of this process; None if unknown, and then usually 0."""
    return _known


def note(status: int) -> None:
    """Remember that the process exits with that status."""
    global _known
    _known = status


def _watch_code() -> None:
    """Take note of the code of a ``SystemExit`` when the interpreter itself asks for it, to end the process.

    It is the only way to see a ``SystemExit`` raised without ``sys.exit``. The attribute works as
    before. Types of the interpreter cannot be changed by assignment, but their names lie in a
    dictionary.
    """
    names: Any = gc.get_referents(SystemExit.__dict__)
    if len(names) != 1 or not isinstance(names[0], dict):  # another interpreter
        return
    code = names[0]["code"]

    def asked(error: SystemExit) -> object:
        value: object = code.__get__(error)
        if in_main_thread():
            try:
                sys._getframe(1)  # noqa: SLF001 (documented so)
            except ValueError:  # no reader is left: only the interpreter runs
                note(status_of(error))
        return value

    names[0]["code"] = property(asked, code.__set__, code.__delete__, code.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))


def _exit(status: Any = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    raise SystemExit(status)


def in_main_thread() -> bool:
    """Whether the main thread asks."""
    return threading.get_ident() == threading.main_thread().ident


def uncaught(error: BaseException) -> bool:
    """Whether the interpreter itself reports an exception as uncaught, in ``sys.excepthook``.

    Programs also call the hook, or a wrapper of it, for caught exceptions. The interpreter stores
    the reported exception first.
    """
    return getattr(sys, "last_value", None) is error


def watch_for_it() -> None:
    """Take note of the status from now on. Once a process; what Python does stays the same."""
    global _installed
    if _installed:
        return
    _installed = True
    _watch_code()
    sys.exit = _exit  # up to Python 3.11, its own ``SystemExit`` is not stored if uncaught
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if uncaught(error):
            note(status_of(error))
            raised.note(error)
        previous(kind, error, where)

    sys.excepthook = hook
    for name in ("mpi4py.run", "__main__"):
        module = sys.modules.get(name)
        notify: Callable[[object], None] | None = getattr(module, "set_abort_status", None)
        if module is not None and notify is not None and "mpi4py" in str(notify.__module__ or name):
            module.set_abort_status = _also(notify)  # type: ignore[attr-defined]


def _also(report: Callable[[object], None]) -> Callable[[object], None]:
    def set_abort_status(status: object) -> None:
        note(status_of(status) if isinstance(status, SystemExit) else Status.RAISED)
        report(status)

    return set_abort_status


DEPTH = 3
"""So far a thread's values are followed to something of hpccomm's."""

MOST_VALUES = 100
"""Of each container."""


def lingering(rank: int, size: int, seconds: float, limit: float) -> str:
    """Tell the other ranks that this one's program has ended; return why the job must end.

    A program that leaves with a status other than 0 has failed, and the job ends with it after
    `limit` seconds, unless the other ranks have ended as well. A program that has returned counts
    as gone for the others if none of its threads refers to an object of hpccomm's: else a thread
    may still communicate.
    """
    main = threading.main_thread()
    threads = [each for each in threading.enumerate() if not each.daemon and each is not main]
    if not threads:
        return ""
    at = frames()
    where = described(site_of(own_frame(at.get(threads[0].ident or 0))))
    thread = f"its thread {threads[0].name!r}{f' at {where}' if where else ''}"
    answering.note(over=thread)
    if seconds < limit:
        return ""
    leaving = known() or 0
    if not leaving:
        if not any(_communicates(each, at.get(each.ident or 0)) for each in threads):
            answering.note_exit()
        return ""
    if not presence.others_go_on(size):
        return ""
    return (
        f"hpccomm: rank {rank} exits with status {leaving}, and {thread} has kept it for {seconds:.0f} s, while other "
        "ranks go on. The job ends with that status"
    )


def _communicates(thread: threading.Thread, frame: types.FrameType | None) -> bool:
    """Whether a thread may make calls of hpccomm: something that it uses leads there."""
    # Attributes of Python's own lead to the hook of exceptions, which is hpccomm's.
    attributes = {"_target", "_args", "_kwargs"}
    values = [each for name, each in vars(thread).items() if name in attributes or name[0] != "_"]
    while frame is not None:
        values += frame.f_locals.values()
        if not in_standard(frame):
            values += _globals(frame.f_code, frame.f_globals)
        frame = frame.f_back
    return any(_leads(each, DEPTH) for each in values)


def _globals(code: types.CodeType, names: dict[str, Any]) -> Iterator[Any]:
    return (names[each] for each in code.co_names if each in names)


def _leads(value: object, depth: int) -> bool:
    """Whether a value is an object of hpccomm's, or refers to one."""
    name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
    if str(name).split(".")[0] == "hpccomm":
        return True
    if depth == 0 or isinstance(value, types.ModuleType | threading.Thread):
        return False
    parts: list[object] = []
    match value:
        case types.FunctionType():
            cells = [each for each in value.__closure__ or () if each is not None]
            parts = [*_globals(value.__code__, value.__globals__), *_contents(cells)]
        case types.MethodType():
            parts = [value.__self__, value.__func__]
        case partial():
            parts = [value.func, *value.args, *value.keywords.values()]
        case dict():
            parts = list(value.values())
        case list() | tuple() | set():
            parts = list(value)
        case _:
            parts = list(getattr(value, "__dict__", {}).values())
    return any(_leads(each, depth - 1) for each in parts[:MOST_VALUES])


def _contents(cells: list[types.CellType]) -> Iterator[object]:
    for each in cells:
        try:
            yield each.cell_contents
        except ValueError:  # it is empty
            continue
