"""With which status this process is about to exit, as far as Python lets anybody know.

Functions of `atexit` are not told. What is known: that an exception was not caught, and the argument of
``sys.exit``. What is raised as ``SystemExit(n)`` without ``sys.exit`` stays unknown, except under
``python -m mpi4py``.
"""

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

_known: int | None = None
_installed = False


def known() -> int | None:
    """Return the status with which this process exits; None if it is not known, as a rule then 0."""
    return _known


def note(status: int) -> None:
    """Remember that the process exits with that status."""
    global _known
    _known = status


class _Leaving(SystemExit):
    """What ``sys.exit`` raises.

    Somebody may catch it. Python drops it, with no function under way any more, only where it ends the
    process; that is what tells.
    """

    def __del__(self) -> None:
        if not hasattr(sys, "_getframe") or not _in_main_thread():
            return
        try:
            sys._getframe(1)  # noqa: SLF001 (documented so)
        except ValueError:  # nobody called: nothing but the interpreter is left
            note(as_status(self.code))


def as_status(code: object) -> int:
    """Return the exit status of ``sys.exit(code)``."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _exit(status: Any = None, /) -> NoReturn:
    """Exit the interpreter by raising SystemExit(status)."""
    raise _Leaving(status) if _in_main_thread() else SystemExit(status)  # which ends a thread


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def uncaught(error: BaseException) -> bool:
    """Whether the interpreter itself reports an exception as one that nobody caught, in ``sys.excepthook``.

    Programs also call that, or what they have put around it, for what they have caught. The interpreter
    notes before what it reports.
    """
    return getattr(sys, "last_value", None) is error


def watch_for_it() -> None:
    """Take note of the status from now on. Once a process; what Python does stays the same."""
    global _installed
    if _installed:
        return
    _installed = True
    sys.exit = _exit
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if uncaught(error):
            note(1)
        previous(kind, error, where)

    sys.excepthook = hook
    for name in ("mpi4py.run", "__main__"):
        module = sys.modules.get(name)
        told: Callable[[object], None] | None = getattr(module, "set_abort_status", None)
        if module is not None and told is not None and "mpi4py" in str(told.__module__ or name):
            module.set_abort_status = _also(told)  # type: ignore[attr-defined]


def _also(told: Callable[[object], None]) -> Callable[[object], None]:
    def set_abort_status(status: object) -> None:
        note(as_status(status.code if isinstance(status, SystemExit) else 1))
        told(status)

    return set_abort_status
