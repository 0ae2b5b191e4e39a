"""Faults at chosen calls of the system, and processes that end where a test wants it.

What a kill, an interrupt or a refusal does depends on the call of the system that it comes to. Only there is anything
put in the way: functions of ``os``, ``fcntl`` and h5py, never of hpccomm.
"""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any


@contextmanager
def at_call(
    module: Any,
    name: str,
    act: Callable[..., object],
    number: int | None = None,
    *,
    behind: bool = False,
) -> Iterator[None]:
    """Have `act` called, with its arguments, before the call of that number, or of every one; or behind it."""
    function, calls = getattr(module, name), count()

    def called(*given: Any, **more: Any) -> Any:
        acts = next(calls) == number or number is None
        if acts and not behind:
            act(*given)
        result = function(*given, **more)
        if acts and behind:
            act(*given)
        return result

    setattr(module, name, called)
    try:
        yield
    finally:
        setattr(module, name, function)


def refusal(number: int) -> Callable[..., None]:
    """Return what raises the error of the system with this number."""

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def kill_own(*_: Any) -> None:
    """End this process as a scheduler does: nothing more is written."""
    os.kill(os.getpid(), signal.SIGKILL)


def end_of(work: Callable[[], object]) -> signal.Signals:
    """Do the work in a fork; return what ended that: SIGKILL within it, SIGTERM behind it, SIGABRT an error."""
    child = os.fork()
    if not child:
        end = signal.SIGABRT
        try:
            work()
            end = signal.SIGTERM
        finally:  # never back into the tests
            signal.signal(end, signal.SIG_DFL)
            os.kill(os.getpid(), end)
    return signal.Signals(os.WTERMSIG(os.waitpid(child, 0)[1]))


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Let this process have no more than so much of a resource, such as ``resource.RLIMIT_NOFILE``."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


@contextmanager
def living(work: Callable[[], object]) -> Iterator[None]:
    """Do the work in a fork, which keeps what it returns until it is killed, at the end of the block."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            kept = work()
            os.write(writing, b"done")
            signal.pause()
            del kept
        finally:
            kill_own()
    os.close(writing)
    try:
        assert os.read(reading, 4) == b"done", "the fork has failed"
        yield
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
