"""The status with which this process is about to exit, as far as Python reveals it.

Functions of `atexit` do not get the status. Known are an uncaught exception, and the status of a
``SystemExit``, raised by ``sys.exit`` or in another way. `shutdown` passes it to the launcher.
"""

import ctypes
import gc
import sys
import threading
from types import TracebackType
from typing import Any, NoReturn

from hpccomm.runtime import raised
from hpccomm.runtime.lifetime import status_of

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
